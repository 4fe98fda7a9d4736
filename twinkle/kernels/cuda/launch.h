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

// What lora's kernels know of one part: a row of a table on the device. Factors and gradients are
// of the computing type.
struct LoraRow {
  int64_t begin, rows, rank;
  int64_t h;           // element of h where its [rows][rank] begin
  int64_t first_tile;  // tiles of kLoraTileRows rows of all the parts before
  const void* a;       // [rank][inputs]
  const void* b;       // [rank][outputs]
  double scale;
  uint64_t key;    // of the dropout; 0: none
  uint64_t limit;  // 32 random bits below it drop
  double keep;     // what the others are multiplied by
};
inline constexpr int64_t kLoraTileRows = 16;

struct LoraTable {
  const LoraRow* parts;
  int64_t num_parts, num_tiles;
};
enum class LoraFactor { kA, kB };  // x meets A, with dropout; y and its gradient meet B, with scale

// h := in factor^T, for in [T, width]: of x with A, of the gradient of y with B.
struct LoraIn {
  LoraTable table;
  LoraFactor factor;
  const void* in;
  int64_t width;
};
void lora_shrink(Type type, const LoraIn& of, void* h, Stream stream);
// out [T, width] += h factor: y with B, the gradient of x with A. `in` is not read.
void lora_expand(Type type, const LoraIn& of, const void* h, void* out, Stream stream);

// The gradient of one adapter's factor, and which of the table's parts it is the sum of.
struct LoraGradRow {
  int64_t first, count;  // in `order`
  void* grad;            // A: [rank][inputs], B: [outputs][rank]
};
struct LoraGrads {
  const LoraGradRow* rows;
  const int64_t* order;
  int64_t num_rows, highest_rank;
};
// Adds h^T in of each part, in `order`. A part's own sum depends on its rows alone.
void lora_outer(Type type, const LoraIn& of, const void* h, const LoraGrads& grads, Stream stream);

}  // namespace twinkle::kernels::cuda
