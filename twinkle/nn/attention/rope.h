// Rotary position embedding (Su et al. 2021) in the rotate-half or the interleaved layout, with the
// frequency rules that transformers calls default, linear, yarn, llama3 and longrope. Parsing
// config.json is the model folder's business. T tokens, H query heads, K key heads, d head size.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace twinkle::nn {

enum class RopeKind { kDefault, kLinear, kYarn, kLlama3, kLongRope };

struct RopeSpec {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000;      // base of the wavelengths
  int64_t rotary_dim = 0;    // leading dims of a head that turn, even; 0: all of them
  bool interleaved = false;  // dims 2i and 2i + 1 turn together, not i and i + rotary_dim / 2
  double factor = 1;         // how many times longer than in pre-training; all but kDefault
  int64_t original_max_position = 0;  // tokens in pre-training; kYarn and kLlama3
  double low_freq_factor = 1;   // kLlama3: wavelengths above original / low are divided by factor
  double high_freq_factor = 4;  // kLlama3: wavelengths below original / high stay
  double beta_fast = 32;        // kYarn: dims turning more often than this stay
  double beta_slow = 1;         // kYarn: dims turning less often than this are divided by factor
  bool truncate = true;         // kYarn: round the correction range outwards to whole dims
  // kYarn and kLongRope: multiplies cos and sin; default 0.1 ln(factor) + 1, or
  // sqrt(1 + ln(factor) / ln(original))
  std::optional<double> attention_factor;
  std::optional<double> mscale;  // kYarn: with mscale_all_dim, another default for the above
  std::optional<double> mscale_all_dim;
  // kLongRope: what divides each pair's frequency, in sequences of at most original_max_position
  // tokens and in longer ones. [rotary_dim / 2]
  std::vector<double> short_factor = {}, long_factor = {};

  // The table's row of position 0 of a sequence that is, or is to become, so long: the rows of long
  // sequences stand behind those of short ones, and other kinds have one for all.
  int64_t first_row(int64_t length) const {
    const bool is_long = kind == RopeKind::kLongRope && length > original_max_position;
    return is_long ? original_max_position : 0;
  }
  // The table's rows with which sequences of up to so many tokens go.
  int64_t num_rows(int64_t length) const { return first_row(length) + length; }
};

struct RopeTable {
  at::Tensor cos;  // [rows, rotary_dim / 2] float32, with the attention factor
  at::Tensor sin;  // same
  bool interleaved = false;

  int64_t num_rows() const { return cos.size(0); }
  int64_t rotary_dim() const { return 2 * cos.size(1); }
};

// Equal to transformers 5 in float32. Row i is position i, but for longrope's (first_row). Invalid
// sizes and factors are errors.
RopeTable make_rope_table(const RopeSpec& spec, int64_t head_dim, int64_t num_rows);

// q [T, H, d] and k [T, K, d] rotated by position_ids [T] (int32 or int64), which are rows of the
// table.
// Differentiable.
std::pair<at::Tensor, at::Tensor> apply_rope(const at::Tensor& q_THd, const at::Tensor& k_TKd,
                                             const RopeTable& table,
                                             const at::Tensor& position_ids);

}  // namespace twinkle::nn
