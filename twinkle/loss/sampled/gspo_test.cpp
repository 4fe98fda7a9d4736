// Tinker's gspo against its formula, written out in float64, and against finite differences of it
// with the sequence's ratio held.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "twinkle/base/error_for_test.h"
#include "twinkle/loss/loss.h"

namespace twinkle::loss {
namespace {

constexpr int64_t kSequenceRows = 48;

Inputs sampled_sequences() {
  at::manual_seed(6);
  Inputs in{.logprobs = -at::rand({kSequenceRows}) * 6,
            .weights = at::ones({kSequenceRows}),
            .cu_seqlens = {0, 20, 20, kSequenceRows}};
  in.extras["logprobs"] = in.logprobs + at::randn({kSequenceRows}) * 0.4F;
  in.extras["logprobs"].slice(0, 0, 20) += 0.4F;  // ratios on both sides of the bounds
  in.extras["logprobs"].slice(0, 20, kSequenceRows) -= 0.4F;
  in.extras["advantages"] = at::randn({kSequenceRows});
  in.extras["sequence_ratio_mask"] = at::ones({kSequenceRows});
  in.extras["sequence_ratio_mask"].slice(0, 0, 6).zero_();  // a prompt, whose rows count as well
  return in;
}

double number(const at::Tensor& x, int64_t t) { return static_cast<double>(x[t].item<float>()); }

// mean over the masked rows of log p - logprobs.
double mean_gap(const Inputs& in, int64_t begin, int64_t end) {
  double sum = 0, count = 0;
  for (int64_t t = begin; t < end; ++t) {
    if (number(in.extras.at("sequence_ratio_mask"), t) == 0) continue;
    sum += number(in.logprobs, t) - number(in.extras.at("logprobs"), t);
    ++count;
  }
  return sum / count;
}

void expect_formula(const Inputs& in, const Json& options, double low, double high) {
  const Output out = run(find("gspo"), in, options);
  double sum = 0;
  int64_t num_clipped = 0;
  for (const auto& [begin, end] : {std::pair{0, 20}, std::pair{20, 48}}) {
    const double held = mean_gap(in, begin, end);
    for (int64_t t = begin; t < end; ++t) {
      const double lp = number(in.logprobs, t), a = number(in.extras.at("advantages"), t);
      const auto loss = [&](double x) {
        const double ratio = std::exp(held + x - lp);
        return -std::min(ratio * a, std::clamp(ratio, low, high) * a);
      };
      const double grad = (loss(lp + 1e-6) - loss(lp - 1e-6)) / 2e-6;
      sum += loss(lp);
      num_clipped += grad == 0;
      EXPECT_NEAR(number(out.grad, t), grad, 1e-6) << t;
    }
  }
  EXPECT_NEAR(out.loss, sum, 1e-9 * std::abs(sum));
  EXPECT_EQ(out.num_tokens, kSequenceRows);
  EXPECT_GT(num_clipped, 0);
  EXPECT_LT(num_clipped, kSequenceRows);
}

TEST(Gspo, IsItsFormulaWithTheBoundsOfTheRatio) {
  expect_formula(sampled_sequences(), {}, 0.8, 1.2);
  expect_formula(sampled_sequences(),
                 JsonObject{{"clip_low_threshold", 0.9}, {"clip_high_threshold", 1.05}}, 0.9, 1.05);
}

TEST(Gspo, EveryRowMayHaveBoundsOfItsOwn) {
  Inputs in = sampled_sequences();
  in.extras["clip_low_threshold"] = at::full({kSequenceRows}, 0.9F);
  in.extras["clip_high_threshold"] = at::full({kSequenceRows}, 1.125F);
  expect_formula(in, {}, static_cast<double>(0.9F), 1.125);
}

TEST(Gspo, RowsWithoutWeightCountForNothingWhateverTheyHold) {
  Inputs in = sampled_sequences();
  in.weights.slice(0, 0, kSequenceRows, 5).zero_();
  const Output clean = run(find("gspo"), in);
  in.logprobs.slice(0, 0, kSequenceRows, 5).fill_(-INFINITY);
  in.extras["advantages"].slice(0, 0, kSequenceRows, 5).fill_(NAN);
  const Output out = run(find("gspo"), in);
  EXPECT_EQ(out.loss, clean.loss);
  EXPECT_TRUE(at::equal(out.grad, clean.grad));
}

TEST(Gspo, AMaskThatMarksNothingIsRefusedByItsSequence) {
  Inputs in = sampled_sequences();
  in.extras["sequence_ratio_mask"].slice(0, 20, kSequenceRows).zero_();
  EXPECT_EQ(invalid_of([&] { run(find("gspo"), in); }),
            "loss: gspo: sequence_ratio_mask of sequence 2 is 0 everywhere; it must mark the "
            "tokens that were sampled");
  in.extras.erase("sequence_ratio_mask");
  EXPECT_EQ(invalid_of([&] { run(find("gspo"), in); }),
            "loss: gspo needs 'sequence_ratio_mask', pass it with the batch");
}

}  // namespace
}  // namespace twinkle::loss
