#include "tests/cuda_emulation/device.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <execinfo.h>
#include <sys/mman.h>
#include <torch/library.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace twinkle::kernels::emulation {
namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
constexpr size_t kBytes = size_t{1} << 30, kUnit = 64, kPage = size_t{2} << 20;  // a huge page
constexpr int kNan = 0xff;

void explain_fault(int signal, siginfo_t* info, void*);

// The device's memory: one range of addresses, first fit. A fresh block is filled with NaN. It
// opens and closes at every launch, which costs time by the page that is there: so huge ones are
// asked for.
class Memory {
 public:
  Memory() {
    size_t room = kBytes + kPage;
    void* at = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED || std::align(kPage, kBytes, at, room) == nullptr) throw std::bad_alloc();
    base_ = static_cast<char*>(at);
    madvise(base_, kBytes, MADV_HUGEPAGE);  // where the system has none, it is slower
    free_[0] = kBytes;
    struct sigaction action{};
    action.sa_sigaction = explain_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
  }

  bool holds(const void* at) const { return at >= base_ && at < base_ + kBytes; }

  void open() {
    const std::lock_guard lock(mutex_);
    if (num_open_++ == 0) mprotect(base_, kBytes, PROT_READ | PROT_WRITE);
  }
  void close() {
    const std::lock_guard lock(mutex_);
    if (--num_open_ == 0) mprotect(base_, kBytes, PROT_NONE);
  }

  void* take(size_t bytes) {
    const size_t size = (bytes + kUnit - 1) / kUnit * kUnit;
    char* out = nullptr;
    {
      const std::lock_guard lock(mutex_);
      auto hole = free_.begin();
      while (hole != free_.end() && hole->second < size) ++hole;
      if (hole == free_.end()) throw std::bad_alloc();
      const auto [at, room] = *hole;
      free_.erase(hole);
      if (room > size) free_[at + size] = room - size;
      taken_[at] = size;
      out = base_ + at;
    }
    const Access access;
    std::memset(out, kNan, size);
    return out;
  }

  void give_back(void* data) {
    const std::lock_guard lock(mutex_);
    const auto mine = taken_.find(static_cast<size_t>(static_cast<char*>(data) - base_));
    const auto [at, size] = *mine;
    taken_.erase(mine);
    const size_t first = (at + kPage - 1) / kPage * kPage, end = (at + size) / kPage * kPage;
    if (end > first) madvise(base_ + first, end - first, MADV_DONTNEED);
    auto hole = free_.emplace(at, size).first;
    if (const auto next = std::next(hole); next != free_.end() && next->first == at + size) {
      hole->second += next->second;
      free_.erase(next);
    }
    if (hole == free_.begin()) return;
    const auto before = std::prev(hole);
    if (before->first + before->second != at) return;
    before->second += hole->second;
    free_.erase(hole);
  }

 private:
  std::mutex mutex_;
  char* base_ = nullptr;
  std::map<size_t, size_t> free_, taken_;  // begin to size, in bytes from base_
  int num_open_ = 0;
};

Memory& memory() {
  static Memory* const all = new Memory;  // never destroyed: tensors may outlive everything
  return *all;
}

void explain_fault(int signal, siginfo_t* info, void*) {
  if (memory().holds(info->si_addr)) {
    constexpr char kText[] = "emulation: the host touched the device's memory, from\n";
    if (write(STDERR_FILENO, kText, sizeof kText - 1) < 0) _exit(1);
    void* frames[48];
    backtrace_symbols_fd(frames, backtrace(frames, 48), STDERR_FILENO);
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes > 0 ? memory().take(bytes) : nullptr;
    return {data, data, &free, device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    const Access access;
    std::memcpy(to, from, bytes);
  }
  static void free(void* data) {
    if (data != nullptr) memory().give_back(data);
  }
};

Allocator allocator;

struct Guard final : c10::impl::NoOpDeviceGuardImpl<kType> {
  c10::Device getDevice() const override { return device(); }
  c10::Device exchangeDevice(c10::Device) const override { return device(); }
  c10::Stream getStream(c10::Device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, device());
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::Device getDeviceFromPtr(void*) const override { return device(); }
  // at::manual_seed asks for it.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator unused = at::detail::createCPUGenerator();
    return unused;
  }
};

Hooks hooks;

const struct Registered {
  Registered() {
    c10::register_privateuse1_backend("emulated");
    c10::SetAllocator(kType, &allocator);
    at::RegisterPrivateUse1HooksInterface(&hooks);
  }
} registered;
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

