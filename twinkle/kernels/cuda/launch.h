// The launches of the CUDA kernels over raw device pointers: what the .cu files define. No torch in
// here, so that nvcc compiles them in seconds. Every kernel computes bf16 and float32 in float32
// and float64 in float64; a row's (an element's) bits depend on it alone. Pointers are of the
// current device; nothing here allocates or waits, so a CUDA graph may hold any of it. Errors:
// Code::kInternal with CUDA's own text.
#pragma once
#include <cstdint>

struct CUstream_st;

namespace twinkle::kernels::cuda {

using Stream = CUstream_st*;
enum class Type { kBf16, kFloat, kDouble };

// x [rows, width]; weight [width] of the type that x is computed in, as eps.
struct RmsNormRows {
  const void* x;
  const void* weight;
  int64_t rows, width;
  double eps;
};
void rms_norm(Type type, const RmsNormRows& in, void* y, Stream stream);
void rms_norm_backward(Type type, const RmsNormRows& in, const void* grad, void* dx, Stream stream);
// Adds to sum [width] one partial per sequence, in order. `weight` is not read.
struct RmsNormSum {
  const void* grad;
  void* scales;            // [rows] of the computing type, to work in
  const int64_t* rows_of;  // [num_sequences + 1] counts rows
  int64_t num_sequences;
  void* sum;
};
void rms_norm_weight_grad(Type type, const RmsNormRows& in, const RmsNormSum& out, Stream stream);

// x [tokens, heads, dim] turned into y (which may be x); cos and sin [positions, half].
struct RopeRows {
  const void* x;
  const float* cos;
  const float* sin;
  const int64_t* position_ids;  // [tokens], each proved to be in the table
  int64_t tokens, heads, dim, half;
  bool backward;
};
void rope(Type type, const RopeRows& in, void* y, Stream stream);

void swiglu(Type type, const void* gate, const void* up, int64_t count, void* y, Stream stream);
// dgate and dup may be nullptr: not wanted.
struct SwigluGradOut {
  void* dgate;
  void* dup;
};
void swiglu_backward(Type type, const void* grad, const void* gate, const void* up, int64_t count,
                     const SwigluGradOut& out, Stream stream);

// Rows of logits [rows, vocab]; ids [rows]; temperature [rows] or nullptr: 1.
struct LogitRows {
  void* logits;
  const int32_t* ids;
  const float* temperature;
  int64_t rows, vocab;
};
// stats [rows, 4] of the computing type: logprob of the id, entropy, top, sum; as RowStats.
void softmax_stats(Type type, const LogitRows& in, void* stats, Stream stream);
// Row := grad * (onehot(id) - softmax(row / temperature)) / temperature, in place.
void softmax_grad(Type type, const LogitRows& in, const void* stats, const float* grad,
                  Stream stream);

}  // namespace twinkle::kernels::cuda
