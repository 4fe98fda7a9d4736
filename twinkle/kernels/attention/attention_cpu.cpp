#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <numeric>

#include "twinkle/kernels/attention/attention.h"
#include "twinkle/kernels/attention/attention_sinks.h"
#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/kernels/simd/dispatch.h"
#include "twinkle/kernels/simd/tasks.h"

namespace twinkle::kernels {
namespace {

// Some of the query rows of one sequence, for one key head.
struct Task {
  int64_t start;   // row of the sequence's position 0
  int64_t length;  // tokens of the sequence
  int64_t first;   // position of the block's first query
  int64_t head;    // key head
};

void check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
           std::span<const int64_t> cu_seqlens, const AttentionOptions& options) {
  require(q.dim() == 3 && k.dim() == 3 && q.size(0) == k.size(0) && q.size(2) == k.size(2) &&
              k.size(1) > 0 && q.size(1) % k.size(1) == 0 && q.scalar_type() == k.scalar_type(),
          Code::kInvalid, "kernels: attention's q is ", q.scalar_type(), " ", q.sizes(),
          " and its k ", k.scalar_type(), " ", k.sizes(),
          ", they must be [tokens, heads, head_dim] of one type, q's heads a multiple of k's");
  require_like(v, "attention's v", k, "k");
  require(options.window >= 0, Code::kInvalid, "kernels: attention's window is ", options.window,
          ", it must be at least 1 token, or 0 for none");
  require(options.softcap >= 0, Code::kInvalid, "kernels: attention's softcap is ", options.softcap,
          ", it must be above 0, or 0 for none");
  require(!cu_seqlens.empty() && cu_seqlens.front() == 0 && cu_seqlens.back() == q.size(0) &&
              std::is_sorted(cu_seqlens.begin(), cu_seqlens.end()),
          Code::kInvalid, "kernels: attention's cu_seqlens must rise from 0 to ", q.size(0),
          ", the number of tokens");
  check_sinks(q, options.sinks);
}

AttentionShape shape_of(const at::Tensor& q, const at::Tensor& k, const AttentionOptions& options) {
  return {.group = q.size(1) / k.size(1),
          .head_dim = q.size(2),
          .scale = options.scale,
          .window = options.window,
          .softcap = options.softcap};
}

// Blocks of `step` positions; the last ones, which see the most keys, first.
std::vector<Task> tasks_of(std::span<const int64_t> cu_seqlens, int64_t heads, int64_t step) {
  std::vector<Task> tasks;
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    const int64_t length = cu_seqlens[s + 1] - cu_seqlens[s];
    if (length == 0) continue;
    const int64_t size = step == 0 ? length : step;
    for (int64_t first = (length - 1) / size * size; first >= 0; first -= size) {
      for (int64_t head = 0; head < heads; ++head) {
        tasks.push_back({cu_seqlens[s], length, first, head});
      }
    }
  }
  return tasks;
}

template <class T>
KeyTiles<T> keys_of(const at::Tensor& k, const at::Tensor& v, const Task& task) {
  const int64_t stride = k.size(1) * k.size(2);
  const int64_t offset = task.start * stride + task.head * k.size(2);
  return {.k = k.const_data_ptr<T>() + offset,
          .v = v.const_data_ptr<T>() + offset,
          .stride = stride,
          .num_keys = task.length};
}

// Null for a gradient that is not wanted.
template <class T>
T* rows_of(const at::Tensor& x, int64_t offset) {
  return x.defined() ? x.mutable_data_ptr<T>() + offset : nullptr;
}

}  // namespace

