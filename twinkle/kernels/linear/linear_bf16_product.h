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
  const uint32_t* packed = nullptr;  // of amx_pack
};

// One way to compute it: outputs [first, last), first a multiple of `tile`.
struct Bf16Loop {
  int64_t tile;  // outputs that are best computed together
  void (*run)(const Bf16Product& p, int64_t first, int64_t last);
};

// By AVX-512's bf16 instructions, and by the tile unit; only where linear_bf16_has() them.
Bf16Loop avx512_loop(const Bf16Product& p);
Bf16Loop amx_loop(const Bf16Product& p);

// True if amx_loop reads x from p.packed, whose layout is [32 inputs][16 rows] by tiles, as many
// words as x has pairs when its rows are rounded up to 16, 64-byte aligned.
bool amx_packs(const Bf16Product& p);
void amx_pack(const Bf16Product& p, uint32_t* packed);

}  // namespace twinkle::kernels
