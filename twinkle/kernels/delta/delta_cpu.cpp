#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "twinkle/kernels/delta/delta.h"
#include "twinkle/kernels/simd/dispatch.h"
#include "twinkle/kernels/simd/tasks.h"

namespace twinkle::kernels {
namespace {

void check(const DeltaInputs& in, const DeltaShape& shape) {
  require(shape.key_heads > 0 && shape.value_heads > 0 &&
              shape.value_heads % shape.key_heads == 0 && shape.key_dim > 0 && shape.value_dim > 0,
          Code::kInvalid, "kernels: delta has ", shape.value_heads, " value heads for ",
          shape.key_heads, " key heads, there must be a multiple of them");
  require(in.qkv.is_cpu(), Code::kInvalid, "kernels: delta's qkv is on ", in.qkv.device(),
          "; it runs on the CPU only");
  require(in.qkv.dim() == 2 && in.qkv.size(1) == shape.channels(), Code::kInvalid,
          "kernels: delta's qkv is ", in.qkv.sizes(), ", it must be [tokens, ", shape.channels(),
          "]");
  for (const at::Tensor* x : {&in.a, &in.b}) {
    require(x->scalar_type() == in.qkv.scalar_type() && x->dim() == 2 &&
                x->size(0) == in.qkv.size(0) && x->size(1) == shape.value_heads,
            Code::kInvalid, "kernels: delta's a or b is ", x->scalar_type(), " ", x->sizes(),
            ", it must be ", in.qkv.scalar_type(), " [", in.qkv.size(0), ", ", shape.value_heads,
            "]");
  }
  for (const at::Tensor* x : {&in.a_log, &in.dt_bias}) {
    require(x->dim() == 1 && x->size(0) == shape.value_heads, Code::kInvalid,
            "kernels: delta's a_log or dt_bias is ", x->sizes(), ", it must be [",
            shape.value_heads, "]");
  }
}

void check_lengths(const DeltaInputs& in, std::span<const int64_t> cu_seqlens) {
  require(!cu_seqlens.empty() && cu_seqlens.front() == 0 && cu_seqlens.back() == in.qkv.size(0) &&
              std::ranges::is_sorted(cu_seqlens),
          Code::kInvalid, "kernels: delta's cu_seqlens must rise from 0 to ", in.qkv.size(0),
          ", the number of tokens");
}

int64_t kept_chunks(int64_t num_tokens) {
  return std::max<int64_t>(0, (num_tokens - 1) / kDeltaChunk);
}

template <class A>
A softplus(A x) {
  return x > 20 ? x : std::log1p(std::exp(x));  // as torch's
}
template <class A>
A sigmoid(A x) {
  return 1 / (1 + std::exp(-x));
}

// The inputs as the loops read them. T is their type.
template <class T>
struct Gated {
  using A = Wide<T>;
  Gated(const DeltaInputs& in, const DeltaShape& shape)
      : shape(shape),
        qkv(in.qkv.contiguous()),
        a(in.a.contiguous()),
        b(in.b.contiguous()),
        a_log(in.a_log.to(type).contiguous()),
        dt_bias(in.dt_bias.to(type).contiguous()),
        decay(at::empty(a.sizes(), a.options().dtype(type))),
        beta(at::empty_like(decay)) {
    A *to_decay = decay.template mutable_data_ptr<A>(),
      *to_beta = beta.template mutable_data_ptr<A>();
    const T *as = a.template const_data_ptr<T>(), *bs = b.template const_data_ptr<T>();
    for_each([&](int64_t i, A rate, A bias) {
      to_decay[i] = -rate * softplus(static_cast<A>(as[i]) + bias);
      to_beta[i] = sigmoid(static_cast<A>(bs[i]));
    });
  }

