#include "twinkle/optim/optimizer.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <sstream>

#include "twinkle/optim/options.h"
#include "twinkle/optim/params.h"

namespace twinkle::optim {

#define OPTIMIZER(name, function) std::unique_ptr<Optimizer> function();
#include "twinkle/optim/optimizers.def"
#undef OPTIMIZER

namespace {

constexpr int64_t kChunk = 16384;  // elements of one task: a few of them fit the cache
constexpr int64_t kMaxSteps = int64_t{1} << 53;

void check_buffer(const at::Tensor& buffer, const std::string& name, bool non_negative) {
  const float* values = buffer.const_data_ptr<float>();
  for (int64_t i = 0; i < buffer.numel(); ++i) {
    require(std::isfinite(values[i]) && (values[i] >= 0 || !non_negative), Code::kInvalid,
            "optim: the state's ", name, " holds ", values[i], ", it must be finite",
            non_negative ? " and at least 0" : "");
  }
}

}  // namespace

struct Optimizer::Target {
  const Param* param;
  Slot* slot;
  std::vector<at::Tensor> buffers;  // the slot's; when fresh, those that it is to get
  Terms terms;

  Run run(int64_t begin, int64_t size) const {
    Run out{.value = param->value.mutable_data_ptr<float>() + begin,
            .grad = param->grad.const_data_ptr<float>() + begin,
            .buffers = {nullptr, nullptr},
            .size = size,
            .terms = terms};
    for (size_t i = 0; i < buffers.size(); ++i)
      out.buffers[i] = buffers[i].mutable_data_ptr<float>() + begin;
    return out;
  }
  Whole whole() const {
    Whole out{.value = param->value, .grad = param->grad, .buffers = {}, .terms = terms};
    std::copy(buffers.begin(), buffers.end(), out.buffers);
    return out;
  }
};

Optimizer::Terms Optimizer::terms_of(const Param& param, double lr, double grad_scale) const {
  if (param.is_b) lr *= b_ratio_;
  const auto found = slots_.find(param.name);
  if (found == slots_.end()) return {lr, grad_scale, 1, true, param.decay};
  const Slot& slot = found->second;
  const bool fresh = slot.steps == 0 || (param.here && slot.buffers.size() != buffers().size());
  return {lr, grad_scale, slot.steps + 1, fresh, param.decay};
}

// Checks everything and takes the memory, so that what throws leaves values and state as they are.
std::vector<Optimizer::Target> Optimizer::targets(std::span<const Param> params, double lr,
                                                  double grad_scale) {
  const std::vector<std::string> names = buffers();
  check(params);
  require(b_ratio_ == 1 || std::ranges::any_of(params, &Param::is_b), Code::kInvalid,
          "optim: loraplus_lr_ratio is ", b_ratio_,
          ", but there is no LoRA factor B: train an adapter, or leave it out");
  for (const Param& param : params) {
    check_param(param);
    const auto slot = slots_.find(param.name);
    if (!param.grad.defined() || slot == slots_.end()) continue;
    for (const at::Tensor& buffer : slot->second.buffers)
      require(buffer.sizes() == param.value.sizes(), Code::kInvalid, "optim: state of ", param.name,
              " has shape ", buffer.sizes(), ", the parameter has ", param.value.sizes());
  }
  for (const Param& param : params) {
    if (param.grad.defined() || !param.here) check_terms(terms_of(param, lr, grad_scale));
  }
  std::vector<Target> out;
  for (const Param& param : params) {
    if (!param.grad.defined()) continue;
    Slot& slot = slots_[param.name];
    Target target{&param, &slot, {}, terms_of(param, lr, grad_scale)};
    if (!target.terms.fresh) target.buffers = slot.buffers;
    // A state that was loaded is on the CPU.
    for (at::Tensor& buffer : target.buffers) buffer = buffer.to(param.value.device());
    while (target.buffers.size() < names.size())
      target.buffers.push_back(at::zeros(param.value.sizes(), param.value.options()));
    out.push_back(std::move(target));
  }
  return out;
}

// Computes a target's update on copies.
bool Optimizer::ends_finite(const Target& target) const {
  if (is_whole(*target.param)) {
    Whole copy = target.whole();
    copy.value = copy.value.clone();
    for (at::Tensor& buffer : copy.buffers) buffer = buffer.defined() ? buffer.clone() : buffer;
    update(std::span<const Whole>(&copy, 1));
    return at::isfinite(copy.value).all().item<bool>() &&
           std::ranges::all_of(copy.buffers, [](const at::Tensor& buffer) {
             return !buffer.defined() || at::isfinite(buffer).all().item<bool>();
           });
  }
  std::atomic<bool> finite = true;
  const int64_t n = target.param->value.numel(), num_chunks = (n + kChunk - 1) / kChunk;
  at::parallel_for(0, num_chunks, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> copies(static_cast<size_t>(3 * kChunk));
    for (int64_t i = begin; i < end; ++i) {
      Run run = target.run(i * kChunk, std::min(kChunk, n - i * kChunk));
      float* next = copies.data();
      for (float** array : {&run.value, &run.buffers[0], &run.buffers[1]}) {
        if (*array == nullptr) continue;
        std::copy_n(*array, run.size, next);
        *array = std::exchange(next, next + run.size);
      }
      update(run);
      if (!std::all_of(copies.data(), next, [](float x) { return std::isfinite(x); }))
        finite = false;
    }
  });
  return finite;
}