thread_local Recording* recording = nullptr;

// Makes `recording` another one, or none, until its end.
struct Recorded {
  explicit Recorded(Recording* other) : before(std::exchange(recording, other)) {}
  ~Recorded() { recording = before; }
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;
  Recording* const before;
};

void require_together(const std::string& what) {
  if (recording) throw std::logic_error("emulation: while launches are recorded " + what);
}

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> type,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const at::Tensor out =
      at::detail::empty_generic(size, &allocator, kKeys, type.value_or(at::kFloat), format);
  hold(out);
  return out;
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> type, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  const at::Tensor out =
      at::detail::empty_strided_generic(size, stride, &allocator, kKeys, type.value_or(at::kFloat));
  hold(out);
  return out;
}

// The same memory as a tensor of the CPU, to be touched while there is an Access.
at::Tensor on_host(const at::Tensor& x) {
  if (x.is_cpu()) return x;
  return at::from_blob(const_cast<void*>(x.const_data_ptr()), x.sizes(), x.strides(),
                       x.options().device(at::kCPU));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  if (from.is_cpu() || to.is_cpu()) require_together("host and device exchange a tensor");
  const auto copy = [from, to] {
    const Access access;
    on_host(to).copy_(on_host(from));
  };
  if (!recorded(copy)) copy();
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar scalar_of(const at::Tensor& x) {
  require_together("the host reads a number");
  const Access access;
  return at::_local_scalar_dense(on_host(x));
}

// The argument that an operator's result is: one that it writes to.
c10::IValue written(const c10::FunctionSchema& schema, const c10::Argument& result,
                    const std::vector<c10::IValue>& args) {
  for (size_t i = 0; i < args.size(); ++i) {
    const c10::AliasInfo* mine = schema.arguments()[i].alias_info();
    if (mine && result.alias_info() && *mine == *result.alias_info()) return args[i];
  }
  throw std::logic_error("emulation: " + schema.name() + " both writes and makes tensors");
}

void record_call(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::vector<c10::IValue> args = torch::jit::pop(*stack, schema.arguments().size());
  const auto call = [op, args] {
    torch::jit::Stack values(args);
    at::native::cpu_fallback(op, &values);
    return values;
  };
  if (schema.is_mutable()) {
    recorded([call] { call(); });
    for (const c10::Argument& result : schema.returns()) {
      stack->push_back(written(schema, result, args));
    }
    return;
  }
  for (const c10::Argument& result : schema.returns()) {
    if (!result.type()->isSubtypeOf(*c10::TensorType::get()))
      require_together("the host reads a result of " + schema.name());
  }
  for (at::Tensor& result : computed([call] {
         std::vector<at::Tensor> out;
         for (const c10::IValue& value : call()) out.push_back(value.toTensor());
         return out;
       })) {
    stack->push_back(std::move(result));
  }
}

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (recording) return record_call(op, stack);
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("resize_", &at::native::resize_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &scalar_of);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

}  // namespace

Access::Access() { memory().open(); }
Access::~Access() { memory().close(); }

void Recording::record(const std::function<void()>& body) {
  const Recorded here(this);
  body();
}

void Recording::replay() const {
  const at::AutoDispatchBelowADInplaceOrView below;  // as the operators were
  for (const auto& launch : launches_) launch();
}

bool recorded(std::function<void()> launch) {
  if (!recording) return false;
  recording->launches_.push_back(std::move(launch));
  return true;
}

void hold(const at::Tensor& memory) {
  if (recording) recording->memory_.push_back(memory);
}

// The copies that it takes are its own business.
std::vector<at::Tensor> computed(const std::function<std::vector<at::Tensor>()>& compute) {
  if (!recording) return compute();
  std::vector<at::Tensor> results, memory;
  {
    const Recorded paused(nullptr);
    results = compute();
    for (const at::Tensor& x : results) memory.push_back(x.defined() ? x.tensor_data() : x);
  }
  recorded([compute, memory] {
    const auto again = compute();
    for (size_t i = 0; i < memory.size(); ++i) {
      if (memory[i].defined()) memory[i].copy_(again[i]);
    }
  });
  return results;
}

at::Device device() { return {kType, 0}; }

std::string& failure_of_recordings() {
  static std::string text;
  return text;
}

bool& flash_was_deterministic() {
  static bool was = false;
  return was;
}

}  // namespace twinkle::kernels::emulation