  // body(element, exp(A_log), dt_bias) of [T, H].
  template <class Body>
  void for_each(const Body& body) const {
    const int64_t heads = shape.value_heads;
    const A *logs = a_log.template const_data_ptr<A>(),
            *biases = dt_bias.template const_data_ptr<A>();
    std::vector<A> rates(logs, logs + heads);
    for (A& rate : rates) rate = std::exp(rate);
    parallel_for(0, a.size(0), row_grain(64 * heads), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t h = 0; h < heads; ++h) {
          body(t * heads + h, rates[static_cast<size_t>(h)], biases[h]);
        }
      }
    });
  }

  // Rows from `row` on, for a key head.
  DeltaBlock<T> block(int64_t row, int64_t head) const {
    const int64_t channels = shape.channels(), keys = shape.key_heads * shape.key_dim;
    const T* from = qkv.template const_data_ptr<T>() + row * channels;
    const int64_t gate = row * shape.value_heads + head * shape.group();
    return {.group = shape.group(),
            .key_dim = shape.key_dim,
            .value_dim = shape.value_dim,
            .q = from + head * shape.key_dim,
            .k = from + keys + head * shape.key_dim,
            .v = from + 2 * keys + head * shape.group() * shape.value_dim,
            .stride = channels,
            .decay = decay.template const_data_ptr<A>() + gate,
            .beta = beta.template const_data_ptr<A>() + gate,
            .gate_stride = shape.value_heads,
            .out_stride = shape.value_heads * shape.value_dim};
  }
  int64_t out_offset(int64_t row, int64_t head) const {
    return (row * shape.value_heads + head * shape.group()) * shape.value_dim;
  }

  static constexpr auto type = c10::CppTypeToScalarType<A>::value;
  const DeltaShape shape;
  const at::Tensor qkv, a, b, a_log, dt_bias, decay, beta;
};

// A sequence and a key head.
struct Task {
  int64_t row, count, head, kept;  // `kept`: the sequence's first kept chunk
};

std::vector<Task> tasks_of(std::span<const int64_t> cu_seqlens, int64_t heads) {
  std::vector<Task> tasks;
  int64_t kept = 0;
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    const int64_t count = cu_seqlens[s + 1] - cu_seqlens[s];
    for (int64_t head = 0; head < heads && count > 0; ++head) {
      tasks.push_back({cu_seqlens[s], count, head, kept});
    }
    kept += kept_chunks(count);
  }
  std::ranges::stable_sort(tasks, std::ranges::greater(), &Task::count);
  return tasks;
}

// Memory of a chunk that no state holds, behind the loops' own.
template <class A>
int64_t open_size(const DeltaShape& shape) {
  return shape.key_dim * kDeltaChunk +
         shape.group() * (kDeltaChunk * padded(shape.value_dim) + 2 * kDeltaChunk);
}
template <class T>
void use_open(DeltaBlock<T>& block, Wide<T>* memory) {
  block.decays = reinterpret_cast<double*>(memory);
  memory += block.group * 2 * kDeltaChunk;
  block.u = memory;
  block.k_columns = memory + block.group * kDeltaChunk * padded(block.value_dim);
}

}  // namespace

int64_t delta_kept_bytes(const DeltaShape& shape, at::ScalarType dtype, int64_t num_tokens) {
  return kept_chunks(num_tokens) * shape.s_size() * (dtype == at::kDouble ? 8 : 4);
}

