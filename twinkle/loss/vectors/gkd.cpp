// Generalized knowledge distillation (Agarwal et al. 2023, arXiv 2306.13649): a divergence of a
// student S, whose logits the vectors [N, V] are, and a teacher T, the mean over rows. beta 0:
// KL(T || S); beta 1: KL(S || T); between them beta KL(T || M) + (1 - beta) KL(S || M) with the
// mixture M = beta T + (1 - beta) S.
// Extras: teacher_logits [N, V] float32, of which topk leaves the K largest; or
// teacher_topk_logprobs [N, K] float32 and teacher_topk_indices [N, K] int64. K tokens are
// renormalised. Options: beta (0.5), temperature (1), chunk_size (512) rows at a time, topk.
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "twinkle/loss/options.h"
#include "twinkle/loss/vectors/vectors.h"

namespace twinkle::loss {
namespace {

struct Options {
  double beta = 0.5, temperature = 1;
  int64_t chunk_size = 512;
  int64_t topk = 0;  // 0: all

  static constexpr auto fields() {
    return std::tuple{option("beta", &Options::beta, between(0, 1), "0: KL(T || S); 1: KL(S || T)"),
                      option("temperature", &Options::temperature, above(0), "of both"),
                      option("chunk_size", &Options::chunk_size, at_least(1), "rows at a time"),
                      option("topk", &Options::topk, at_least(1), "of the teacher's logits [all]")};
  }
};

Options parse(const Json& json) { return parsed<Options>(json, "GKDLoss"); }

// KL(P || Q) of log-probabilities [N, K], the sum over rows; 0 where P is 0.
at::Tensor kl(const at::Tensor& p, const at::Tensor& q) {
  return (p.exp() * (p - q).masked_fill(p.isneginf(), 0.0)).sum();
}

// The loss of logits [N, K], summed over rows.
at::Tensor divergence(const at::Tensor& student, const at::Tensor& teacher, const Options& o) {
  const at::Tensor s = at::log_softmax(student.to(at::kDouble) / o.temperature, -1);
  const at::Tensor t = at::log_softmax(teacher.to(at::kDouble) / o.temperature, -1);
  if (o.beta == 0) return kl(t, s);
  if (o.beta == 1) return kl(s, t);
  const at::Tensor weights = at::tensor({o.beta, 1 - o.beta}, at::kDouble);
  const at::Tensor mixture = at::logsumexp(at::stack({t, s}, -1) + weights.log(), -1);
  return o.beta * kl(t, mixture) + (1 - o.beta) * kl(s, mixture);
}

struct Teacher {
  at::Tensor logits;   // [N, V], or [N, K] of the tokens `indices`
  at::Tensor indices;  // [N, K] int64, or undefined
};

Teacher given_teacher(const VectorExtras& extras, int64_t vocabulary) {
  const at::Tensor &logprobs = extras.at("teacher_topk_logprobs"),
                   &indices = extras.at("teacher_topk_indices");
  require(logprobs.sizes() == indices.sizes(), Code::kInvalid, "loss: teacher_topk_logprobs have ",
          logprobs.size(1), " entries a label, teacher_topk_indices ", indices.size(1),
          ", they must be equally many");
  const at::Tensor odd = indices.masked_select((indices < 0).logical_or(indices >= vocabulary));
  require(odd.numel() == 0, Code::kInvalid, "loss: teacher_topk_indices has [",
          odd.numel() ? odd[0].item<int64_t>() : 0, "], it must be a token of the student's ",
          vocabulary);
  return {logprobs, indices};
}

Teacher teacher_of(const VectorExtras& extras, int64_t vocabulary, const Options& o) {
  const auto logits = extras.find("teacher_logits");
  if (logits == extras.end()) return given_teacher(extras, vocabulary);
  require(logits->second.size(1) == vocabulary, Code::kInvalid, "loss: teacher_logits have ",
          logits->second.size(1), " tokens, the student's ", vocabulary,
          ": both models must share a vocabulary; cut off entries that only pad it");
  require(o.topk <= vocabulary, Code::kInvalid, "loss: topk is ", o.topk,
          ", it must be an integer of at least 1, at most ", vocabulary);
  if (o.topk == 0) return {logits->second, {}};
  const auto [values, indices] = logits->second.topk(o.topk);
  return {values, indices};
}

OfVectors run(const at::Tensor& vectors, const VectorExtras& extras, const Json& json) {
  const Options o = parse(json);
  const int64_t rows = vectors.size(0);
  const Teacher teacher = teacher_of(extras, vectors.size(1), o);
  require(o.beta < 1 || !teacher.logits.isneginf().any().item<bool>(), Code::kInvalid,
          "loss: beta is 1, KL(S || T), which is infinite where the teacher has -inf: use a beta "
          "below 1, or finite logits");
  OfVectors out{.grad = at::empty_like(vectors)};
  const at::AutoGradMode enabled(true);
  const at::Tensor each = at::scalar_tensor(1.0 / static_cast<double>(rows), at::kDouble);
  double total = 0;
  for (int64_t begin = 0; begin < rows; begin += o.chunk_size) {
    const int64_t end = std::min(begin + o.chunk_size, rows);
    const at::Tensor part = vectors.slice(0, begin, end).detach().requires_grad_(true);
    const at::Tensor student =
        teacher.indices.defined() ? part.gather(-1, teacher.indices.slice(0, begin, end)) : part;
    const at::Tensor loss = divergence(student, teacher.logits.slice(0, begin, end), o);
    total += loss.item<double>();
    out.grad.slice(0, begin, end).copy_(torch::autograd::grad({loss}, {part}, {each}).at(0));
  }
  out.loss = total / static_cast<double>(rows);
  return out;
}

}  // namespace

VectorLoss gkd() {
  return {
      .class_name = "GKDLoss", .options = described<Options>, .check = checked<parse>, .run = run};
}

}  // namespace twinkle::loss
