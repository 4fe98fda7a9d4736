#include "twinkle/engine/training/training_op.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "twinkle/base/error.h"

namespace twinkle::engine {
namespace {

at::Tensor copy_of(std::span<const float> values) {
  at::Tensor out = at::empty({std::ssize(values)}, at::kFloat);
  std::copy(values.begin(), values.end(), out.mutable_data_ptr<float>());
  return out;
}

double num_tokens_in(const std::vector<Example>& sequences) {
  double out = 0;
  for (const Example& s : sequences) out += static_cast<double>(s.input_ids.size());
  return out;
}

std::vector<std::vector<float>> spread(const std::vector<Example>& sequences,
                                       const std::vector<float>& scored) {
  std::vector<std::vector<float>> out;
  size_t next = 0;
  for (const Example& s : sequences) {
    std::vector<float> row(std::max(s.input_ids.size(), s.labels.size()), 0.0f);
    for (size_t t = 0; t < s.labels.size(); ++t) {
      if (s.labels[t] != kIgnored) row[t] = scored[next++];
    }
    out.push_back(std::move(row));
  }
  return out;
}

}  // namespace

TrainingOp::TrainingOp(int64_t id, Tenant& tenant, const Operation& operation)
    : id_(id),
      tenant_(&tenant),
      forward_(std::get_if<Forward>(&operation)),
      backward_(std::get_if<ForwardBackward>(&operation)) {
  require(forward_ || tenant.mode() != Mode::kFrozen, Code::kInvalid,
          "engine: forward_backward: tenant '", tenant.name(),
          "' is the frozen base model; add an adapter, or create it for full-parameter training");
  require(!forward_ || !forward_->disable_lora || tenant.mode() != Mode::kFull, Code::kInvalid,
          "engine: forward: disable_lora is true, but tenant '", tenant.name(),
          "' trains all weights: without an adapter the base model is the model that it trains, "
          "and no reference; take a second model of the same files, or pass the ref_logps that it "
          "gave before it was trained");
  if (!forward_) tenant.require_one_rank_of_shared("forward_backward");
  if (backward_) tenant.require_unclipped();
  std::vector<float> weights;
  std::map<std::string, std::vector<float>> extras;
  const std::string& loss = forward_ ? forward_->loss : backward_->loss;
  if (backward_ || !loss.empty()) loss_ = &loss::find(loss);
  num_labels_ = tenant.num_labels();
  require_labels();
  wants_embedding_ = forward_ && forward_->embedding;
  wants_logits_ = forward_ ? forward_->logits : backward_->logits;
  const auto of_sequence = [&](const std::string& name) {
    return loss_ && loss::per_sequence(*loss_, name);
  };
  for (const Example& s : sequences()) {
    wants_embedding_ = wants_embedding_ || (backward_ && !s.embedding_grad.empty());
    wants_logits_ = wants_logits_ || (backward_ && !s.logits_grad.empty());
    for (size_t t = 0; t < s.labels.size(); ++t) {
      if (s.labels[t] == kIgnored) continue;
      weights.push_back(s.weights.empty() ? 1.0f : s.weights[t]);
      for (const auto& [name, values] : s.extras)
        if (!of_sequence(name)) extras[name].push_back(values[t]);
    }
    for (const auto& [name, values] : s.extras)
      if (of_sequence(name)) extras[name].push_back(values[0]);
    weights.insert(weights.end(), static_cast<size_t>(num_labels_), 1.0f);
    cu_.push_back(std::ssize(weights));
  }
  if (!loss_) return;
  const auto given = [](const Example& s) {
    return !s.embedding_grad.empty() || !s.logits_grad.empty();
  };
  require(loss_->name == "linear" || std::ranges::none_of(sequences(), given), Code::kInvalid,
          "engine: loss is '", loss,
          "' for sequences with an embedding_grad or a logits_grad, which are of LinearLoss alone");
  const std::string& options = forward_ ? forward_->loss_options : backward_->loss_options;
  if (!options.empty()) options_ = parse_json(options, "loss options");
  inputs_.weights = copy_of(weights);
  inputs_.cu_seqlens = cu_;
  for (const auto& [name, values] : extras) {
    const size_t num_values = of_sequence(name) ? sequences().size() : weights.size();
    require(values.size() == num_values, Code::kInvalid, "engine: extra '", name,
            "' must be given for every sequence of a ", forward_ ? "forward" : "forward_backward",
            ", or for none");
    inputs_.extras[name] = copy_of(values);
  }
  entropy_grad_ = loss::entropy_grad(*loss_, inputs_, options_);
  if (wants_aux_loss())
    aux_per_token_ = backward_->router_aux_loss_coef * loss::num_tokens(*loss_, inputs_, options_) /
                     num_tokens_in(sequences());
  if (backward_ && loss_->separable()) grad_ = loss::prepare(*loss_, inputs_, options_);
}

// A head of labels gives a sequence num_labels logits and nothing else, and their losses need one.
void TrainingOp::require_labels() const {
  require(num_labels_ > 0 || !loss_ || !loss_->of_labels, Code::kInvalid,
          "engine: ", loss_ ? loss_->class_name : "",
          " reads what a head of labels gives, and the adapter of "
          "tenant '",
          tenant_->name(), "' has none; create one with task_type \"SEQ_CLS\" and num_labels");
  if (num_labels_ == 0) return;
  const std::string who = "the adapter of tenant '" + tenant_->name() + "' has a head of labels";
  require(!loss_ || loss_->of_labels, Code::kInvalid, "engine: loss is ",
          loss_ ? loss_->class_name : "", ", but ", who,
          ", whose losses are RewardLoss and ClassificationLoss");
  require(!forward_ || !forward_->disable_lora, Code::kInvalid,
          "engine: forward: disable_lora is true, but ", who, ", and the base model has none");
  require(temperature() == 1, Code::kInvalid, "engine: temperature is ", temperature(), ", but ",
          who, ", whose logits are not divided; leave it out");
  const bool asks =
      forward_ ? forward_->logits || forward_->entropy || forward_->embedding : backward_->logits;
  require(!asks, Code::kInvalid, "engine: logits, entropies or embeddings are asked for, but ", who,
          ", and its logits are all that it gives; leave them out");
  for (size_t s = 0; s < sequences().size(); ++s) {
    const Example& given = sequences()[s];
    require(given.labels.empty() && given.weights.empty() && given.embedding_grad.empty() &&
                given.logits_grad.empty(),
            Code::kInvalid, "engine: sequence ", s,
            " has labels, weights or gradients of its own, "
            "but ",
            who, ", which scores it as a whole; leave them out");
  }
}

const std::vector<Example>& TrainingOp::sequences() const {
  return forward_ ? forward_->sequences : backward_->sequences;
}

double TrainingOp::temperature() const {
  return forward_ ? forward_->temperature : backward_->temperature;
}

void TrainingOp::derive(size_t first_sequence, int64_t row, std::span<const float> logprobs,
                        std::span<float> grad) const {
  grad_(cu_[first_sequence] + row, logprobs, grad);
}

bool TrainingOp::wants_entropy() const {
  return (forward_ && forward_->entropy) || entropy_grad_.defined();
}

std::span<const float> TrainingOp::entropy_grad(size_t first, size_t last) const {
  if (!entropy_grad_.defined()) return {};
  const auto n = static_cast<size_t>(cu_[last] - cu_[first]);
  return {entropy_grad_.const_data_ptr<float>() + cu_[first], n};
}

// The mean by tokens of the sequences' auxiliary losses counts once for each token that a step
// divides by.
double TrainingOp::aux_coefficient(size_t sequence) const {
  return aux_per_token_ * static_cast<double>(sequences()[sequence].input_ids.size());
}

void TrainingOp::append(Outputs part, size_t last) {
  logprobs_.insert(logprobs_.end(), part.logprobs.begin(), part.logprobs.end());
  entropies_.insert(entropies_.end(), part.entropies.begin(), part.entropies.end());
  std::ranges::move(part.logits, std::back_inserter(logits_));
  std::ranges::move(part.embeddings, std::back_inserter(embeddings_));
  aux_losses_.insert(aux_losses_.end(), part.aux_losses.begin(), part.aux_losses.end());
  std::ranges::move(part.routed_experts, std::back_inserter(routed_experts_));
  num_done_ = last;
}

void TrainingOp::begin_again() {
  logprobs_.clear();
  entropies_.clear();
  logits_.clear();
  embeddings_.clear();
  aux_losses_.clear();
  routed_experts_.clear();
  num_done_ = 0;
}

void TrainingOp::prepare() {
  prepare(logprobs_, entropies_);
  begin_again();
}

void TrainingOp::prepare(std::span<const float> logprobs, std::span<const float> entropies) {
  inputs_.logprobs = copy_of(logprobs);
  inputs_.entropies = copy_of(entropies);
  const loss::Output out = loss::run(*loss_, inputs_, options_);
  const float* values = out.grad.const_data_ptr<float>();
  grad_ = [kept = out.grad, values](int64_t begin, std::span<const float>, std::span<float> grad) {
    std::copy_n(values + begin, grad.size(), grad.begin());
  };
}

double TrainingOp::through_rows() const {
  double sum = 0;
  const auto add = [&](const std::vector<float>& grad, const std::vector<float>& values) {
    double of_sequence = 0;
    for (size_t i = 0; i < grad.size(); ++i)
      of_sequence += static_cast<double>(grad[i]) * static_cast<double>(values[i]);
    sum += of_sequence;
  };
  for (size_t s = 0; s < sequences().size(); ++s) {
    if (wants_embedding_) add(sequences()[s].embedding_grad, embeddings_[s]);
    if (wants_logits_) add(sequences()[s].logits_grad, logits_[s]);
  }
  return sum;
}

double TrainingOp::aux_loss() const {
  double sum = 0;
  for (size_t s = 0; s < aux_losses_.size(); ++s)
    sum +=
        static_cast<double>(aux_losses_[s]) * static_cast<double>(sequences()[s].input_ids.size());
  return sum / num_tokens_in(sequences());
}

void TrainingOp::check_finite(const std::vector<std::vector<float>>& rows, const char* what) const {
  for (const std::vector<float>& row : rows) {
    require(std::ranges::all_of(row, [](float x) { return std::isfinite(x); }), Code::kInvalid,
            "engine: ", what, " of tenant '", tenant_->name(),
            "' is not finite; check the adapter's weights for NaN (diverged training?)");
  }
}

void TrainingOp::finish() {
  if (num_labels_ == 0) result_.logps = spread(sequences(), logprobs_);
  for (size_t s = 0; num_labels_ > 0 && s < sequences().size(); ++s)
    result_.label_logits.emplace_back(logprobs_.begin() + cu_[s], logprobs_.begin() + cu_[s + 1]);
  if (!entropies_.empty()) result_.entropies = spread(sequences(), entropies_);
  result_.num_tokens = static_cast<double>(logprobs_.size());
  for (const float logp : logprobs_) {
    require(std::isfinite(logp), Code::kInvalid, "engine: a ",
            num_labels_ > 0 ? "label's logit" : "log-probability", " of tenant '", tenant_->name(),
            "' is ", logp, "; check the adapter's weights for NaN (diverged training?)");
  }
  check_finite(embeddings_, "an embedding");
  check_finite(logits_, "a logit");
  if (loss_) finish_loss();
  if (forward_ || backward_->logits) result_.logits = std::move(logits_);
  result_.embeddings = std::move(embeddings_);
  result_.routed_experts = std::move(routed_experts_);
}

void TrainingOp::finish_loss() {
  inputs_.logprobs = copy_of(logprobs_);
  inputs_.entropies = copy_of(entropies_);
  loss::Output out = loss::run(*loss_, inputs_, options_);
  out.loss += through_rows();
  require(loss::finite(out), Code::kInvalid, "engine: the loss of tenant '", tenant_->name(),
          "' is ", out.loss,
          ": nothing was changed; look at its learning rate, its weights and its extras");
  result_.loss = out.loss;
  result_.num_tokens = out.num_tokens;
  if (wants_aux_loss()) result_.aux_loss = aux_loss();
}

void TrainingOp::mark() {
  if (marked_) return;
  if (tenant_->has_gradients()) before_ = tenant_->snapshot();
  marked_ = true;
}

void TrainingOp::restore() {
  if (marked_ && before_) tenant_->restore(std::move(*before_));
  if (marked_ && !before_) tenant_->zero_grad();
  marked_ = false;
  before_.reset();
  begin_again();
}

}  // namespace twinkle::engine
