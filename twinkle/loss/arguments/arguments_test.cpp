// Arguments as JSON, and the extras that losses read of them, against values written out here.
#include "twinkle/loss/arguments/arguments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "twinkle/base/error_for_test.h"
#include "twinkle/loss/arguments/old_policy.h"
#include "twinkle/loss/vectors/vectors.h"

namespace twinkle::loss {
namespace {

// Two sequences of 4 and 3 positions, of which 2 and 1 labels count.
Labels two_rows() {
  return {.labels = at::tensor({-100, 5, 6, -100, -100, 7, -100, 9}, at::kLong).reshape({2, 4}),
          .attention_mask = at::tensor({1, 1, 1, 1, 1, 1, 1, 0}, at::kLong).reshape({2, 4})};
}

Extras extras_in(const char* loss, const char* given, const char* options = "{}",
                 Labels labels = two_rows()) {
  return extras_of({.loss = loss,
                    .reader = std::string("loss: ") + loss,
                    .options = parse_json(options, "options"),
                    .given = arguments_in(parse_json(given, "given")),
                    .labels = std::move(labels)});
}

std::string refusal(const char* loss, const char* given, const char* options = "{}") {
  return invalid_of([&] { extras_in(loss, given, options); });
}

std::vector<double> values(const at::Tensor& t) {
  const at::Tensor wide = t.to(at::kDouble).contiguous();
  return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
}

using Numbers = std::vector<double>;

TEST(LossArguments, LandOnTheLabelsThatCountInEachOfTheirForms) {
  const auto old = [](const std::string& given) {
    const std::string all = R"({"advantages": [1, -2], "old_logps": )" + given + "}";
    return values(extras_in("GRPOLoss", all.c_str()).at("old_logps"));
  };
  const Numbers want = {-0.5, -1.5, -3};
  EXPECT_EQ(old("[[-0.5, -1.5], -3]"), want) << "of labels, or one number";
  EXPECT_EQ(old("[[0, -0.5, -1.5, 0], [9, -3, 9]]"), want) << "of positions";
  EXPECT_EQ(old("[[0, -0.5, -1.5, 0, 8, 8], [9, -3, 9, 8]]"), want) << "padded";
  EXPECT_EQ(old("[[[[5, -0.5], [1, -9]], [[6, -1.5]]], [[[7, -3]]]]"), want) << "as sampled";
  const Extras extras = extras_in("GRPOLoss", R"({"advantages": [1, -2], "old_logps": null})");
  ASSERT_EQ(extras.size(), 1);
  EXPECT_EQ(values(extras.at("advantages")), (Numbers{1, 1, -2}));
  EXPECT_EQ(extras.at("advantages").scalar_type(), at::kDouble);
}

TEST(LossArguments, AReferenceIsReadWhereTheOptionsAskForIt) {
  const char* given = R"({"advantages": [1, -2], "ref_outputs": {"logps": [[-1, -2], [-3]]}})";
  EXPECT_FALSE(extras_in("CISPOLoss", given).contains("ref_logps"));
  EXPECT_EQ(values(extras_in("CISPOLoss", given, R"({"beta": 0.1})").at("ref_logps")),
            (Numbers{-1, -2, -3}));
  EXPECT_EQ(values(extras_in("OPSDLoss", R"({"ref_logps": [-1, -3]})").at("teacher_logps")),
            (Numbers{-1, -1, -3}));
  const char* sums = R"({"ref_chosen_logps": [-4], "ref_rejected_logps": [[-5]]})";
  EXPECT_EQ(values(extras_in("DPOLoss", sums).at("ref_sums")), (Numbers{-4, -5}));
  EXPECT_TRUE(extras_in("DPOLoss", sums, R"({"reference_free": true})").empty());
  EXPECT_TRUE(extras_in("SimPOLoss", R"({"ref_logps": "is not read"})").empty());
  const Extras kto = extras_in("KTOLoss", R"({"desirable": [true, null], "ref_logps": [-1, -3]})");
  EXPECT_EQ(values(kto.at("desirable")), (Numbers{1, -1}));
}

TEST(LossArguments, OfHeadsAndOfVectorsHaveTheirOwnShapes) {
  EXPECT_EQ(values(extras_in("RewardLoss", R"({"margin": [0.5]})").at("margin")),
            (Numbers{0.5, 0.5}));
  EXPECT_EQ(values(extras_in("ClassificationLoss", R"({"label": [2, 0]})").at("label")),
            (Numbers{2, 0}));
  const Extras top = extras_in("GKDLoss", R"({"teacher_topk_logprobs": [[[-1, -2], [-3, -4]],
      [[-5, -6]]], "teacher_topk_indices": [[[1, 2], [3, 4]], [[5, 6]]]})");
  EXPECT_EQ(top.at("teacher_topk_logprobs").scalar_type(), at::kFloat);
  EXPECT_TRUE(top.at("teacher_topk_indices")
                  .equal(at::tensor({1, 2, 3, 4, 5, 6}, at::kLong).reshape({3, 2})));
  const Labels marks = {.labels = at::tensor({1, 0, 0, 1, 0}, at::kLong)};
  EXPECT_EQ(values(extras_in("InfonceLoss", "{}", "{}", marks).at("anchors")), (Numbers{0, 3}));
}

