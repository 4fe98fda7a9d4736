#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cstring>

#include "twinkle/base/error.h"
#include "twinkle/kernels/linear/linear_bf16.h"
#include "twinkle/kernels/linear/linear_bf16_product.h"
#include "twinkle/kernels/linear/result.h"
#include "twinkle/kernels/linear/run_tiles.h"
#include "twinkle/kernels/simd/team.h"

namespace twinkle::kernels {
namespace {

// Size of the rows that are widened at a time: a head's gradients are as wide as the vocabulary.
constexpr int64_t kWidenedBytes = 4 << 20;

int64_t rows_at_a_time(int64_t inputs) {
  const int64_t rows = kWidenedBytes / (4 * inputs);
  return rows < 8 ? 8 : rows / 8 * 8;
}

inline float widen(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float out;
  std::memcpy(&out, &word, 4);
  return out;
}

// The products of inputs [begin, end) with row r and output o, each input's w `step` apart.
struct Chain {
  const uint16_t* x;
  const uint16_t* w;
  int64_t step;

  float add(int64_t i, float sum) const {
    return __builtin_fmaf(widen(x[i]), widen(w[i * step]), sum);
  }
  float by_pairs(int64_t inputs) const {
    float sum = 0;
    for (int64_t i = 0; i < inputs; i += 2) {
      if (i + 1 < inputs) sum = add(i + 1, sum);
      sum = add(i, sum);
    }
    return sum;
  }
  float by_tiles(int64_t inputs) const {
    float sum = 0;
    for (int64_t begin = 0; begin < inputs; begin += 32) {
      float parts[2] = {};
      for (int64_t i = begin; i < std::min(inputs, begin + 32); ++i)
        parts[i % 2] = add(i, parts[i % 2]);
      sum += parts[0] + parts[1];
    }
    return sum;
  }
};

template <float (Chain::*sum_of)(int64_t) const>
void portable(const Bf16Product& p, int64_t first, int64_t last) {
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t o = first; o < last; ++o) {
      const Chain chain{p.x + r * p.x_stride, p.w + (p.transposed ? o : o * p.inputs),
                        p.transposed ? p.outputs : 1};
      float sum = (chain.*sum_of)(p.inputs);
      if (p.bias) sum += widen(p.bias[o]);
      p.y[r * p.outputs + o] = c10::detail::round_to_nearest_even(sum);
    }
  }
}

Bf16Loop loop_of(LinearPath path, const Bf16Product& p) {
  switch (path) {
    case LinearPath::kTiles:
      return amx_loop(p);
    case LinearPath::kPairs:
      return avx512_loop(p);
    case LinearPath::kPortableTiles:
      return {16, portable<&Chain::by_tiles>};
    default:
      return {16, portable<&Chain::by_pairs>};
  }
}

bool packs(LinearPath path, const Bf16Product& p) {
  return (path == LinearPath::kTiles && p.rows > 1 && amx_packs(p)) ||
         (path == LinearPath::kPairs && avx512_packs(p));
}

bool has_pairs() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

// Linux lets a process use the tile registers when it has asked (arch_prctl(2)); all its threads
// may from then on.
bool has_tiles() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr long kAskForState = 0x1023, kTileData = 18;
  return has_pairs() && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
         syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
#else
  return false;
#endif
}

LinearPath best() {
  static const LinearPath path = !may_use_avx512() ? LinearPath::kRuns
                                 : has_tiles()     ? LinearPath::kTiles
                                 : has_pairs()     ? LinearPath::kPairs
                                                   : LinearPath::kRuns;
  return path;
}

bool is_matrix(const at::Tensor& weight) {
  return weight.dim() == 2 && weight.scalar_type() == at::kBFloat16 &&
         (weight.is_contiguous() || weight.t().is_contiguous());
}

void check_bf16(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  require(x.dim() == 2 && x.scalar_type() == at::kBFloat16 && x.is_contiguous() &&
              is_matrix(weight) && x.size(1) == weight.size(1),
          Code::kInvalid, "kernels: linear_bf16's x is ", x.scalar_type(), " ", x.sizes(),
          ", its weight ", weight.scalar_type(), " ", weight.sizes(),
          "; they must be contiguous bfloat16 [m, I] and [O, I]");
  require(!bias.defined() || (bias.sizes() == weight.sizes().slice(0, 1) && bias.is_contiguous() &&
                              bias.scalar_type() == at::kBFloat16),
          Code::kInvalid, "kernels: linear_bf16's bias is ", bias.scalar_type(), " ", bias.sizes(),
          ", it must be contiguous bfloat16 [", weight.size(0), "]");
}