// The first of this rank's parameters whose update would not be finite.
std::optional<Fault> Optimizer::fault_in(std::span<const Param> params,
                                         std::span<const Target> targets,
                                         double largest_grad) const {
  for (const Target& target : targets) {
    if ((!loaded_ && is_ordinary(target.terms, largest_grad)) || ends_finite(target)) continue;
    std::ostringstream text;
    text << "optim: this step of " << name() << " with lr " << target.terms.lr
         << " would leave NaN or infinity in " << target.param->name
         << " or in its state; nothing was changed: lower the lr, or clip the gradients";
    return Fault{static_cast<size_t>(target.param - params.data()), text.str()};
  }
  return std::nullopt;
}

void Optimizer::step(std::span<const Param> params, double lr, double grad_scale,
                     double largest_grad, const Peers& peers) {
  require(std::isfinite(lr) && lr >= 0, Code::kInvalid, "optim: lr is ", lr,
          ", it must be at least 0 and finite");
  require(std::isfinite(grad_scale), Code::kInvalid, "optim: grad_scale is ", grad_scale,
          ", it must be finite");
  std::vector<Run> runs;
  std::vector<Whole> wholes;
  std::vector<Target> all = targets(params, lr, grad_scale);
  std::vector<Slot*> elsewhere;
  for (const Param& param : params) {
    if (!param.here) elsewhere.push_back(&slots_[param.name]);
  }
  if (const auto fault = peers.first(fault_in(params, all, largest_grad)))
    fail(Code::kInvalid, fault->text);
  for (const Target& target : all) {
    if (is_whole(*target.param)) {
      wholes.push_back(target.whole());
      continue;
    }
    const int64_t n = target.param->value.numel();
    for (int64_t begin = 0; begin < n; begin += kChunk)
      runs.push_back(target.run(begin, std::min(kChunk, n - begin)));
  }
  if (!wholes.empty()) update(wholes);  // it may still find no memory for its table
  at::parallel_for(0, static_cast<int64_t>(runs.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) update(runs[i]);
  });
  for (Target& target : all) {
    ++target.slot->steps;
    target.slot->buffers.swap(target.buffers);
  }
  for (Slot* slot : elsewhere) ++slot->steps;
  loaded_ = false;
}

int64_t Optimizer::num_steps() const {
  int64_t most = 0;
  for (const auto& [name, slot] : slots_) most = std::max(most, slot.steps);
  return most;
}

