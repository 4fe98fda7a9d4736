#include "twinkle/server/tinker/modelscope.h"

#include <gtest/gtest.h>

#include "twinkle/base/error.h"

namespace twinkle::server::tinker {
namespace {

ForwardBackwardRequest with_reference(LossConfig config) {
  const Tensor reference{.shape = {1}, .values = std::vector<float>{-1}};
  return {.data = {{.tokens = {3}, .loss_fn_inputs = {{"ref_logps", reference}}}},
          .loss_fn = "importance_sampling",
          .loss_fn_config = std::move(config)};
}

TEST(ModelScope, ImportanceSamplingWithAReferenceIsDpoWithItsOptions) {
  ForwardBackwardRequest request =
      with_reference({{"dpo_beta", 0.5}, {"dpo_loss_type", std::string("ipo")}, {"other", 1.0}});
  translate(request);
  EXPECT_EQ(request.loss_fn, "DPOLoss");
  const LossConfig want{{"beta", 0.5}, {"loss_type", std::string("ipo")}, {"other", 1.0}};
  EXPECT_EQ(request.loss_fn_config, want);
}

TEST(ModelScope, OtherRequestsStayAsTheyAre) {
  ForwardBackwardRequest without = with_reference({{"dpo_beta", 0.5}});
  without.data[0].loss_fn_inputs.clear();
  ForwardBackwardRequest other = with_reference({{"dpo_beta", 0.5}});
  other.loss_fn = "ppo";
  for (const ForwardBackwardRequest& request : {without, other}) {
    ForwardBackwardRequest translated = request;
    translate(translated);
    EXPECT_EQ(translated, request);
  }
}

TEST(ModelScope, DisableLoraIsOfARequestWithoutGradients) {
  for (const double flag : {0.0, 1.0}) {
    ForwardBackwardRequest request{.loss_fn_config = {{"disable_lora", flag}}};
    translate(request);
    EXPECT_TRUE(request.loss_fn_config.contains("disable_lora") && !request.disable_lora);
    request.forward_only = true;
    translate(request);
    EXPECT_TRUE(request.loss_fn_config.empty());
    EXPECT_EQ(request.disable_lora, flag == 1);
  }
  const std::variant<double, std::string> wrong[] = {0.5, std::string("yes")};
  for (const auto& value : wrong) {
    ForwardBackwardRequest request{.loss_fn_config = {{"disable_lora", value}},
                                   .forward_only = true};
    try {
      translate(request);
      FAIL();
    } catch (const Error& e) {
      EXPECT_STREQ(e.what(), "server: loss_fn_config.disable_lora must be true or false");
    }
  }
}

}  // namespace
}  // namespace twinkle::server::tinker
