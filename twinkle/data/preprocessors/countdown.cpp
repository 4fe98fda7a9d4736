// Countdown: reach a target number from given numbers, each used once. Both are kept for the
// reward, as pairs.
#include "twinkle/data/preprocessors/preprocessor.h"

namespace twinkle::data {
namespace {

const Json& field(const Row& row, std::string_view name) {
  const Json* value = row.if_contains(name);
  require(value && !value->is_null(), Code::kInvalid, "data: field '", name, "' is missing");
  return *value;
}

Row prompt(const Row& row) {
  const Json& nums = field(row, "nums");
  const Json& target = field(row, row.contains("response") ? "response" : "target");
  require(nums.is_array() && !nums.get_array().empty(), Code::kInvalid, "data: field 'nums' is ",
          boost::json::serialize(nums).substr(0, 80), ", expected a list of numbers");
  std::string listed;
  for (const Json& num : nums.get_array()) {
    require(num.is_number(), Code::kInvalid, "data: field 'nums' holds ",
            boost::json::serialize(num).substr(0, 80), ", expected numbers");
    listed += (listed.empty() ? "" : ", ") + boost::json::serialize(num);
  }
  require(target.is_number(), Code::kInvalid, "data: field 'target' is ",
          boost::json::serialize(target).substr(0, 80), ", expected a number");
  const std::string question =
      "Write an equation that makes " + boost::json::serialize(target) + " from the numbers [" +
      listed +
      "] with +, -, * and /. Use each number at most once. Think between <think> and </think>, "
      "then give the "
      "equation between <answer> and </answer>, for example <answer>(1 + 2) / 3</answer>.";
  return {{"messages", JsonArray{message("system",
                                         "You are a helpful assistant. You think a problem through "
                                         "before you answer."),
                                 message("user", question)}},
          {"user_data", JsonArray{JsonArray{"target", target}, JsonArray{"nums", nums}}}};
}

}  // namespace

PreprocessorKind countdown() {
  return {.name = "CountdownProcessor",
          .defaults = {},
          .make = [](const JsonObject&) -> Preprocessor { return prompt; },
          .not_for_tuning = "it makes prompts without replies, for reinforcement learning"};
}

}  // namespace twinkle::data
