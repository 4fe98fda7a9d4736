#include "twinkle/lora/peft/new_adapter.h"

#include <gtest/gtest.h>

#include <limits>

#include "twinkle/base/error_for_test.h"

namespace twinkle::lora {
namespace {

std::string refusal_of(const char* fields) {
  return invalid_of([&] { new_adapter_fields(parse_json(fields, "test").as_object()); });
}

Json formed(const char* fields) {
  return new_adapter_fields(parse_json(fields, "test").as_object());
}

TEST(NewAdapter, FieldsAreTakenToTheirOneForm) {
  EXPECT_EQ(formed("{}"), parse_json(R"({"r": 8})", "test"));
  EXPECT_EQ(formed(R"({"rank": 4, "alpha_pattern": null, "target_modules": ["all-linear"]})"),
            parse_json(R"({"r": 4, "alpha_pattern": {}, "target_modules": "all-linear"})", "test"));
  EXPECT_EQ(formed(R"({"r": 2, "target_modules": [], "target_parameters": ["a.down_proj"]})"),
            parse_json(R"({"r": 2, "target_modules": null, "target_parameters": ["a.down_proj"]})",
                       "test"));
  EXPECT_EQ(formed(R"({"r": 2, "task_type": "SEQ_CLS", "num_labels": 3})"),
            parse_json(R"({"r": 2, "task_type": "SEQ_CLS", "num_labels": 3,
                           "modules_to_save": ["score"]})",
                       "test"));
  const Json task = formed(R"({"r": 2, "task_type": "TOKEN_CLS"})").at("task_type");
  EXPECT_EQ(task, "TOKEN_CLS") << "a note, which a finished adapter's file may not have";
}

TEST(NewAdapter, PatternsKeepTheirOrder) {
  const Json made = formed(R"({"rank_pattern": {"z.a": 4, "a": 8, "m": 2}})");
  std::string names;
  for (const auto& pattern : made.at("rank_pattern").as_object())
    names.append(pattern.key()).append(" ");
  EXPECT_EQ(names, "z.a a m ");
}

TEST(NewAdapter, ValuesOfAnotherKindOrRangeAreNamed) {
  EXPECT_EQ(refusal_of(R"({"r": 0})"),
            "lora: r is 0, it must be an integer of at least 1, and below 2**31");
  EXPECT_EQ(refusal_of(R"({"r": 4, "rank": 6})"),
            "lora: r is 4 and rank is 6, two names of one number: leave one of them out");
  EXPECT_EQ(refusal_of(R"({"lora_dropout": 1.0})"),
            "lora: lora_dropout is 1, it must be a number of at least 0 and below 1");
  EXPECT_EQ(refusal_of(R"({"target_modules": ["q", ""]})"),
            "lora: target_modules is [\"q\",\"\"], it must be \"all-linear\", a list of names or a "
            "regular expression");
  for (const char* fields : {R"({"r": true})",
                             R"({"r": 2.5})",
                             R"({"r": 2147483648})",
                             R"({"lora_alpha": 0})",
                             R"({"lora_alpha": null})",
                             R"({"lora_dropout": -0.5})",
                             R"({"target_modules": ""})",
                             R"({"target_modules": []})",
                             R"({"target_parameters": "a"})",
                             R"({"exclude_modules": {}})",
                             R"({"layers_pattern": [1]})",
                             R"({"layers_to_transform": [-1]})",
                             R"({"layers_to_transform": true})",
                             R"({"rank_pattern": {"q": 4097}})",
                             R"({"rank_pattern": []})",
                             R"({"alpha_pattern": {"q": 0}})",
                             R"({"init_lora_weights": false})",
                             R"({"init_lora_weights": "orthogonal"})",
                             R"({"init_lora_weights": "pissa_niter_"})",
                             R"({"init_lora_weights": "pissa_niter_1e3"})",
                             R"({"use_rslora": null})",
                             R"({"use_dora": 1})",
                             R"({"share_expert_factors": "yes"})",
                             R"({"base_model_name_or_path": 1})",
                             R"({"bias": null})",
                             R"({"eva_config": {"rho": 2}})",
                             R"({"ensure_weight_tying": true})",
                             R"({"num_labels": 2})",
                             R"({"task_type": "SEQ_CLS", "num_labels": 65537})"})
    EXPECT_TRUE(refusal_of(fields).starts_with("lora: ")) << fields << ": " << refusal_of(fields);
  JsonObject fields{{"lora_alpha", std::numeric_limits<double>::quiet_NaN()}};
  EXPECT_EQ(error_of([&] { new_adapter_fields(fields); }),
            "lora: lora_alpha is nan, it must be a number above 0 and finite");
}

TEST(NewAdapter, WhatAFinishedAdapterMayNotHaveIsRefusedAsThere) {
  EXPECT_EQ(refusal_of(R"({"peft_type": "IA3"})"),
            "io: LoraConfig: field 'peft_type' is \"IA3\", it must be \"LORA\"");
  EXPECT_EQ(refusal_of(R"({"layers_to_transform": 1, "target_modules": "q"})"),
            "io: LoraConfig: field 'layers_to_transform' is 1, it must be null where "
            "target_modules is a text, as in peft: list names in target_modules");
  for (const char* fields :
       {R"({"lora_bias": true})", R"({"of_tomorrow": 1})", R"({"layers_pattern": "h"})",
        R"({"lora_dropout": 0.5, "target_parameters": ["a"]})", R"({"modules_to_save": ["score"]})",
        R"({"task_type": "SEQ_CLS", "num_labels": 1, "modules_to_save": ["lm_head"]})"})
    EXPECT_TRUE(refusal_of(fields).starts_with("io: LoraConfig: field '")) << fields;
  EXPECT_EQ(refusal_of(R"({"layers_to_transform": [1], "layers_pattern": "h"})"), "no error")
      << "peft's default target_modules are a list";
}

}  // namespace
}  // namespace twinkle::lora
