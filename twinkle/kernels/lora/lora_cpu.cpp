#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <vector>

#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/kernels/lora/lora.h"
#include "twinkle/kernels/simd/dispatch.h"
#include "twinkle/kernels/simd/tasks.h"

namespace twinkle::kernels {
namespace {

// Rows of one task: enough to keep a factor in the cache, few enough to share a sequence out.
constexpr int64_t kTaskRows = 64;
// Multiply-adds below which a second thread costs more than it brings: some 30 microseconds, and
// one that is awake in a team, some 2.
constexpr int64_t kWorthAThread = int64_t{1} << 20, kWorthATeam = int64_t{1} << 14;

struct RowTask {
  const LoraPart* part;
  int64_t row, rows;
  int64_t h;                  // element of h where the row's begins
  const LoraFactors* next{};  // factors of the task after it, or its own
};

// Some columns of the gradient of one adapter's factor, over all of its parts.
struct ColumnTask {
  const std::vector<size_t>* parts;
  bool of_b;
  int64_t begin;
};

// How the parts of one call are shared out.
struct Plan {
  std::vector<RowTask> rows;
  std::vector<int64_t> h{0};  // [parts + 1] where each part's rows of h begin
  int64_t longest_masked = 0, highest_rank = 0, work = 0;

  Plan(std::span<const LoraPart> parts, at::ScalarType type, int64_t width);
  int64_t workers() const {
    return work < (in_team() ? kWorthATeam : kWorthAThread) ? 1 : at::get_num_threads();
  }
};

Plan::Plan(std::span<const LoraPart> parts, at::ScalarType type, int64_t width) {
  rows.reserve(parts.size());
  h.reserve(parts.size() + 1);
  for (size_t p = 0; p < parts.size(); ++p) {
    const LoraPart& part = parts[p];
    require(part.factors->b_rO.scalar_type() == type, Code::kInvalid,
            "kernels: lora's factors are not packed for rows of ", type, ": repack() them");
    const int64_t rank = part.factors->rank(), length = part.end - part.begin;
    for (int64_t row = 0; row < length; row += kTaskRows) {
      rows.push_back({&part, row, std::min(kTaskRows, length - row), h.back() + row * rank});
    }
    h.push_back(h.back() + length * rank);
    if (part.dropout.key != 0) longest_masked = std::max(longest_masked, length);
    highest_rank = std::max(highest_rank, rank);
    work += length * rank * width;
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].next = rows[std::min(i + 1, rows.size() - 1)].part->factors;
  }
}

// The parts of each adapter, in order.
using Adapters = std::vector<std::vector<size_t>>;

Adapters adapters_of(std::span<const LoraPart> parts) {
  Adapters adapters;
  for (size_t p = 0; p < parts.size(); ++p) {
    const auto same = std::find_if(adapters.begin(), adapters.end(), [&](const auto& others) {
      return parts[others[0]].factors == parts[p].factors;
    });
    if (same == adapters.end()) {
      adapters.push_back({p});
    } else {
      same->push_back(p);
    }
  }
  return adapters;
}

std::vector<ColumnTask> columns_of(std::span<const LoraPart> parts, const Adapters& adapters,
                                   bool of_b, int64_t width) {
  std::vector<ColumnTask> out;
  for (const auto& mine : adapters) {
    const bool wanted = std::any_of(mine.begin(), mine.end(), [&](size_t p) {
      return of_b ? parts[p].grad_b.defined() : parts[p].grad_a.defined();
    });
    for (int64_t begin = 0; wanted && begin < width; begin += kLoraColumns) {
      out.push_back({&mine, of_b, begin});
    }
  }
  return out;
}

// The tensors of one call.
template <class T>
struct Call {
  using A = Wide<T>;
  std::span<const LoraPart> parts;
  const Loops<T>& loops;
  const Plan& plan;
  int64_t inputs = 0, outputs = 0;
  const T* x = nullptr;
  T* y = nullptr;
  const A* h = nullptr;
  const T* dy = nullptr;
  A* dh = nullptr;
  T* dx = nullptr;

