// Losses of vectors against finite differences of their own values; Python's tests hold the values
// against their formulas.
#include "twinkle/loss/vectors/vectors.h"

#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"

namespace twinkle::loss {
namespace {

struct VectorCase {
  const char *name, *options;
  VectorExtras extras;
};

std::vector<VectorCase> cases() {
  at::manual_seed(4);
  const at::Tensor teacher = at::randn({7, 5}), anchors = at::tensor(std::vector<int64_t>{0, 3});
  const VectorExtras full = {{"teacher_logits", teacher}}, groups = {{"anchors", anchors}};
  const auto [values, indices] = teacher.topk(2);
  return {{"GKDLoss", R"({"chunk_size": 3})", full},
          {"GKDLoss", R"({"beta": 0, "temperature": 0.7})", full},
          {"GKDLoss", R"({"beta": 1, "topk": 3})", full},
          {"GKDLoss", "{}", {{"teacher_topk_logprobs", values}, {"teacher_topk_indices", indices}}},
          {"InfonceLoss", R"({"temperature": 0.5})", groups},
          {"InfonceLoss", R"({"use_batch": false, "hard_negatives": 3})", groups},
          {"InfonceLoss", R"({"include_qq": true, "include_dd": true})", groups}};
}

TEST(VectorLosses, HaveTheGradientsOfFiniteDifferences) {
  for (const VectorCase& c : cases()) {
    const VectorLoss& loss = find_vectors(c.name);
    const Json options = parse_json(c.options, "options");
    const at::Tensor start = at::randn({7, 5}, at::kDouble);
    const at::Tensor grad = loss.run(start, c.extras, options).grad;
    ASSERT_EQ(grad.sizes(), start.sizes());
    for (int64_t i = 0; i < start.numel(); ++i) {
      const auto moved = [&](double by) {
        at::Tensor x = start.clone();
        x.view({-1})[i] += by;
        return loss.run(x, c.extras, options).loss;
      };
      EXPECT_NEAR(grad.view({-1})[i].item<double>(), (moved(1e-6) - moved(-1e-6)) / 2e-6, 1e-7)
          << c.name << c.options << " " << i;
    }
  }
}

TEST(VectorLosses, RefuseWhatTheyCannotTake) {
  const VectorCase c = cases()[0];
  const auto text = [&](const char* options, const at::Tensor& vectors) {
    return invalid_of(
        [&] { find_vectors("GKDLoss").run(vectors, c.extras, parse_json(options, "options")); });
  };
  EXPECT_EQ(text("{}", at::zeros({7, 4})),
            "loss: teacher_logits have 5 tokens, the student's 4: both models must share a "
            "vocabulary; cut off entries that only pad it");
  EXPECT_EQ(text(R"({"topk": 6})", at::zeros({7, 5})),
            "loss: topk is 6, it must be an integer of at least 1, at most 5");
  EXPECT_EQ(text(R"({"beta": 2})", at::zeros({7, 5})),
            "loss: beta is 2, it must be a number of at least 0, at most 1");
}

}  // namespace
}  // namespace twinkle::loss