State Optimizer::state() const {
  const std::vector<std::string> names = buffers();
  State out;
  JsonObject steps;
  for (const auto& [name, slot] : slots_) {
    if (slot.steps == 0) continue;
    steps[name] = slot.steps;
    if (slot.buffers.size() != names.size()) continue;  // options changed since its last step
    for (size_t i = 0; i < names.size(); ++i)
      out.tensors.emplace_back(name + "." + names[i], slot.buffers[i]);
  }
  out.fields = JsonObject{{"optimizer", name()}, {"steps", std::move(steps)}};
  return out;
}

std::vector<at::Tensor*> Optimizer::tensors() {
  std::vector<at::Tensor*> out;
  for (auto& [name, slot] : slots_) {
    for (at::Tensor& buffer : slot.buffers) out.push_back(&buffer);
  }
  return out;
}

void Optimizer::load(const State& state) {
  const auto kind = get<std::string>(state.fields, "optimizer");
  require(kind == name(), Code::kInvalid, "optim: the state is of ", kind, ", this optimizer is ",
          name(), ", load it into a ", kind);
  const Json* steps = find(state.fields, "steps");
  require(steps && steps->is_object(), Code::kInvalid,
          "optim: the state has no field 'steps' with the steps of each parameter");
  std::map<std::string, at::Tensor> tensors(state.tensors.begin(), state.tensors.end());
  const std::vector<std::string> names = buffers();
  std::map<std::string, Slot> slots;
  for (const auto& [key, value] : steps->get_object()) {
    const std::string param(key);
    Slot& slot = slots[param];
    slot.steps = get<int64_t>(*steps, param);
    require(slot.steps > 0 && slot.steps <= kMaxSteps, Code::kInvalid,
            "optim: the state's steps of ", param, " is ", slot.steps, ", it must be from 1 to ",
            kMaxSteps);
    for (const std::string& buffer : names) {
      const auto found = tensors.extract(param + "." + buffer);
      require(!found.empty(), Code::kInvalid, "optim: the state has no tensor ", param, ".",
              buffer);
      require(found.mapped().scalar_type() == at::kFloat, Code::kInvalid, "optim: the state's ",
              found.key(), " is ", found.mapped().scalar_type(), ", it must be Float");
      slot.buffers.push_back(found.mapped().to(at::kCPU).clone(at::MemoryFormat::Contiguous));
      check_buffer(slot.buffers.back(), found.key(), is_non_negative(buffer));
    }
  }
  require(tensors.empty(), Code::kInvalid, "optim: the state's tensor ",
          tensors.empty() ? "" : tensors.begin()->first, " belongs to no parameter of 'steps'");
  slots_ = std::move(slots);
  loaded_ = true;
}

void Optimizer::leave(const std::string& param) {
  if (const auto slot = slots_.find(param); slot != slots_.end()) slot->second.buffers.clear();
}

std::unique_ptr<Optimizer> make(std::string_view name, const Json& options) {
  static constexpr struct {
    std::string_view name;
    std::unique_ptr<Optimizer> (*make)();
  } kKnown[] = {
#define OPTIMIZER(name, function) {#name, function},
#include "twinkle/optim/optimizers.def"
#undef OPTIMIZER
  };
  std::string known;
  for (const auto& optimizer : kKnown) {
    if (optimizer.name == name) {
      std::unique_ptr<Optimizer> made = optimizer.make();
      Json rest = options;
      made->b_ratio_ = number_in(options, name, "loraplus_lr_ratio", 1);
      require(made->b_ratio_ > 0, Code::kInvalid, "optim: loraplus_lr_ratio of ", name,
              " is 0, it must be above 0");
      if (rest.is_object()) rest.get_object().erase("loraplus_lr_ratio");
      made->configure(rest);
      return made;
    }
    known += (known.empty() ? "" : ", ") + std::string(optimizer.name);
  }
  fail(Code::kInvalid, "optim: unknown optimizer '", name, "', known are ", known);
}

}  // namespace twinkle::optim