const uint16_t* words(const at::Tensor& x) {
  return x.defined() ? reinterpret_cast<const uint16_t*>(x.const_data_ptr()) : nullptr;
}

}  // namespace

bool linear_bf16_has(LinearPath path) {
  if (path == LinearPath::kTiles) return best() == path;
  return path != LinearPath::kPairs || has_pairs();
}

std::string_view linear_bf16_best() {
  return best() == LinearPath::kTiles ? "tiles" : best() == LinearPath::kPairs ? "pairs" : "runs";
}

at::Tensor linear_bf16(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       LinearPath path) {
  check_bf16(x, weight, bias);
  require(linear_bf16_has(path), Code::kInvalid,
          "kernels: linear_bf16's path needs instructions that this processor does not have");
  const int64_t outputs = weight.size(0), inputs = weight.size(1);
  const LinearPath taken = inputs == 0                 ? LinearPath::kPortablePairs
                           : path == LinearPath::kBest ? best()
                                                       : path;
  if (taken == LinearPath::kRuns) return linear_bf16_runs(x, weight, bias);
  const bool tiles = taken == LinearPath::kTiles;
  const at::Tensor in = tiles || inputs % 2 == 0 ? x : at::constant_pad_nd(x, {0, 1});
  const int64_t rest = tiles ? inputs % 32 : 0;
  const at::Tensor x_rest =
      rest > 0 ? at::constant_pad_nd(x.narrow(1, inputs - rest, rest), {0, 32 - rest})
               : at::Tensor();
  const at::Tensor y = result(x.size(0), outputs, x.options());
  Bf16Product p{.x = words(in),
                .w = words(weight),
                .transposed = !weight.is_contiguous(),
                .bias = words(bias),
                .y = reinterpret_cast<uint16_t*>(y.mutable_data_ptr()),
                .rows = x.size(0),
                .outputs = outputs,
                .inputs = inputs,
                .x_stride = in.size(1),
                .x_rest = words(x_rest)};
  if (y.numel() == 0) return y;
  at::Tensor packed;
  if (packs(taken, p)) {
    packed = at::empty({packed_words(p)}, x.options().dtype(at::kInt));
    pack_rows(p, reinterpret_cast<uint32_t*>(packed.mutable_data_ptr()));
    p.packed = reinterpret_cast<const uint32_t*>(packed.const_data_ptr());
  }
  const Bf16Loop loop = loop_of(taken, p);
  const int64_t steps = (outputs + loop.tile - 1) / loop.tile;
  const int64_t grain = std::max<int64_t>(1, 16384 / (std::max<int64_t>(1, inputs) * loop.tile));
  parallel_for(0, steps, grain, [&](int64_t begin, int64_t end) {
    loop.run(p, begin * loop.tile, std::min(outputs, end * loop.tile));
  });
  return y;
}

at::Tensor linear_bf16_runs(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            const Simd& simd) {
  const at::Tensor y = result(x.size(0), weight.size(0), x.options());
  if (y.numel() == 0) return y;
  RunProduct<c10::BFloat16> p{
      .w = weight.const_data_ptr<c10::BFloat16>(),
      .transposed = !weight.is_contiguous(),
      .bias = bias.defined() ? bias.const_data_ptr<c10::BFloat16>() : nullptr,
      .y = y.mutable_data_ptr<c10::BFloat16>(),
      .outputs = weight.size(0),
      .inputs = weight.size(1)};
  for (int64_t row = 0; row < x.size(0); row += p.rows, p.y += p.rows * p.outputs) {
    p.rows = std::min(x.size(0) - row, rows_at_a_time(p.inputs));
    const at::Tensor wide = x.narrow(0, row, p.rows).to(at::kFloat);
    p.x = wide.const_data_ptr<float>();
    run_tiles(p, simd.linear_bf16);
  }
  return y;
}

}  // namespace twinkle::kernels