DeltaResult delta(const DeltaInputs& in, const DeltaShape& shape,
                  std::span<const int64_t> cu_seqlens, bool keep, const Simd& simd) {
  check(in, shape);
  check_lengths(in, cu_seqlens);
  DeltaResult result;
  result.out = at::empty({in.qkv.size(0), shape.value_heads, shape.value_dim}, in.qkv.options());
  with_type(in.qkv, "delta's qkv", [&]<class T>(T) {
    using A = Wide<T>;
    const Gated<T> gated(in, shape);
    int64_t chunks = 0;
    for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
      chunks += kept_chunks(cu_seqlens[s + 1] - cu_seqlens[s]);
    }
    if (keep) result.kept = at::empty({chunks, shape.s_size()}, gated.decay.options());
    A* kept = keep ? result.kept.mutable_data_ptr<A>() : nullptr;
    T* out = result.out.mutable_data_ptr<T>();
    const auto tasks = tasks_of(cu_seqlens, shape.key_heads);
    const int64_t own = delta_scratch(shape.key_dim, shape.value_dim), open = open_size<A>(shape);
    const int64_t group_size = shape.s_size() / shape.key_heads;
    for_each_task<A>({std::ssize(tasks), own + open + group_size}, [&](int64_t i, A* scratch) {
      const Task& task = tasks[static_cast<size_t>(i)];
      DeltaBlock<T> block = gated.block(task.row, task.head);
      block.count = task.count;
      block.out = out + gated.out_offset(task.row, task.head);
      use_open(block, scratch + own);
      block.s = scratch + own + open;
      block.kept_stride = shape.s_size();
      if (keep) block.kept = kept + task.kept * shape.s_size() + task.head * group_size;
      simd.loops<T>().delta_forward(block, scratch);
    });
  });
  return result;
}

DeltaGrads delta_backward(const at::Tensor& grad, const DeltaInputs& in, const DeltaShape& shape,
                          const at::Tensor& kept, std::span<const int64_t> cu_seqlens,
                          const Simd& simd) {
  check(in, shape);
  check_lengths(in, cu_seqlens);
  require(grad.numel() == in.qkv.size(0) * shape.value_heads * shape.value_dim &&
              grad.scalar_type() == in.qkv.scalar_type(),
          Code::kInvalid, "kernels: delta's gradient is ", grad.scalar_type(), " ", grad.sizes(),
          ", it must be like its output");
  const at::Tensor slope = grad.contiguous();
  DeltaGrads grads;
  with_type(in.qkv, "delta's qkv", [&]<class T>(T) {
    using A = Wide<T>;
    const Gated<T> gated(in, shape);
    grads.qkv = at::empty_like(gated.qkv);
    const at::Tensor ddecay = at::empty_like(gated.decay), dbeta = at::empty_like(gated.decay);
    const auto tasks = tasks_of(cu_seqlens, shape.key_heads);
    const int64_t own = delta_grad_scratch(shape.key_dim, shape.value_dim, shape.group());
    const int64_t group_size = shape.s_size() / shape.key_heads;
    T* to = grads.qkv.mutable_data_ptr<T>();
    for_each_task<A>({std::ssize(tasks), own}, [&](int64_t i, A* scratch) {
      const Task& task = tasks[static_cast<size_t>(i)];
      DeltaGradBlock<T> block{.forward = gated.block(task.row, task.head)};
      DeltaBlock<T>& f = block.forward;
      f.count = task.count;
      f.kept = kept.mutable_data_ptr<A>() + task.kept * shape.s_size() + task.head * group_size;
      f.kept_stride = shape.s_size();
      const T* from = gated.qkv.template const_data_ptr<T>();
      block.grad = slope.const_data_ptr<T>() + gated.out_offset(task.row, task.head);
      block.dq = to + (f.q - from), block.dk = to + (f.k - from), block.dv = to + (f.v - from);
      const int64_t gate = f.decay - gated.decay.template const_data_ptr<A>();
      block.ddecay = ddecay.mutable_data_ptr<A>() + gate;
      block.dbeta = dbeta.mutable_data_ptr<A>() + gate;
      simd.loops<T>().delta_backward(block, scratch);
    });
    grads.a_log = at::empty_like(ddecay), grads.dt_bias = at::empty_like(ddecay);
    const T* as = gated.a.template const_data_ptr<T>();
    const A *decay = gated.decay.template const_data_ptr<A>(), *dg = ddecay.const_data_ptr<A>(),
            *beta = gated.beta.template const_data_ptr<A>();
    A *log = grads.a_log.mutable_data_ptr<A>(), *bias = grads.dt_bias.mutable_data_ptr<A>(),
      *db = dbeta.mutable_data_ptr<A>();
    gated.for_each([&](int64_t i, A rate, A dt) {
      log[i] = dg[i] * decay[i];
      bias[i] = -dg[i] * rate * sigmoid(static_cast<A>(as[i]) + dt);
      db[i] *= beta[i] * (1 - beta[i]);
    });
    grads.a = grads.dt_bias.to(in.qkv.scalar_type());
    grads.b = dbeta.to(in.qkv.scalar_type());
  });
  return grads;
}

