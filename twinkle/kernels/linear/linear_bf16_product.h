// Operands of linear_bf16's loops. Pointers only; the op owns the tensors. Internal to this folder.
#pragma once
#include <cstdint>

namespace twinkle::kernels {

struct Bf16Product {
  const uint16_t* x;  // [rows][x_stride]
  const uint16_t* w;  // [outputs][inputs], or [inputs][outputs] when transposed
  bool transposed;
  const uint16_t* bias;  // [outputs] or null
  uint16_t* y;           // [rows][outputs]
  int64_t rows, outputs, inputs;
  int64_t x_stride;  // elements; by pairs at least the inputs rounded up to one, zeros behind them
  const uint16_t* x_rest =
      nullptr;  // by tiles [rows][32]: the inputs beyond the last 32, and zeros
  const uint32_t* packed = nullptr;  // from pack_rows
};

// One way to compute it: outputs [first, last), first a multiple of `tile`.
struct Bf16Loop {
  int64_t tile;  // outputs that are best computed together
  void (*run)(const Bf16Product& p, int64_t first, int64_t last);
};

// By AVX-512's bf16 instructions, and by the tile unit; only where linear_bf16_has() them.
Bf16Loop avx512_loop(const Bf16Product& p);
Bf16Loop amx_loop(const Bf16Product& p);

// True if the loop reads x from p.packed, a multiple of 32 inputs.
bool avx512_packs(const Bf16Product& p);
bool amx_packs(const Bf16Product& p);
// x as [inputs / 32][rows / 16][16 pairs][16 rows], zeros behind its rows, 64-byte aligned:
// packed_words(p) of them.
void pack_rows(const Bf16Product& p, uint32_t* packed);
inline int64_t packed_words(const Bf16Product& p) { return (p.rows + 15) / 16 * 16 * p.inputs / 2; }

}  // namespace twinkle::kernels