AttentionResult attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          std::span<const int64_t> cu_seqlens, const AttentionOptions& options,
                          const Simd& simd) {
  check(q, k, v, cu_seqlens, options);
  if (cuda::takes(q)) return cuda::attention(q, k, v, cu_seqlens, options);
  const at::Tensor sinks = wide_sinks(q, options.sinks);
  const at::Tensor qc = q.contiguous(), kc = k.contiguous(), vc = v.contiguous();
  AttentionResult result{.out = at::empty_like(qc), .lse = {}};
  const AttentionShape shape = shape_of(q, k, options);
  const int64_t step = block_positions(shape.group), heads = q.size(1);
  const auto tasks = tasks_of(cu_seqlens, k.size(1), step);
  std::vector<int64_t> positions(q.size(0));
  std::iota(positions.begin(), positions.end(), 0);
  with_type(q, "attention's q", [&]<class T>(T) {
    using A = Wide<T>;
    result.lse = at::empty({q.size(0), heads}, c10::CppTypeToScalarType<A>::value);
    const T* from = qc.const_data_ptr<T>();
    T* to = result.out.mutable_data_ptr<T>();
    A* lse = result.lse.mutable_data_ptr<A>();
    for_each_task<A>({std::ssize(tasks), forward_scratch(shape)}, [&](int64_t i, A* scratch) {
      const Task& task = tasks[i];
      const int64_t row = (task.start + task.first) * heads + task.head * shape.group;
      simd.loops<T>().attention_forward({.shape = shape,
                                         .keys = keys_of<T>(kc, vc, task),
                                         .q = from + row * shape.head_dim,
                                         .q_stride = heads * shape.head_dim,
                                         .num_positions = std::min(step, task.length - task.first),
                                         .positions = positions.data() + task.first,
                                         .out = to + row * shape.head_dim,
                                         .lse = lse + row,
                                         .lse_stride = heads,
                                         .sinks = sinks_of<A>(sinks, task.head * shape.group)},
                                        scratch);
    });
  });
  return result;
}

AttentionGrads attention_backward(const AttentionSaved& saved, std::span<const int64_t> cu_seqlens,
                                  const AttentionOptions& options, const AttentionNeeds& needs,
                                  const Simd& simd) {
  const auto& [grad, q, k, v, forward] = saved;
  check(q, k, v, cu_seqlens, options);
  require_like(grad, "attention's gradient", q, "q");
  if (cuda::takes(q)) return cuda::attention_backward(saved, cu_seqlens, options, needs);
  const at::Tensor qc = q.contiguous(), kc = k.contiguous(), vc = v.contiguous();
  const at::Tensor gc = grad.contiguous(), lse = forward.lse, out = forward.out;
  AttentionGrads grads;
  if (needs.q) grads.q = at::empty_like(qc);
  if (needs.k) grads.k = at::empty_like(kc);
  if (needs.v) grads.v = at::empty_like(vc);
  const AttentionShape shape = shape_of(q, k, options);
  const int64_t heads = q.size(1);
  const auto tasks = tasks_of(cu_seqlens, k.size(1), 0);
  int64_t longest = 0;
  for (const Task& task : tasks) longest = std::max(longest, task.length);
  with_type(q, "attention's q", [&]<class T>(T) {
    using A = Wide<T>;
    for_each_task<A>({std::ssize(tasks), backward_scratch(shape, longest)}, [&](int64_t i,
                                                                                A* scratch) {
      const Task& task = tasks[i];
      const int64_t row = task.start * heads + task.head * shape.group, at = row * shape.head_dim;
      const auto keys = keys_of<T>(kc, vc, task);
      const int64_t key = keys.k - kc.const_data_ptr<T>();
      simd.loops<T>().attention_backward({.shape = shape,
                                          .keys = keys,
                                          .q = qc.const_data_ptr<T>() + at,
                                          .out = out.const_data_ptr<T>() + at,
                                          .grad_out = gc.const_data_ptr<T>() + at,
                                          .q_stride = heads * shape.head_dim,
                                          .lse = lse.const_data_ptr<A>() + row,
                                          .lse_stride = heads,
                                          .dq = rows_of<T>(grads.q, at),
                                          .dk = rows_of<T>(grads.k, key),
                                          .dv = rows_of<T>(grads.v, key)},
                                         scratch);
    });
  });
  return grads;
}

}  // namespace twinkle::kernels