TEST(LossArguments, ThatDoNotFitAreNamed) {
  EXPECT_EQ(refusal("GRPOLoss", R"({"advantage": [1]})"),
            "loss: GRPOLoss takes no argument 'advantage'; it takes advantages, old_logps, "
            "ref_logps, ref_outputs");
  EXPECT_EQ(refusal("PPOLoss", "{}"),
            "loss: PPOLoss needs advantages: pass advantages=[...], one for each sequence; to "
            "score without learning call forward_only");
  EXPECT_EQ(refusal("PPOLoss", R"({"advantages": {"a": 1}})"),
            "loss: advantages is {\"a\":1}, it must be a list or tensor with an entry for each "
            "sequence");
  EXPECT_EQ(refusal("PPOLoss", R"({"advantages": [1]})"),
            "loss: advantages has 1 entries for 2 sequences, they must be equally many");
  EXPECT_EQ(refusal("PPOLoss", R"({"advantages": [[1, null], 1]})"),
            "loss: advantages of inputs[0] is [1,null], it must be a number or a list of numbers");
  EXPECT_EQ(refusal("PPOLoss", R"({"advantages": [1, [1, 2]]})"),
            "loss: advantages of inputs[1] has 2 entries, it must have one for each of its 1 "
            "labels, or for each of its 3 positions");
  EXPECT_EQ(refusal("GSPOLoss", R"({"advantages": [1, 1], "old_logps": [[[[5, -1]], [[8, -1]]],
                                    -1]})"),
            "loss: old_logps of inputs[0] has at 1 the log-probability of token 8, but the label "
            "is 6: train on the new_input_feature that came with it");
  EXPECT_EQ(refusal("DPOLoss", R"({"ref_chosen_logps": [-1]})"),
            "loss: ref_rejected_logps is missing, pass both of ref_chosen_logps and "
            "ref_rejected_logps");
  EXPECT_EQ(refusal("DPOLoss", R"({"ref_outputs": [1, 2]})"),
            "loss: ref_outputs must be what forward_only returned, with 'logps'");
  EXPECT_EQ(refusal("KTOLoss", R"({"desirable": [true, 2], "ref_logps": [-1, -3]})"),
            "loss: desirable[1] is 2, it must be True, False or None");
  EXPECT_EQ(refusal("GKDLoss", R"({"teacher_topk_logprobs": [[[-1, -2], [-3, -4]], [[-5]]],
                                   "teacher_topk_indices": [1, 2]})"),
            "loss: teacher_topk_logprobs of inputs[1] has 1 entries a label, inputs[0] has 2, they "
            "must be equally many");
  EXPECT_EQ(refusal("importance_sampling", "{}"),
            "loss: importance_sampling has no arguments of its own: pass what it reads as extras, "
            "one number for each label");
  Labels weighed = two_rows();
  weighed.loss_scale = at::full({2, 4}, 0.5);
  EXPECT_EQ(invalid_of([&] { extras_in("SimPOLoss", "{}", "{}", weighed); }),
            "loss: SimPOLoss weighs no labels, but loss_scale is 0.5 somewhere: it must be 0 or 1, "
            "or left out");
}

// A loss of the table reads extras that it declares, and numbers are options of it.
TEST(LossArguments, AreOfLossesThatThereAre) {
  std::vector<std::string_view> named, with_options;
  for (const Loss& loss : all())
    if (loss.options) with_options.push_back(loss.class_name);
  for (const VectorLoss& loss : vector_losses()) with_options.push_back(loss.class_name);
  for (const ArgumentsOf& of : all_arguments()) {
    named.push_back(of.loss);
    for (const std::string_view number : of.numbers) {
      const Json options = JsonObject{{number, 1}};
      if (const Loss* loss = look_up(of.loss))
        loss->check(options);
      else
        find_vectors(of.loss).check(options);
    }
  }
  std::ranges::sort(named);
  std::ranges::sort(with_options);
  EXPECT_EQ(named, with_options);
}

TEST(OldPolicy, IsToldWhereItIsFarFromTheOneThatLearns) {
  const auto told = [](double gap) {
    Gaps gaps;
    for (int i = 0; i < 3; ++i) gaps.add(gap - 1, -1);
    return ratio_warning(gaps);
  };
  EXPECT_EQ(ratio_warning({}), "");
  EXPECT_EQ(told(std::log(1.2)), "");
  EXPECT_EQ(told(std::log(0.85)), "");
  EXPECT_TRUE(told(std::log(1.3))
                  .starts_with("model: the ratio of the policy to old_logps is 1.3 in the mean of "
                               "this run's first batch"));
  EXPECT_FALSE(told(1000).empty()) << "an infinite ratio";
}

}  // namespace
}  // namespace twinkle::loss
