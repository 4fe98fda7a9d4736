// The language model's head: log p(target) and entropy of the rows that have a target, and their
// backward, in chunks of rows, so that the T x V matrix of logits does not exist unless it is asked
// for; rows without a target cost nothing. Adapters add to the logits as to any linear, and the sum
// is capped where the head has a softcap. Logits in
// the weight's type, probabilities in float32, their sums in float64. N scored rows, D width, V
// vocabulary; N counts targets, where a row has several.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <vector>

#include "twinkle/kernels/softmax.h"
#include "twinkle/nn/linear.h"

namespace twinkle::nn {

// The rows to score: those of a packed batch whose label is not ignored.
struct Targets {
  std::vector<int64_t> rows;       // [N] ascending; a row's targets, of which there may be several,
                                   // follow one another
  std::vector<int32_t> ids;        // [N] 0 <= id < V
  std::vector<float> temperature;  // [N] logits are divided by it, the same of a row; empty: 1
};

struct HeadOutput {
  std::vector<float> logprobs;   // [N]
  std::vector<float> entropies;  // [N] in nats, only when asked for
  at::Tensor dhidden;            // [T, D], from head_backward: d loss / d hidden
};

// Bytes of a chunk's logits: few compared with a batch's activations, yet enough rows for the
// products; on a device also for a vocabulary of 150,000.
inline constexpr int64_t kLogitBytes = int64_t{24} << 20;
inline constexpr int64_t kDeviceLogitBytes = int64_t{256} << 20;

struct HeadOptions {
  bool entropy = false;                 // HeadOutput::entropies too
  std::span<const float> entropy_grad;  // [N] d loss / d entropy, entropies then too; empty: 0
  int64_t chunk = 0;  // rows whose logits exist at a time; 0: as many as those bytes hold
};

// Given a chunk's first index in [0, N) and its log-probabilities, writes d loss / d logprob of
// each.
using TokenGrad =
    std::function<void(int64_t first, std::span<const float> logprobs, std::span<float> grad)>;

// Forward alone. hidden [T, D].
HeadOutput head_forward(const at::Tensor& hidden_TD, const Linear& head, const Targets& targets,
                        const Rows& rows, const HeadOptions& options = {});

// Forward and backward in one pass over the logits, for losses whose derivative by a token's
// log-probability is known as soon as that log-probability is. For others: head_forward, the loss,
// and this with the finished derivatives. `head` carries the trained head's gradient buffer. Where
// adapters work on the head, a chunk's end never divides a sequence that fits a chunk, and divides
// a longer one by its own rows alone: their gradients have the same bits in any company.
HeadOutput head_backward(const at::Tensor& hidden_TD, const Linear& head, const Targets& targets,
                         const TokenGrad& grad, const Rows& rows, const HeadOptions& options = {});

// The logits of rows of hidden [N, D] that are sampled from, [N, V] in the weight's type. Not
// differentiable.
at::Tensor sampling_logits(const at::Tensor& hidden_ND, const Linear& head, const Rows& rows);

// The owners of the logits, and their divisor.
struct LogitsOf {
  float temperature = 1;  // > 0
  Segment segment = {};
};

// Logits of all rows of one sequence's hidden [n, D]: `out` [n, V] float32 on the CPU. In chunks,
// so that no second n x V matrix exists.
void head_logits(const at::Tensor& hidden_nD, const Linear& head, const LogitsOf& of,
                 std::span<float> out);

// Its backward: grad [n, V] float32 on the CPU is d loss / d out. Adds to dhidden [n, D], and to
// the trained head's gradient, its bias's and its adapter's too.
void head_logits_backward(const at::Tensor& hidden_nD, const Linear& head, const LogitsOf& of,
                          std::span<const float> grad, at::Tensor dhidden_nD);

// The two halves of the above for one chunk of logits [n, V], for tests and the sampler: the
// statistics of every row, and in place, d loss / d logits; the formula is kernels/softmax.h's.
void logprobs_of(const at::Tensor& logits, std::span<const int32_t> ids,
                 std::span<const float> temperature, bool entropy,
                 std::span<kernels::RowStats> stats);
void logits_grad_(at::Tensor& logits, std::span<const int32_t> ids,
                  std::span<const float> temperature, std::span<const kernels::RowStats> stats,
                  std::span<const float> grad, std::span<const float> entropy_grad = {});

}  // namespace twinkle::nn
