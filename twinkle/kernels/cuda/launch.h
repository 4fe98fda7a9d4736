// The launches of the CUDA kernels over raw device pointers: what the .cu files define. No torch in
// here, so that nvcc compiles them in seconds. Every kernel computes bf16 and float32 in float32
// and float64 in float64; a row's (an element's) bits depend on it alone. Pointers are of the
// current device; nothing here allocates or waits, so a CUDA graph may hold any of it. Errors:
// Code::kInternal with CUDA's own text.
#pragma once
#include <cstdint>

#include "twinkle/kernels/optim/update.h"

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
  bool weight_like_x = false;  // weight is of x's type instead: where rms_norm_reads_weight()
};
bool rms_norm_reads_weight(Type type, int64_t width);
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

// x [tokens, heads, dim] rotated into y (which may be x); cos and sin [positions, half].
struct RopeRows {
  const void* x;
  const float* cos;
  const float* sin;
  const int64_t* position_ids;  // [tokens], each proved to be in the table
  int64_t tokens, heads, dim, half;
  bool backward, neighbours;
};
void rope(Type type, const RopeRows& in, void* y, Stream stream);

struct SwigluSize {
  int64_t count, width;  // elements, and those of a row
};
void swiglu(Type type, const void* gate, const void* up, const SwigluSize& size, void* y,
            Stream stream);
// dgate and dup may be nullptr: not wanted.
struct SwigluGradOut {
  void* dgate;
  void* dup;
};
void swiglu_backward(Type type, const void* grad, const void* gate, const void* up,
                     const SwigluSize& size, const SwigluGradOut& out, Stream stream);

// Rows of logits [rows, vocab]; ids [rows]; temperature [rows] or nullptr: 1.
struct LogitRows {
  void* logits;
  const int32_t* ids;
  const float* temperature;
  int64_t rows, vocab;
};
// stats [rows, 4] of the computing type: logprob of the id, entropy, top, sum; as RowStats.
void softmax_stats(Type type, const LogitRows& in, void* stats, Stream stream);
struct LogitGrads {
  const float* logprob;  // [rows] d loss / d logprob
  const float* entropy;  // [rows] d loss / d entropy, or null: 0
};
// Row := d loss / d row, in place: the formula is softmax.h's.
void softmax_grad(Type type, const LogitRows& in, const void* stats, const LogitGrads& grads,
                  Stream stream);

// One part for lora's kernels: a row of a table on the device. Factors are of the type of x,
// gradients of the computing type.
struct LoraRow {
  int64_t begin, rows;
  int64_t first;  // token of its sequence at row `begin`
  int64_t rank;
  int64_t h;            // element of h where its [rows][rank] begin
  int64_t first_block;  // tiles of kLoraTileRows rows of all the parts before
  const void* a;        // [rank][inputs]
  const void* b;        // [rank][outputs]
  double scale;
  uint64_t key;    // key of the dropout; 0: none
  uint64_t limit;  // 32 random bits below it drop
  double keep;     // factor of the others
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
// parts: [lora_shrink_parts()][size of h] float32 to work in, of which the sums of a row are added
// in order; not read where that is 1.
void lora_shrink(Type type, const LoraIn& of, void* h, int64_t size, float* parts, Stream stream);
int64_t lora_shrink_parts(Type type, int64_t width);
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

// Rows of tables on the device, one for each tensor of an optimizer's step.
struct AdamRow {
  AdamFactors factors;
  AdamArrays arrays;
  int64_t size;
  int64_t first_block;  // update_blocks() of all the rows before
};
struct SgdRow {
  SgdFactors factors;
  SgdArrays arrays;
  int64_t size, first_block;
};
struct SquaresRow {
  const float* x;
  int64_t size, first_block;
};
constexpr int64_t update_blocks(int64_t size) { return (size + 2047) / 2048; }

template <class Row>
struct UpdateTable {
  const Row* rows;
  int64_t num_rows, num_blocks;
};
void adam_update(const UpdateTable<AdamRow>& table, Stream stream);
void sgd_update(const UpdateTable<SgdRow>& table, Stream stream);
// sums [num_rows]: each tensor's, in an order that its size fixes. parts [num_blocks] to work in.
void sums_of_squares(const UpdateTable<SquaresRow>& table, double* parts, double* sums,
                     Stream stream);

// Rows of packed sequences: q [rows, heads, dim], k and v [rows, key_heads, dim]; spans [rows][2]:
// where the row's sequence begins and ends.
struct PackedRows {
  const void* q;
  const void* k;
  const void* v;
  const int64_t* spans;
  int64_t rows, heads, key_heads, dim, window;
  double scale;
};
// out as q; lse [rows, heads] of the computing type.
void attention_packed(Type type, const PackedRows& in, void* out, void* lse, Stream stream);
// A forward's inputs and results, and the gradient of its out.
struct PackedSaved {
  const void* grad;
  const void* out;
  const void* lse;
};
struct PackedGrads {
  void* q;
  void* k;
  void* v;
};
void attention_packed_backward(Type type, const PackedRows& in, const PackedSaved& saved,
                               const PackedGrads& grads, Stream stream);

// Pages of kPageTokens tokens as PagedKeys': k [pages, key_heads, dim, kPageTokens], v [pages,
// key_heads, kPageTokens, dim]. Rows as PagedRows', each proved to be in its table.
inline constexpr int64_t kPageTokens = 64;
struct PagedPlaces {
  const int32_t* tables;
  int64_t table_width;
  const int64_t* sequences;
  const int64_t* positions;
  int64_t rows;
};
struct PagedPages {
  void* k;
  void* v;
  int64_t key_heads, dim;
};
// k and v [rows, key_heads, dim].
void write_pages(Type type, const PagedPlaces& places, const PagedPages& pages, const void* k,
                 const void* v, Stream stream);

// How a row's context is shared out: by its own position alone, so that its bits depend on no other
// row.
struct PagedChunks {
  int64_t first_page, pages_each, count;
};
inline constexpr int64_t kChunkPages = 2, kMaxChunks = 32;
constexpr PagedChunks paged_chunks(int64_t position, int64_t window) {
  const int64_t first = window > 0 && position >= window ? position - window + 1 : 0;
  const int64_t pages = position / kPageTokens - first / kPageTokens + 1;
  const int64_t fewest = (pages + kMaxChunks - 1) / kMaxChunks;
  const int64_t each = fewest > kChunkPages ? fewest : kChunkPages;
  return {first / kPageTokens, each, (pages + each - 1) / each};
}

// q and out [rows, heads, dim].
struct PagedQuery {
  PagedPlaces places;
  PagedPages pages;
  const void* q;
  int64_t heads, window;
  double scale;
  // More rows than sequences, as in a prompt: then rows of a sequence may share what they read, and
  // chunks need not share out the processor. Changes no bit.
  bool rows_together = false;
};
// partial: [rows, heads, most_chunks, dim + 2] of the computing type to work in; most_chunks is
// that of any row, or more. Not read where in_one_pass().
struct PagedPartial {
  void* data;
  int64_t most_chunks;
};
void attention_paged(Type type, const PagedQuery& in, const PagedPartial& partial, void* out,
                     Stream stream);
bool attention_paged_in_one_pass(Type type, const PagedQuery& in);

}  // namespace twinkle::kernels::cuda
