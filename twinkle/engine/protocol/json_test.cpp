#include "twinkle/engine/protocol/json.h"

#include <gtest/gtest.h>

#include "twinkle/engine/protocol/drawn_for_test.h"
#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle::engine {
namespace {

TEST(OperationsAsJson, EveryOperationAndEveryResultComesBackWithEveryField) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    for (size_t kind = 0; kind < std::variant_size_v<Operation>; ++kind) {
      const auto operation = Draw(key_of(seed, kind), Draw::kAscii).any<Operation>(kind);
      const std::string text = boost::json::serialize(to_json(operation));
      ASSERT_TRUE(operation_from_json(parse_json(text, "it")) == operation) << text;
    }
    for (size_t kind = 0; kind < std::variant_size_v<Result>; ++kind) {
      const auto result = Draw(key_of(seed, kind), Draw::kAscii).any<Result>(kind);
      const std::string text = boost::json::serialize(to_json(result));
      ASSERT_TRUE(result_from_json(parse_json(text, "it")) == result) << text;
    }
  }
}

TEST(OperationsAsJson, WhatIsAbsentKeepsItsDefault) {
  const Operation step = operation_from_json(parse_json(R"({"step": {"tenant": "ann"}})", "it"));
  EXPECT_TRUE(step == Operation(Step{.tenant = "ann"}));
}

TEST(OperationsAsJson, WhatIsWrongIsSaidWithItsPlace) {
  const auto text = [](std::string_view json) {
    return error_of([&] { operation_from_json(parse_json(json, "it")); });
  };
  EXPECT_EQ(text("3"),
            "engine: operation as JSON is not an object of its kind alone, such as {\"step\": "
            "{\"tenant\": \"a\"}}");
  EXPECT_EQ(text(R"({"fly": {}})"),
            "engine: operation 'fly' is unknown, the last of the kinds is 'replace_weights'");
  EXPECT_EQ(text(R"({"release": {"verse": 1}})"),
            "engine: release: 'verse' is not a field, it has tenant and version");
  EXPECT_EQ(text(R"({"release": {"version": 1.5}})"),
            "engine: release: version is 1.5E0, it must be an integer from -9223372036854775808 to "
            "9223372036854775807");
  EXPECT_EQ(text(R"({"create": {"seed": -1}})"),
            "engine: create: seed is -1, it must be an integer from 0 to 18446744073709551615");
  EXPECT_EQ(text(R"({"forward": {"sequences": [{}, {"labels": [1, "x"]}]}})"),
            "engine: forward: sequences[1].labels[1] is \"x\", it must be an integer from "
            "-2147483648 to 2147483647");
  EXPECT_EQ(text(R"({"forward": {"sequences": [{"extras": {"a": 1}}]}})"),
            "engine: forward: sequences[0].extras.a is 1, it must be a list");
  EXPECT_TRUE(text(R"({"sample": {"params": [{"stp": 1}]}})")
                  .starts_with("engine: sample: params[0]: 'stp' is not a field, it has max_tok"));
  EXPECT_TRUE(text(R"({"forward": {"sequences": [{"weights": [1, 1e39]}]}})")
                  .starts_with("engine: forward: sequences[0].weights[1] is 1E39, it must be "));
}

}  // namespace
}  // namespace twinkle::engine
