#include "twinkle/io/peft/peft.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle {
namespace {

// Bytes to borrow, 0, 1, 2, ...
std::span<const std::byte> bytes_of(size_t count) {
  static const auto all = [] {
    std::vector<std::byte> bytes(1024);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
    return bytes;
  }();
  return std::span(all).first(count);
}

TensorView view(std::vector<int64_t> shape, Dtype dtype = Dtype::kF32, std::string name = "") {
  const size_t size = *num_elements(shape) * size_of(dtype);
  return {
      .name = std::move(name), .dtype = dtype, .shape = std::move(shape), .bytes = bytes_of(size)};
}

PeftConfig config_of_rank_two() {
  PeftConfig config;
  config.rank = 2;
  config.alpha = 16;
  config.target_modules = std::vector<std::string>{"q_proj"};
  return config;
}

// The error of reading `fields` in addition to the smallest config.
std::string error_of_fields(const std::string& fields) {
  const Json object =
      parse_json(R"({"peft_type": "LORA", "r": 2, "target_modules": ["q"], )" + fields + "}", "x");
  return error_of([&] { peft_config(object, "F"); });
}

TEST(PeftConfig, ComesBackFromJsonWithEveryKindOfTargets) {
  PeftConfig config = config_of_rank_two();
  config.alpha = 1.5;
  config.dropout = 0.25;
  config.use_rslora = true;
  config.base_model = "some/model";
  using Targets = std::variant<std::vector<std::string>, std::string>;
  for (const Targets& targets : {Targets(std::vector<std::string>{"q_proj", "mlp.up_proj"}),
                                 Targets("all-linear"), Targets(R"(.*\.\d+\.mlp\..*)")}) {
    config.target_modules = targets;
    const PeftConfig read = peft_config(json_of(config), "F");
    EXPECT_EQ(read.rank, 2);
    EXPECT_EQ(read.alpha, 1.5);
    EXPECT_EQ(read.dropout, 0.25);
    EXPECT_TRUE(read.use_rslora);
    EXPECT_EQ(read.target_modules, targets);
    EXPECT_EQ(read.base_model, "some/model");
  }
}

TEST(PeftConfig, AllLinearIsKnownHoweverItIsWritten) {
  const Json object =
      parse_json(R"({"peft_type": "LORA", "r": 2, "target_modules": "All-LINEAR"})", "x");
  EXPECT_EQ(std::get<std::string>(peft_config(object, "F").target_modules), "all-linear");
}

TEST(PeftConfig, ReadsAndWritesTargetParametersWithModulesOrWithout) {
  PeftConfig config{.target_modules = std::vector<std::string>{"q_proj"}};
  config.target_parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"};
  EXPECT_EQ(peft_config(json_of(config), "F"), config);
  config.target_modules = std::vector<std::string>{};
  EXPECT_EQ(peft_config(json_of(config), "F"), config);
  Json null_modules = json_of(config);
  null_modules.as_object()["target_modules"] = nullptr;
  EXPECT_EQ(peft_config(null_modules, "F"), config);
  config.dropout = 0.5;
  EXPECT_EQ(error_of([&] { peft_config(json_of(config), "F"); }),
            "io: F: field 'lora_dropout' is 5E-1, it must be 0 with target_parameters, as in peft");
  EXPECT_EQ(error_of_fields(R"("target_parameters": [1])"),
            "io: F: field 'target_parameters' is [1], it must be a list of names");
}

TEST(PeftConfig, SaysThatExpertsShareFactorsWhereTheyDo) {
  Json fields = parse_json(R"({"peft_type": "LORA", "r": 4, "target_modules": ["up_proj"]})", "x");
  EXPECT_FALSE(peft_config(fields, "x").share_expert_factors);
  EXPECT_EQ(find(json_of(peft_config(fields, "x")), "share_expert_factors"), nullptr);
  fields.as_object()["share_expert_factors"] = true;
  EXPECT_TRUE(peft_config(json_of(peft_config(fields, "x")), "x").share_expert_factors);
  fields.as_object()["target_parameters"] = JsonArray{"down_proj"};
  EXPECT_EQ(error_of([&] { peft_config(fields, "x"); }),
            "io: x: field 'share_expert_factors' is true, it must be false with "
            "target_parameters: name gate_proj, up_proj and down_proj as modules");
}

TEST(Peft, ModulesOfTinkersHaveAllExpertsFactors) {
  for (const char* module : {"m.experts.w1", "m.experts.w2", "a.mlp.experts.w3"})
    EXPECT_TRUE(is_tinkers(module)) << module;
  for (const char* module : {"m.experts.w4", "m.experts.1.w1", "experts.w1x", ".experts.w", "w1"})
    EXPECT_FALSE(is_tinkers(module)) << module;
}

TEST(PeftConfig, OfTwoEqualPatternsTheFirstIsKeptAsItIsTheOneThatCounts) {
  PeftConfig config = config_of_rank_two();
  config.rank_pattern = {{"q", 3}, {"q", 5}};
  EXPECT_EQ(peft_config(json_of(config), "F").rank_pattern,
            (std::vector<std::pair<std::string, int64_t>>{{"q", 3}}));
}

TEST(PeftConfig, KeepsPatternsInTheirOrder) {
  PeftConfig config{.target_modules = "all-linear"};
  config.rank_pattern = {{"v_proj", 4}, {"a", 2}};
  config.alpha_pattern = {{"mlp.*", 0.5}, {"^x", 3}};
  EXPECT_EQ(peft_config(json_of(config), "F"), config);
}

TEST(PeftConfig, KeepsTheFiltersOfModules) {
  PeftConfig config{.rank = 2, .target_modules = std::vector<std::string>{"q"}};
  EXPECT_FALSE(config.has_filters());
  config.layers_to_transform = {0, 3};
  config.layers_pattern = {"layers", "h"};
  config.exclude_modules = std::vector<std::string>{"1.q"};
  EXPECT_EQ(peft_config(json_of(config), "F"), config);
  config.clear_filters();
  config.exclude_modules = ".*1.*";
  EXPECT_EQ(peft_config(json_of(config), "F"), config);
  EXPECT_TRUE(config.has_filters());
  Json one = json_of(config);
  one.as_object()["layers_to_transform"] = 2;
  one.as_object()["layers_pattern"] = "h";
  const PeftConfig read = peft_config(one, "F");
  EXPECT_EQ(read.layers_to_transform, std::vector<int64_t>{2});
  EXPECT_EQ(read.layers_pattern, std::vector<std::string>{"h"});
}

TEST(PeftConfig, AcceptsUnusedFeaturesAndRefusesUsedOnesByName) {
  EXPECT_EQ(error_of_fields(R"("use_dora": false, "rank_pattern": {}, "layers_to_transform": null,
                               "loftq_config": {}, "exclude_modules": [], "revision": "main",
                               "megatron_core": "megatron.core", "qalora_group_size": 16)"),
            "no error");
  for (const std::string field : {"use_bdlora", "fan_in_fan_out", "lora_bias", "use_qalora"}) {
    EXPECT_EQ(
        error_of_fields("\"" + field + "\": true"),
        "io: F: field '" + field + "' is true, a feature of peft that Twinkle does not support");
  }
  EXPECT_EQ(
      error_of_fields(R"("modules_to_save": ["score"])"),
      "io: F: field 'modules_to_save' is [\"score\"], a feature of peft that Twinkle does not "
      "support, but for the head of task_type \"SEQ_CLS\"");
  for (const std::string field :
       {"layer_replication", "trainable_token_indices", "something_of_tomorrow"}) {
    EXPECT_EQ(
        error_of_fields("\"" + field + "\": [1]"),
        "io: F: field '" + field + "' is [1], a feature of peft that Twinkle does not support");
  }
  for (const std::string field : {"exclude_modules", "layers_pattern"})
    EXPECT_EQ(error_of_fields("\"" + field + "\": [1]"),
              "io: F: field '" + field + "' is [1], it must be a list of names, or a text");
  EXPECT_EQ(
      error_of_fields(R"("layers_to_transform": [-1])"),
      "io: F: field 'layers_to_transform' is [-1], it must be a number of a layer, from 0, or "
      "a list of such");
  EXPECT_EQ(error_of_fields(R"("layers_to_transform": 1, "target_modules": "q")"),
            "io: F: field 'layers_to_transform' is 1, it must be null where target_modules is a "
            "text, as in peft: list names in target_modules");
  EXPECT_EQ(error_of_fields(R"("layers_pattern": "h")"),
            "io: F: field 'layers_pattern' is \"h\", it must be null without layers_to_transform, "
            "which it belongs to");
  EXPECT_EQ(
      error_of_fields(R"("rank_pattern": {"q": 0})"),
      "io: F: field 'rank_pattern' is {\"q\":0}, it must be an object of integers of at least "
      "1");
  EXPECT_EQ(error_of_fields(R"("alpha_pattern": {"q": "4"})"),
            "io: F: field 'alpha_pattern' is {\"q\":\"4\"}, it must be an object of numbers");
  EXPECT_EQ(error_of_fields(R"("bias": "all")"),
            "io: F: field 'bias' is \"all\", it must be \"none\"");
  EXPECT_EQ(error_of_fields(R"("task_type": "TOKEN_CLS")"),
            "io: F: field 'task_type' is \"TOKEN_CLS\", it must be \"CAUSAL_LM\", \"SEQ_CLS\" or "
            "null");
  EXPECT_EQ(error_of_fields(R"("init_lora_weights": "olora")"),
            "io: F: field 'init_lora_weights' is \"olora\", it must be true, false, \"gaussian\", "
            "\"pissa\", \"pissa_niter_N\", \"orthogonal\" or \"eva\"");
}

TEST(PeftConfig, NamesFieldsThatAreMissingOrOutOfRange) {
  const auto error = [](const std::string& text) {
    return error_of([&] { peft_config(parse_json(text, "x"), "F"); });
  };
  EXPECT_EQ(error("[]"), "io: F must be a JSON object");
  EXPECT_EQ(error("{}"), "io: F: field 'peft_type' is null, it must be \"LORA\"");
  EXPECT_EQ(error(R"({"peft_type": "LORA"})"),
            "io: F: field 'r' is null, it must be an integer of at least 1");
  EXPECT_EQ(error(R"({"peft_type": "LORA", "r": 0})"),
            "io: F: field 'r' is 0, it must be an integer of at least 1");
  EXPECT_EQ(error(R"({"peft_type": "LORA", "r": 1})"),
            "io: F: field 'target_modules' is null, it must be a list of names, or a text");
  EXPECT_EQ(error(R"({"peft_type": "LORA", "r": 1, "target_modules": [1]})"),
            "io: F: field 'target_modules' is [1], it must be a list of names, or a text");
  EXPECT_EQ(error_of_fields(R"("lora_dropout": 1)"),
            "io: F: field 'lora_dropout' is 1, it must be from 0 to below 1");
  EXPECT_EQ(error_of_fields(R"("lora_alpha": "x")"),
            "io: F: field 'lora_alpha' is \"x\", it must be a number");
  EXPECT_EQ(error_of_fields(R"("use_rslora": 1)"),
            "io: F: field 'use_rslora' is 1, it must be true or false");
}

TEST(Peft, ReadsBackWhatItWrote) {
  const ScratchDir dir;
  const std::vector<PeftEntry> entries = {
      {"model.layers.1.self_attn.q_proj", view({2, 5}), view({3, 2})},
      {"model.layers.0.self_attn.q_proj", view({2, 4}, Dtype::kBF16), view({7, 2}, Dtype::kBF16)}};
  write_peft(dir.path(), config_of_rank_two(), entries);
  const PeftAdapter read = read_peft(dir.path());
  EXPECT_EQ(read.config.alpha, 16);
  ASSERT_EQ(read.entries.size(), 2U);
  for (int i : {0, 1}) {
    const PeftEntry& written = entries[1 - i];  // read in the order of modules
    EXPECT_EQ(read.entries[i].module, written.module);
    EXPECT_EQ(read.entries[i].a.shape, written.a.shape);
    EXPECT_EQ(read.entries[i].b.dtype, written.b.dtype);
    EXPECT_TRUE(std::ranges::equal(read.entries[i].a.load().bytes, written.a.bytes));
    EXPECT_TRUE(std::ranges::equal(read.entries[i].b.load().bytes, written.b.bytes));
  }
}

TEST(Peft, KeepsTheAdaptersOwnConfigInTheMetadataOfItsTensors) {
  const ScratchDir dir;
  const std::string file = (dir / "adapter_model.safetensors").string();
  const std::vector<PeftEntry> entries = {{"q_proj", view({2, 5}), view({3, 2})}};
  PeftConfig own = config_of_rank_two();
  own.target_modules = std::string("all-linear");
  own.rank_pattern = {{"b", 5}, {"a", 3}};
  write_peft(dir.path(), config_of_rank_two(), entries);
  EXPECT_EQ(read_peft(dir.path()).own, std::nullopt);
  write_peft(dir.path(), config_of_rank_two(), entries, &own);
  EXPECT_EQ(read_peft(dir.path()).own, own);
  EXPECT_EQ(read_peft(dir.path()).config, config_of_rank_two());
  const auto error = [&](const std::string& text) {
    const std::string stem = "base_model.model.q_proj.";
    write_safetensors(file,
                      {{view({2, 5}, Dtype::kF32, stem + "lora_A.weight"),
                        view({3, 2}, Dtype::kF32, stem + "lora_B.weight")}},
                      {{"twinkle_adapter", text}});
    return error_of([&] { read_peft(dir.path()); });
  };
  const std::string what = file + ": twinkle_adapter of its metadata";
  EXPECT_TRUE(error("{").find(what) != std::string::npos) << error("{");
  EXPECT_EQ(error(R"({"peft_type": "LORA", "r": 0, "target_modules": ["q"]})"),
            "io: " + what + ": field 'r' is 0, it must be an integer of at least 1");
}

TEST(Peft, AHeadOfLabelsIsPeftsScoreAndItsRowsAreTheLabels) {
  const ScratchDir dir;
  const std::string file = (dir / "adapter_model.safetensors").string();
  const std::vector<PeftEntry> entries = {{"q_proj", view({2, 5}), view({3, 2})}};
  const TensorView score = view({4, 5});
  PeftConfig config = config_of_rank_two();
  config.num_labels = 4;
  EXPECT_EQ(peft_config(json_of(config), "F"), config);
  write_peft(dir.path(), config, entries, nullptr, &score);
  const std::string written = read_text(dir / "adapter_config.json");
  for (const char* part : {"\"task_type\": \"SEQ_CLS\"", "\"score\""})
    EXPECT_NE(written.find(part), written.npos) << written;
  EXPECT_EQ(written.find("num_labels"), written.npos) << "peft does not know it";
  EXPECT_EQ(read_peft_config(dir.path()), config);
  const PeftAdapter read = read_peft(dir.path());
  EXPECT_EQ(read.config, config);
  EXPECT_EQ(read.score->shape, score.shape);
  EXPECT_TRUE(std::ranges::equal(read.score->load().bytes, score.bytes));
  EXPECT_EQ(error_of([&] { write_peft(dir.path(), config, entries); }),
            "io: the adapter's config has num_labels 4, but it comes without a head of labels");
  const auto error = [&](std::vector<TensorView> views) {
    views.push_back(view({2, 5}, Dtype::kF32, "base_model.model.q_proj.lora_A.weight"));
    views.push_back(view({3, 2}, Dtype::kF32, "base_model.model.q_proj.lora_B.weight"));
    write_safetensors(file, views);
    return error_of([&] { read_peft(dir.path()); });
  };
  EXPECT_EQ(error({}),
            "io: " + file +
                ": it has no base_model.model.score.weight, the head of an adapter whose task_type "
                "is SEQ_CLS: save it again with peft, with modules_to_save=[\"score\"]");
  EXPECT_EQ(error({view({5}, Dtype::kF32, "base_model.model.score.weight")}),
            "io: " + file +
                ": base_model.model.score.weight is F32 of shape [5], it must be F32, F16 or BF16 "
                "and [num_labels, the model's hidden_size]");
}

TEST(PeftConfig, AHeadOfLabelsGoesWithSequencesAlone) {
  EXPECT_EQ(error_of_fields(R"("task_type": "SEQ_CLS", "modules_to_save": ["score"])"), "no error");
  EXPECT_EQ(error_of_fields(R"("task_type": "SEQ_CLS", "modules_to_save": ["score", "lm_head"])"),
            "io: F: field 'modules_to_save' is [\"score\",\"lm_head\"], a feature of peft that "
            "Twinkle does not support but for [\"score\"]");
  EXPECT_EQ(error_of_fields(R"("task_type": "SEQ_CLS", "num_labels": 0)"),
            "io: F: field 'num_labels' is 0, it must be an integer from 1 to 65536");
  EXPECT_EQ(error_of_fields(R"("num_labels": 2)"),
            "io: F: field 'num_labels' is 2, it must be null without task_type \"SEQ_CLS\"");
}

TEST(Peft, NamesWhatIsMissing) {
  const ScratchDir dir;
  EXPECT_EQ(error_of([&] { read_peft(dir.path()); }),
            "json: cannot open " + (dir / "adapter_config.json").string());
  write_text(dir / "adapter_config.json", pretty(json_of(config_of_rank_two())));
  EXPECT_EQ(error_of([&] { read_peft(dir.path()); }),
            "io: cannot open " + (dir / "adapter_model.safetensors").string() +
                ": No such file or directory");
  write_text(dir / "adapter_model.bin", "");
  EXPECT_EQ(error_of([&] { read_peft(dir.path()); }),
            "io: " + dir.path().string() +
                " holds its adapter as adapter_model.bin, a pickle, which may run code and is not "
                "read: save "
                "it again as safetensors");
}

TEST(Peft, RefusesTensorsThatAreNoPairsOfTheRank) {
  const ScratchDir dir;
  write_text(dir / "adapter_config.json", pretty(json_of(config_of_rank_two())));
  const std::string file = (dir / "adapter_model.safetensors").string();
  const auto error = [&](const std::vector<TensorView>& views) {
    write_safetensors(file, views);
    return error_of([&] { read_peft(dir.path()); });
  };
  const std::string a = "base_model.model.q.lora_A.weight", b = "base_model.model.q.lora_B.weight";
  EXPECT_EQ(error({}), "io: " + file + " holds no LoRA factors");
  EXPECT_EQ(error({view({2, 3}, Dtype::kF32, a)}),
            "io: " + file + ": module 'q' has no lora_B.weight");
  EXPECT_EQ(error({view({3, 2}, Dtype::kF32, b)}),
            "io: " + file + ": module 'q' has no lora_A.weight");
  EXPECT_EQ(error({view({4, 3}, Dtype::kF32, a), view({3, 2}, Dtype::kF32, b)}),
            "io: " + file +
                ": module 'q': lora_A.weight has the shape [4, 3], it must be [r, in] with r = 2");
  EXPECT_EQ(error({view({3, 2}, Dtype::kF32, a), view({2, 3}, Dtype::kF32, b)}),
            "io: " + file +
                ": module 'q': lora_A.weight has the shape [3, 2], it must be [r, in] with r = 2: "
                "transpose it, or save it again with peft");
  EXPECT_EQ(error({view({2, 3}, Dtype::kF32, a), view({2}, Dtype::kF32, b)}),
            "io: " + file +
                ": module 'q': lora_B.weight has the shape [2], it must be [out, r] with r = 2");
  EXPECT_EQ(
      error({view({2, 3}, Dtype::kI32, a), view({3, 2}, Dtype::kF32, b)}),
      "io: " + file + ": module 'q': lora_A.weight has the dtype I32, it must be F32, F16 or BF16");
  EXPECT_EQ(error({view({2, 3}, Dtype::kF32, "base_model.model.lora_A.weight")}),
            "io: " + file +
                ": tensor 'base_model.model.lora_A.weight' is not a base_model.model.<module>."
                "lora_A.weight or lora_B.weight: embeddings, biases and saved modules are features "
                "of peft that Twinkle does not support");
}

TEST(Peft, RefusesToWriteWhatItCouldNotRead) {
  const ScratchDir dir;
  PeftConfig config = config_of_rank_two();
  const std::vector<PeftEntry> twice(2, PeftEntry{"q", view({2, 3}), view({3, 2})});
  const auto error = [&](std::span<const PeftEntry> entries) {
    return error_of([&] { write_peft(dir.path(), config, entries); });
  };
  EXPECT_EQ(error({}), "io: an adapter needs at least one module");
  EXPECT_EQ(error(twice), "io: tensor 'base_model.model.q.lora_A.weight' is given twice");
  config.rank = 3;
  EXPECT_EQ(error(twice),
            "io: module 'q': lora_A.weight has the shape [2, 3], it must be [r, in] with r = 3: "
            "transpose it, or save it again with peft");
  config.rank = 0;
  EXPECT_EQ(error(twice),
            "io: the adapter's config: field 'r' is 0, it must be an integer of at least 1");
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

}  // namespace
}  // namespace twinkle