namespace {

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Offsets of a state's parts, bytes.
struct Layout {
  Layout(const DeltaShape& shape, at::ScalarType dtype) {
    const int64_t wide = dtype == at::kDouble ? 8 : 4;
    conv = aligned(shape.s_size() * wide);
    closed = conv + aligned((kConvTaps - 1) * shape.channels() *
                            static_cast<int64_t>(c10::elementSize(dtype)));
    u = closed + aligned(shape.key_heads * shape.key_dim * kDeltaChunk * wide);
    decays = u + shape.value_heads * kDeltaChunk * padded(shape.value_dim) * wide;
    size = decays + shape.value_heads * kDeltaChunk * 8;
  }
  int64_t conv, closed, u, decays, size;  // `closed`: k_columns begin there
};

}  // namespace

int64_t DeltaState::num_bytes(const DeltaShape& shape, at::ScalarType dtype) {
  return Layout(shape, dtype).size;
}
int64_t DeltaState::closed_bytes(const DeltaShape& shape, at::ScalarType dtype) {
  return Layout(shape, dtype).closed;
}
int64_t DeltaState::conv_offset(const DeltaShape& shape, at::ScalarType dtype) {
  return Layout(shape, dtype).conv;
}

at::Tensor delta_continue(const DeltaInputs& in, const DeltaShape& shape,
                          std::span<const DeltaRun> runs, const Simd& simd) {
  check(in, shape);
  int64_t rows = 0;
  for (const DeltaRun& run : runs) {
    require(
        run.count >= 0 && run.first >= 0 && run.row >= 0 && run.row + run.count <= in.qkv.size(0),
        Code::kInvalid, "kernels: delta's run of rows [", run.row, ", ", run.row + run.count,
        ") from position ", run.first, " is not among ", in.qkv.size(0), " rows");
    rows += run.count;
  }
  const auto options = in.qkv.options();
  const std::array<int64_t, 3> sizes{in.qkv.size(0), shape.value_heads, shape.value_dim};
  const at::Tensor out =
      rows == in.qkv.size(0) ? at::empty(sizes, options) : at::zeros(sizes, options);
  with_type(in.qkv, "delta's qkv", [&]<class T>(T) {
    using A = Wide<T>;
    const Gated<T> gated(in, shape);
    const Layout layout(shape, in.qkv.scalar_type());
    const int64_t group = shape.group(), group_size = shape.s_size() / shape.key_heads;
    T* to = out.mutable_data_ptr<T>();
    const int64_t count = std::ssize(runs) * shape.key_heads;
    for_each_task<A>(
        {count, delta_scratch(shape.key_dim, shape.value_dim)}, [&](int64_t i, A* scratch) {
          const DeltaRun& run = runs[static_cast<size_t>(i / shape.key_heads)];
          const int64_t head = i % shape.key_heads;
          DeltaBlock<T> block = gated.block(run.row, head);
          block.first = run.first, block.count = run.count;
          block.out = to + gated.out_offset(run.row, head);
          block.s = reinterpret_cast<A*>(run.state) + head * group_size;
          block.k_columns =
              reinterpret_cast<A*>(run.state + layout.closed) + head * shape.key_dim * kDeltaChunk;
          block.u = reinterpret_cast<A*>(run.state + layout.u) +
                    head * group * kDeltaChunk * padded(shape.value_dim);
          block.decays =
              reinterpret_cast<double*>(run.state + layout.decays) + head * group * kDeltaChunk;
          simd.loops<T>().delta_forward(block, scratch);
        });
  });
  return out;
}

}  // namespace twinkle::kernels
