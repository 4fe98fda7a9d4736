// The loss of a classifier of sequences, the mean over them. problem_type, by transformers' names:
// "single_label_classification": -log softmax(logits)[label]; "regression": (score - label)^2, of a
// head of one label.
// Extra: label per sequence, a whole number from 0 where it is of a class.
#include <algorithm>
#include <cmath>

#include "twinkle/loss/options.h"
#include "twinkle/loss/rows.h"

namespace twinkle::loss {
namespace {

constexpr std::string_view kRegression = "regression";

struct Options {
  std::string problem_type = "single_label_classification";

  static constexpr auto fields() {
    return std::tuple{option("problem_type", &Options::problem_type,
                             one_of("single_label_classification", "regression"),
                             "one class of several, or a number")};
  }
};

Options parse(const Json& json) { return parsed<Options>(json, "ClassificationLoss"); }

// The loss of one sequence's logits, which it replaces by d loss / d logits.
double cross_entropy(std::span<double> logits, double label, size_t sequence) {
  require(logits.size() > 1, Code::kInvalid,
          "loss: ClassificationLoss has one label to choose from; give the adapter a head of "
          "num_labels 2 or more, or set problem_type 'regression'");
  const auto num_labels = static_cast<double>(logits.size());
  require(label >= 0 && label < num_labels && label == std::floor(label), Code::kInvalid,
          "loss: label of sequence ", sequence, " is ", label, ", it must be an integer from 0 to ",
          logits.size() - 1);
  const double top = *std::ranges::max_element(logits);
  double sum = 0;
  for (const double x : logits) sum += std::exp(x - top);
  const auto right = static_cast<size_t>(label);
  const double loss = std::log(sum) + top - logits[right];
  for (double& x : logits) x = std::exp(x - top) / sum;
  logits[right] -= 1;
  return loss;
}

double squared(std::span<double> score, double label) {
  require(score.size() == 1, Code::kInvalid,
          "loss: problem_type is 'regression', but a sequence has ", score.size(),
          " scores; give the adapter a head of num_labels 1");
  const double gap = score[0] - label;
  score[0] = 2 * gap;
  return gap * gap;
}

Output run_labels(const Inputs& in, const Json& json) {
  const Options o = parse(json);
  std::vector<double> grad = doubles(in.logprobs);
  const size_t n = in.cu_seqlens.size() - 1;
  const std::vector<double> labels = doubles(in, "label", 0);
  Output out{.num_tokens = n > 0 ? 1.0 : 0.0};
  for (size_t s = 0; s < n; ++s) {
    const auto begin = static_cast<size_t>(in.cu_seqlens[s]),
               end = static_cast<size_t>(in.cu_seqlens[s + 1]);
    const std::span<double> own = std::span(grad).subspan(begin, end - begin);
    out.loss +=
        o.problem_type == kRegression ? squared(own, labels[s]) : cross_entropy(own, labels[s], s);
  }
  out.loss /= std::max(1.0, static_cast<double>(n));
  for (double& g : grad) g /= static_cast<double>(n);
  out.grad = gradient_of(in, grad);
  return out;
}

}  // namespace

Loss classification() {
  return {.name = "classification",
          .class_name = "ClassificationLoss",
          .extras = {{.name = "label", .per_sequence = true}},
          .check = checked<parse>,
          .options = described<Options>,
          .run = run_labels,
          .doubles = true,
          .of_labels = true};
}

}  // namespace twinkle::loss