  void forward(const RowTask& task, A* to, A* scratch) const;
  void backward(const RowTask& task, A* scratch) const;
  void gradient(const ColumnTask& task, A* scratch) const;
};

// The plan has looked at the type; at::Tensor's own look costs as much as a short row's product.
template <class T>
const T* elements(const at::Tensor& factor) {
  return static_cast<const T*>(factor.const_data_ptr());
}

template <class T>
LoraRows<T> meeting_a(const RowTask& task, int64_t inputs) {
  return {.rows = task.rows,
          .width = inputs,
          .rank = task.part->factors->rank(),
          .first = task.part->first + task.row,
          .factor = elements<T>(task.part->factors->a_read()),
          .next = elements<T>(task.next->a_read()),
          .dropout = task.part->dropout};
}

template <class T>
LoraRows<T> meeting_b(const RowTask& task, int64_t outputs) {
  return {.rows = task.rows,
          .width = outputs,
          .rank = task.part->factors->rank(),
          .first = task.part->first + task.row,
          .factor = elements<T>(task.part->factors->b_rO),
          .next = elements<T>(task.next->b_rO),
          .scale = static_cast<Wide<T>>(task.part->factors->scale)};
}

template <class T>
void Call<T>::forward(const RowTask& task, A* to, A* scratch) const {
  const int64_t row = task.part->begin + task.row;
  loops.lora_shrink({meeting_a<T>(task, inputs), x + row * inputs, to + task.h}, scratch);
  loops.lora_expand({meeting_b<T>(task, outputs), to + task.h, y + row * outputs}, scratch);
}

template <class T>
void Call<T>::backward(const RowTask& task, A* scratch) const {
  const int64_t row = task.part->begin + task.row;
  loops.lora_shrink({meeting_b<T>(task, outputs), dy + row * outputs, dh + task.h}, scratch);
  if (dx == nullptr) return;
  loops.lora_expand({meeting_a<T>(task, inputs), dh + task.h, dx + row * inputs}, scratch);
}

// The columns as they are, [rank][kLoraColumns], plus each sequence's sum, and back.
template <class T>
void Call<T>::gradient(const ColumnTask& task, A* scratch) const {
  const LoraFactors& factors = *parts[task.parts->front()].factors;
  const int64_t rank = factors.rank(), width = task.of_b ? outputs : inputs;
  const int64_t learned = rank - factors.more_rank;
  const int64_t count = std::min(kLoraColumns, width - task.begin);
  A* sum = scratch;
  std::fill(sum + learned * kLoraColumns, sum + rank * kLoraColumns, A{0});
  const auto each = [&](A* grad, const auto& move) {
    for (int64_t j = 0; j < learned; ++j) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t column = task.begin + i;
        move(grad[task.of_b ? column * learned + j : j * width + column],
             sum[j * kLoraColumns + i]);
      }
    }
  };
  at::Tensor grad;
  for (const size_t p : *task.parts) {
    const LoraPart& part = parts[p];
    const at::Tensor& mine = task.of_b ? part.grad_b : part.grad_a;
    if (!mine.defined()) continue;
    if (!grad.defined()) {
      grad = mine;
      each(grad.mutable_data_ptr<A>(), [](A& from, A& to) { to = from; });
    }
    LoraRows<T> of{
        .rows = part.end - part.begin, .width = width, .rank = rank, .first = part.first};
    if (task.of_b && part.scales_grad) of.scale = static_cast<A>(part.factors->scale);
    if (!task.of_b) of.dropout = part.dropout;
    const T* in = (task.of_b ? dy : x) + part.begin * width;
    const A* left = (task.of_b ? h : dh) + plan.h[p];
    loops.lora_outer({of, left, in, task.begin, count, sum}, scratch + rank * kLoraColumns);
  }
  each(grad.mutable_data_ptr<A>(), [](A& to, A& from) { to = from; });
}

// Fused, whatever the machine: without the instruction it is the library's, which is slower.
[[gnu::target_clones("arch=x86-64-v3", "default")]] void add_scaled(float* sum, const float* part,
                                                                    float scale, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] = __builtin_fmaf(part[i], scale, sum[i]);
}

}  // namespace

void lora_add_part(at::Tensor& sum, const at::Tensor& part, double scale) {
  float* to = sum.mutable_data_ptr<float>();
  const float* from = part.const_data_ptr<float>();
  constexpr int64_t kBlock = 1 << 14;
  at::parallel_for(0, sum.numel(), kBlock, [&](int64_t begin, int64_t end) {
    add_scaled(to + begin, from + begin, static_cast<float>(scale), end - begin);
  });
}

void LoraFactors::repack(at::ScalarType type, const More& more) {
  const bool both = more_rank > 0;
  a_rI = both ? at::cat({a, more.a}).to(type) : type == a.scalar_type() ? at::Tensor() : a.to(type);
  const at::Tensor b_Or = both ? at::cat({b, more.b.neg()}, 1) : b;
  b_rO = b_Or.t().to(type, false, true, at::MemoryFormat::Contiguous);
}

