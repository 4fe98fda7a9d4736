// One Forward or ForwardBackward while it runs, in as many batches as it takes: its scored rows,
// its loss, its outputs so far, and its undo. The engine's thread.
#pragma once
#include <exception>
#include <optional>
#include <vector>

#include "twinkle/engine/protocol/operation.h"
#include "twinkle/engine/protocol/result.h"
#include "twinkle/engine/tenant.h"
#include "twinkle/loss/loss.h"

namespace twinkle::engine {

inline constexpr int32_t kIgnored = -100;  // the label of a row that is not scored

class TrainingOp {
 public:
  // Error kInvalid: the tenant can't run it, or its loss, options or extras are wrong.
  TrainingOp(int64_t id, Tenant& tenant, const Operation& operation);

  int64_t id() const { return id_; }
  Tenant& tenant() const { return *tenant_; }
  const Forward* forward() const { return forward_; }  // or null: a ForwardBackward
  const std::vector<Example>& sequences() const;
  double temperature() const;
  // Labels of the head that scores its sequences, in place of log-probabilities of labelled tokens;
  // 0: it has none.
  int64_t num_labels() const { return num_labels_; }
  int64_t num_scored(size_t first, size_t last) const { return cu_[last] - cu_[first]; }  // rows

  // True: the loss's derivative is known for any row. One that needs the whole operation's
  // log-probabilities is known after prepare().
  bool derives() const { return backward_ && grad_; }
  // True: sequences [first, last), the next ones, take a backward pass too: their derivatives are
  // known, or will be when the pass has scored them, since they are all of the operation. Others
  // take all sequences forwards first, and again from the first one.
  bool learns(size_t first, size_t last) const {
    return backward_ && (grad_ || (first == 0 && last == sequences().size()));
  }
  // d loss / d logprob of the rows that follow row `row` of the sequences from `first_sequence` on.
  void derive(size_t first_sequence, int64_t row, std::span<const float> logprobs,
              std::span<float> grad) const;
  // True: the result or the loss needs the scored rows' entropies.
  bool wants_entropy() const;
  // d loss / d entropy of the scored rows of sequences [first, last); empty: 0.
  std::span<const float> entropy_grad(size_t first, size_t last) const;

  bool wants_logits() const { return wants_logits_; }
  // True: the result needs the sequences' embeddings, or it learns through one.
  bool wants_embedding() const { return wants_embedding_; }
  // True: the result needs where every token went.
  bool wants_routes() const { return forward_ && forward_->routed_experts; }
  // True: an auxiliary loss of routed experts is differentiated too, and told.
  bool wants_aux_loss() const { return backward_ && backward_->router_aux_loss_coef > 0; }
  // Coefficient of the sequence's auxiliary loss in the differentiated sum.
  double aux_coefficient(size_t sequence) const;

  // Outputs of the sequences up to `last`, in order: of their scored rows, and others if wanted.
  struct Outputs {
    std::span<const float> logprobs, entropies;
    std::vector<std::vector<float>> logits, embeddings;
    std::vector<float> aux_losses;                     // one for each sequence
    std::vector<std::vector<int32_t>> routed_experts;  // one for each sequence
  };
  void append(Outputs part, size_t last);
  bool complete() const { return num_done_ == sequences().size(); }
  // After the last row: the loss's derivative where it was not known yet; then derives().
  void prepare();
  // The same from all rows at once, of which nothing is kept.
  void prepare(std::span<const float> logprobs, std::span<const float> entropies);
  // After the last row: the result. Error kInvalid: it is not finite.
  void finish();
  const ForwardResult& result() const& { return result_; }
  ForwardResult result() && { return std::move(result_); }

  // Before gradients are added to the tenant's: keeps what they were, once.
  void mark();
  // The tenant's gradients as before the first mark(). Everything is to run again.
  void restore();

  std::exception_ptr error;  // why it ends without a result
  bool keeps = true;         // all its forward passes so far, for their backward

 private:
  void require_labels() const;
  void begin_again();
  void finish_loss();
  void check_finite(const std::vector<std::vector<float>>& rows, const char* what) const;
  double through_rows() const;  // the loss's part through embeddings and logits
  double aux_loss() const;

  int64_t id_;
  Tenant* tenant_;
  const Forward* forward_ = nullptr;
  const ForwardBackward* backward_ = nullptr;
  bool wants_embedding_ = false, wants_logits_ = false;
  int64_t num_labels_ = 0;

  std::vector<int64_t> cu_{0};    // [S + 1] scored rows of each sequence
  std::vector<float> logprobs_;   // [N], in order, as far as it has got
  std::vector<float> entropies_;  // the same, or empty
  std::vector<std::vector<float>> logits_,
      embeddings_;                 // one for each sequence, where they are wanted
  std::vector<float> aux_losses_;  // the same
  std::vector<std::vector<int32_t>> routed_experts_;  // the same
  double aux_per_token_ = 0;                          // for aux_coefficient
  size_t num_done_ = 0;                               // sequences
  loss::Inputs inputs_;
  Json options_ = JsonObject{};
  const loss::Loss* loss_ = nullptr;
  loss::TokenGrad grad_;
  at::Tensor entropy_grad_;  // [N], or undefined: 0
  ForwardResult result_;

  bool marked_ = false;
  std::optional<Tenant::Snapshot> before_;  // none: the gradients were zero
};

}  // namespace twinkle::engine
