// What the loops of linear_bf16 work on. Pointers only; the op owns the tensors. Internal to this
// folder.
#pragma once
#include <cstdint>

namespace twinkle::kernels {

struct Bf16Product {
  const uint16_t* x;  // [rows][x_stride]: zero from the inputs on
  const uint16_t* w;  // [outputs][inputs], or [inputs][outputs] when transposed
  bool transposed;
  const uint16_t* bias;  // [outputs] or null
  uint16_t* y;           // [rows][outputs]
  int64_t rows, outputs, inputs;
  int64_t x_stride;  // elements, at least the inputs rounded up to a pair
};

// One way to compute it: outputs [first, last), first a multiple of `tile`.
struct Bf16Loop {
  int64_t tile;  // outputs that are best computed together
  void (*run)(const Bf16Product& p, int64_t first, int64_t last);
};

// For AVX-512 with bf16 instructions; only where linear_bf16_is_fast().
Bf16Loop avx512_loop(const Bf16Product& p);

}  // namespace twinkle::kernels