void LoraFactors::refresh() {
  if (a_rI.defined()) a_rI.copy_(a);
  b_rO.copy_(b.t());
}

int64_t LoraFactors::saved_bytes(int64_t tokens) const {
  return tokens * rank() * static_cast<int64_t>(a.element_size());
}

at::Tensor lora_forward(const at::Tensor& x, std::span<const LoraPart> parts, at::Tensor& y,
                        const Simd& simd) {
  if (cuda::takes(x)) return cuda::lora_forward(x, parts, y);
  const int64_t inputs = x.size(1), outputs = y.size(1);
  return with_type(x, "lora's x", [&]<class T>(T) {
    using A = Wide<T>;
    const Plan plan(parts, x.scalar_type(), inputs + outputs);
    const at::Tensor h = at::empty({plan.h.back()}, c10::CppTypeToScalarType<A>::value);
    const Call<T> call{.parts = parts,
                       .loops = simd.loops<T>(),
                       .plan = plan,
                       .inputs = inputs,
                       .outputs = outputs,
                       .x = x.const_data_ptr<T>(),
                       .y = y.mutable_data_ptr<T>()};
    A* to = h.mutable_data_ptr<A>();
    const auto run = [&](int64_t i, A* scratch) { call.forward(plan.rows[i], to, scratch); };
    const int64_t num_rows = std::ssize(plan.rows);
    if (in_team() && plan.longest_masked == 0) {
      // Neighbours go to one thread, which asks for the next one's factors while it multiplies.
      parallel_for(0, num_rows, plan.workers() == 1 ? num_rows : 1, [&](int64_t i, int64_t end) {
        for (; i < end; ++i) run(i, nullptr);
      });
    } else {
      const int64_t scratch = lora_row_scratch(std::max(inputs, outputs));
      for_each_task<A>({num_rows, scratch, plan.workers()}, run);
    }
    return h;
  });
}

void lora_backward(const LoraSaved& saved, std::span<const LoraPart> parts, at::Tensor& dx,
                   const Simd& simd) {
  if (cuda::takes(saved.x)) return cuda::lora_backward(saved, parts, dx);
  const int64_t inputs = saved.x.size(1), outputs = saved.grad.size(1);
  with_type(saved.x, "lora's x", [&]<class T>(T) {
    using A = Wide<T>;
    const Plan plan(parts, saved.x.scalar_type(), inputs + outputs);
    const at::Tensor dh = at::empty_like(saved.h);
    const Call<T> call{.parts = parts,
                       .loops = simd.loops<T>(),
                       .plan = plan,
                       .inputs = inputs,
                       .outputs = outputs,
                       .x = saved.x.const_data_ptr<T>(),
                       .h = saved.h.const_data_ptr<A>(),
                       .dy = saved.grad.const_data_ptr<T>(),
                       .dh = dh.mutable_data_ptr<A>(),
                       .dx = dx.defined() ? dx.mutable_data_ptr<T>() : nullptr};
    const int64_t columns =
        plan.highest_rank * kLoraColumns + lora_outer_scratch(plan.longest_masked);
    const int64_t rows = lora_row_scratch(std::max(inputs, outputs)), num_rows = plan.rows.size();
    // B's gradient needs nothing of what the rows' tasks compute, A's needs all of it.
    const Adapters adapters = adapters_of(parts);
    const auto of_b = columns_of(parts, adapters, true, outputs);
    const auto of_a = columns_of(parts, adapters, false, inputs);
    for_each_task<A>({num_rows + std::ssize(of_b), std::max(rows, columns), plan.workers()},
                     [&](int64_t i, A* scratch) {
                       if (i < num_rows) return call.backward(plan.rows[i], scratch);
                       call.gradient(of_b[i - num_rows], scratch);
                     });
    for_each_task<A>({std::ssize(of_a), columns, plan.workers()},
                     [&](int64_t i, A* scratch) { call.gradient(of_a[i], scratch); });
  });
}

at::Tensor lora_dropout_mask(int64_t rows, int64_t inputs, const LoraDropout& dropout,
                             const Simd& simd) {
  at::Tensor mask = at::ones({rows, inputs}, at::kFloat);
  if (dropout.key == 0) return mask;
  float* to = mask.mutable_data_ptr<float>();
  for (int64_t t = 0; t < rows; ++t) simd.f32.lora_mask(dropout, t, 0, inputs, to + t * inputs);
  return mask;
}

}  // namespace twinkle::kernels
