// Mistakes that people make, each with the text that they see, and that nothing changed by it:
// neither any tenant's weights, gradients and optimizer, nor the base model's weights, nor any
// file.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "twinkle/engine/operations_for_test.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::engine {
namespace {

namespace fs = std::filesystem;
using model::tiny_config;

constexpr const char* kOnTwo = R"({"r": 4, "target_modules": ["q_proj", "down_proj"]})";

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), text.npos) << "got: " << text << "\nwanted: " << part;
}

// A model's folder that something is wrong with: opening it fails and leaves it as it is.
TEST(BadModel, ABrokenModelIsNamedWhenItIsOpened) {
  const auto set = [](const char* key, Json value) {
    return [key, value](const fs::path& dir) {
      JsonObject config = read_json(dir / "config.json").as_object();
      config[key] = value;
      write_text(dir / "config.json", pretty(config));
    };
  };
  const struct {
    std::function<void(const fs::path&)> spoil;
    std::string text;
  } cases[] = {
      {[](const fs::path& d) { fs::remove(d / "model.safetensors"); }, "safetensors"},
      {[](const fs::path& d) { fs::resize_file(d / "model.safetensors", 20000); },
       "model.safetensors"},
      {[](const fs::path& d) { fs::resize_file(d / "model.safetensors", 5); }, "model.safetensors"},
      {[](const fs::path& d) { fs::remove(d / "config.json"); }, "config.json"},
      {[](const fs::path& d) { write_text(d / "config.json", "{\n  \"model_type\": }"); },
       "config.json line 2"},
      {set("hidden_size", 64), "has shape [131, 48], config.json asks for [131, 64]"},
      {set("num_hidden_layers", 3), "has no tensor model.layers.2."},
      {set("tie_word_embeddings", false), "has no tensor lm_head.weight"},
      {set("model_type", "mamba"), "model_type 'mamba' is not known; known: llama, qwen2, qwen3, "},
      {set("architectures", JsonArray{"LlamaForTokenClassification"}),
       "architecture \"LlamaForTokenClassification\" of model_type 'llama' is not known"},
      {set("rope_scaling", JsonObject{{"rope_type", "longrope"}}),
       "rope kind 'longrope' is not known; known: default, dynamic, linear, yarn, llama3"},
      {set("hidden_act", "relu"), "hidden_act 'relu' is not known; known: silu"},
      {[](const fs::path& d) {
         const at::Tensor nan = at::full({48}, NAN);
         auto weights = model::tiny_weights(tiny_config());
         weights["model.norm.weight"] = nan;
         model::write_tiny(d, tiny_config(), weights);
       },
       "model: tensor model.norm.weight of "},
      {set("eos_token_id", -5), "eos_token_id is -5, expected an integer from 0 to 2147483647"},
      {set("eos_token_id", JsonArray{2, int64_t{1} << 40}),
       "eos_token_id is [2,1099511627776], expected an integer from 0 to 2147483647"},
      {set("vocab_size", 0), "config field 'vocab_size' is 0, it must be at least 1"},
  };
  for (const auto& [spoil, want] : cases) {
    const model::TinyModel model;
    spoil(model.path());
    const auto files = files_of(model.path());
    const std::string text = error_of([&] { Engine({.model = {.path = model.path()}}); });
    expect_contains(text, want);
    expect_contains(text, model.path());
    EXPECT_EQ(files_of(model.path()), files) << want;
  }
}

TEST(BadModel, OptionsOfTheEngineAreChecked) {
  const model::TinyModel model;
  const std::string path = model.path();
  EXPECT_EQ(error_of([] { Engine({.model = {.path = ""}}); }),
            "engine: model is empty; give a model directory or a .gguf file");
  EXPECT_EQ(error_of([&] { Engine({.model = {.path = path, .mixed_precision = "fp8"}}); }),
            "engine: mixed_precision is 'fp8', it must be 'bf16' or 'no'");
  EXPECT_EQ(error_of([&] { Engine({.model = {.path = path}, .scheduling = {.token_budget = 0}}); }),
            "engine: token_budget is 0, it must be an integer of at least 1, at most 2147483647");
  EXPECT_EQ(error_of([&] { Engine({.model = {.path = path}, .sampler = {.kv_tokens = 0}}); }),
            "engine: kv_tokens is 0, it must be an integer of at least 1, at most 2147483647");
  EXPECT_EQ(error_of([&] { Engine({.model = {.path = path}, .sampler = {.prefill_tokens = 0}}); }),
            "engine: prefill_tokens is 0, it must be an integer of at least 1, at most 2147483647");
  EXPECT_EQ(error_of([&] { Engine({.model = {.path = path}, .sampler = {.max_sequences = 0}}); }),
            "engine: max_sequences is 0, it must be an integer of at least 1, at most 2147483647");
}

class BadInput : public testing::Test {
 protected:
  BadInput() : engine_({.model = {.path = model_.path(), .mixed_precision = "no"}}) {
    for (const char* name : {"me", "neighbour"}) {
      engine_.run<Done>(Create{.tenant = name, .lora_json = kOnTwo});
      engine_.run<ForwardResult>(work(name));
      engine_.run<StepResult>(Step{.tenant = name, .options = R"({"lr": 0.01})"});
      engine_.run<ForwardResult>(work(name, 2));
    }
    engine_.run<Done>(Create{.tenant = "base", .frozen = true});
  }

  void expect_refused(const Operation& operation, const std::string& want) {
    const State mine = state_of(engine_, "me"), others = state_of(engine_, "neighbour"),
                base = state_of(engine_, "base");
    const auto files = files_of(model_.path()), saved = files_of(scratch_.path());
    expect_contains(error_of([&] { engine_.submit(operation).get(); }), want);
    EXPECT_EQ(state_of(engine_, "me"), mine) << want;
    EXPECT_EQ(state_of(engine_, "neighbour"), others) << want;
    EXPECT_EQ(state_of(engine_, "base"), base) << want;
    EXPECT_EQ(files_of(model_.path()), files) << want;
    EXPECT_EQ(files_of(scratch_.path()), saved) << want;
  }

  // A PEFT directory of a model with this config.
  std::string adapter_of(const JsonObject& config, const std::string& lora) {
    const model::TinyModel model(config);
    Engine other({.model = {.path = model.path(), .mixed_precision = "no"}});
    other.run<Done>(Create{.tenant = "x", .lora_json = lora});
    return other.run<SaveResult>(Save{.tenant = "x", .directory = scratch_ / "adapter"}).directory;
  }

  const model::TinyModel model_;
  const ScratchDir scratch_{memory_folder()};
  Engine engine_;
};

// As transformers takes labels, which it shifts itself.
TEST_F(BadInput, LabelsThatAreTheirOwnTokens) {
  const auto own = [](std::vector<int32_t> ids) {
    return Example{.input_ids = ids, .labels = ids};
  };
  const auto batch = [](std::vector<Example> sequences, const char* loss = "CrossEntropyLoss") {
    return ForwardBackward{.tenant = "me", .sequences = std::move(sequences), .loss = loss};
  };
  Example prompt = own({7, 8, 9, 10}), weighed = prompt, one = drawn(1, 3);
  std::fill(prompt.labels.begin(), prompt.labels.end(), -100);
  weighed.labels = {1, 1, 1, 1};
  weighed.weights = {0, 0, 0, 0};
  const Example own_tokens = own({5, 6, 7, 5, 6, 7, 8, 9});
  expect_refused(
      batch({prompt, own_tokens, weighed}),
      "engine: labels of inputs[1] are its own tokens; here labels[t] is the token after "
      "t: pass labels[1:] + [-100]");
  const Forward scored{.tenant = "me", .sequences = {own_tokens}, .loss = "CrossEntropyLoss"};
  expect_refused(scored, "labels of inputs[0] are its own tokens");

  Example shifted{.input_ids = std::vector<int32_t>(9, 4), .labels = std::vector<int32_t>(9, 4)};
  Example marked{.input_ids = {1, 2, 3}, .labels = {1, 2, 3}, .extras = {{"grad", {1, 1, 1}}}};
  for (const ForwardBackward& right : {
           batch({own({5, 6, 7, 5, 6, 7, 8})}),  // 7 may be chance
           batch({own_tokens, one}),             // one label that differs
           batch({shifted}),                     // a run of one token
           batch({shifted, own({6, 6, 6})}),
           batch({marked, marked, marked}, "LinearLoss"),
       })
    engine_.run<ForwardResult>(right);
  Forward plain{.tenant = "me", .sequences = {own_tokens}};
  engine_.run<ForwardResult>(plain);
}

TEST_F(BadInput, BatchesThatTheModelCannotTake) {
  const auto batch = [](std::vector<Example> sequences) {
    return ForwardBackward{.tenant = "me", .sequences = std::move(sequences)};
  };
  expect_refused(batch({}), "engine: the batch is empty; give at least one sequence");
  expect_refused(batch({drawn(1, 3), {}}), "engine: sequence 1 is empty");
  expect_refused(batch({drawn(1, 257)}),
                 "engine: sequence 0 has 257 tokens, the model's max_position_embeddings is 256; "
                 "truncate it");
  Example token = drawn(1, 3), label = drawn(1, 3), nan = drawn(1, 3);
  token.input_ids[1] = 131;
  Example ignored = drawn(1, 3), unlabelled = drawn(1, 3);
  ignored.labels = {-100, -100, -100};
  unlabelled.labels.clear();
  expect_refused(batch({ignored, unlabelled}),
                 "engine: the batch has no label to learn from, all are -100 (ignored) or missing");
  expect_refused(batch({token}),
                 "engine: sequence 0: token 131 at position 1 is outside the vocabulary of 131");
  label.labels[2] = -7;
  expect_refused(batch({label}),
                 "engine: sequence 0: label -7 at position 2 is outside the vocabulary of 131 and "
                 "is not -100");
  nan.weights = {1, std::nanf(""), 1};
  expect_refused(batch({drawn(2, 4), nan}), "nothing was changed");
  ForwardBackward cold = work("me");
  cold.temperature = 0;
  expect_refused(cold, "engine: temperature is 0, it must be above 0");
  expect_refused(Forward{.tenant = "me", .sequences = {token}}, "token 131 at position 1");
}

TEST_F(BadInput, AdaptersThatCannotBe) {
  const auto create = [](const char* lora) { return Create{.tenant = "new", .lora_json = lora}; };
  expect_refused(create(R"({"r": 0, "target_modules": "all-linear"})"),
                 "field 'r' is 0, it must be an integer of at least 1");
  expect_refused(create(R"({"r": 4, "target_modules": ["query", "key"]})"),
                 "lora: target module 'query' matches nothing; there is: q_proj, k_proj, v_proj, "
                 "o_proj, gate_proj, up_proj, down_proj");
  expect_refused(create(R"({"r": 4, "target_modules": []})"), "field 'target_modules' is []");
  expect_refused(create(R"x({"r": 4, "target_modules": "("})x"),
                 "lora: target_modules '(' is not a regular expression");
  expect_refused(create(R"({"r": 4, "lora_dropout": 1.0, "target_modules": "all-linear"})"),
                 "field 'lora_dropout' is ");
  expect_refused(Create{.tenant = "me", .lora_json = kOnTwo}, "engine: tenant 'me' exists already");
  expect_refused(Create{.tenant = "all"},
                 "which 3 others use, 'base' among them; delete them first");
  expect_refused(Create{.lora_json = kOnTwo}, "engine: tenant is empty");
}

TEST_F(BadInput, AnAdapterOfAnotherBaseModel) {
  JsonObject wide = tiny_config(), deep = tiny_config();
  wide["intermediate_size"] = 96;
  deep["num_hidden_layers"] = 3;
  for (const JsonObject& config : {wide, deep}) {
    const std::string directory = adapter_of(config, kOnTwo);
    expect_refused(Load{.tenant = "me", .directory = directory}, "is it of another base model?");
    expect_refused(Create{.tenant = "new", .directory = directory}, "is it of another base model?");
  }
  const std::string ranked =
      adapter_of(tiny_config(), R"({"r": 8, "target_modules": ["q_proj", "down_proj"]})");
  expect_refused(Load{.tenant = "me", .directory = ranked},
                 "lora: " + ranked + ": the saved adapter has rank 8, this one has 4");
  fs::resize_file(fs::path(ranked) / "adapter_model.safetensors", 3000);
  expect_refused(Load{.tenant = "me", .directory = ranked}, "adapter_model.safetensors");
  expect_refused(Load{.tenant = "me", .directory = scratch_ / "none"},
                 "engine: load: no checkpoint directory ");
}

TEST_F(BadInput, DirectoriesThatASaveCannotHave) {
  write_text(scratch_ / "file", "");
  fs::create_directory(scratch_ / "mine");
  write_text(scratch_ / "mine/thesis.txt", "text");
  const auto refused = [&](const fs::path& directory, const std::string& text) {
    expect_refused(Save{.tenant = "me", .directory = directory, .optimizer = true},
                   "engine: save: directory " + directory.string() + text);
    EXPECT_THROW(engine_.submit(Save{"me", directory}), Error) << "before it is queued";
  };
  refused(scratch_ / std::string(300, 'n'),
          " has a name of 300 bytes, it must have at most 233; shorten it");
  refused(scratch_ / "file", " is a file; name a directory");
  refused(scratch_ / "file/x", " is below the file " + (scratch_ / "file").string());
  refused(scratch_ / "mine", " holds 'thesis.txt', which is not a checkpoint file, and a save");
  refused(model_.path(), " is the base model's own directory; name another");
  expect_refused(Save{.tenant = "me"}, "engine: save: directory is empty; name a directory");
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch_.path()), {}), 2);
}

TEST_F(BadInput, AnAdaptersCardIsReplacedAndAUsersReadmeIsNot) {
  const Save save{.tenant = "me", .directory = scratch_ / "adapter"};
  engine_.run<SaveResult>(save);
  engine_.run<SaveResult>(save);
  const fs::path readme = scratch_ / "adapter/README.md";
  EXPECT_NE(read_text(readme).find("base_model: \"" + model_.path()), std::string::npos);
  write_text(readme, "# Mine\n");
  expect_refused(save, " holds 'README.md', which is not a checkpoint file, and a save");
  EXPECT_EQ(read_text(readme), "# Mine\n");
}

TEST(BadOptions, ACacheBeyondTheMachinesMemoryIsRefusedAtTheStart) {
  const model::TinyModel model;
  expect_error("engine: kv_tokens is 2147483647, whose keys and values take ", [&] {
    Engine({.model = {.path = model.path()}, .sampler = {.kv_tokens = 2147483647}});
  });
}

TEST(BadOptions, WeightsAndCacheFitTheShareOfMemoryThatTheyMayTake) {
  const model::TinyModel model;
  const auto start = [&](double share, int64_t kv_tokens) {
    Engine({.model = {.path = model.path(), .memory_share = share},
            .sampler = {.kv_tokens = kv_tokens}});
  };
  start(0.5, 64);
  expect_error("engine: memory_share is 0.001 of ", [&] { start(0.001, int64_t{1} << 22); });
  expect_error("engine: memory_share is 1.5, it must be a number of at least 0.001, at most 1",
               [&] { start(1.5, 64); });
}

TEST_F(BadInput, NumbersOfAStepThatFloat32CannotHold) {
  const auto step = [](const char* optimizer, const char* options) {
    return Step{.tenant = "me", .optimizer = optimizer, .options = options};
  };
  const std::string limit = ", it must be finite in float32, at most 3.40282e+38";
  expect_refused(step("AdamW", R"({"lr": 1e39})"), "optim: lr of AdamW is 1e+39" + limit);
  expect_refused(step("SGD", R"({"lr": 1e39})"), "optim: lr of SGD is 1e+39" + limit);
  expect_refused(step("SGD", R"({"momentum": 1e39})"), "optim: momentum of SGD is 1e+39" + limit);
  expect_refused(step("AdamW", R"({"eps": 1e39})"), "optim: eps of AdamW is 1e+39" + limit);
  expect_refused(step("AdamW", R"({"lr": 1e20, "weight_decay": 1e20})"),
                 "optim: lr * weight_decay of AdamW is 1e+40" + limit);
}

TEST_F(BadInput, AStepsOptionsAreReadBeforeItIsQueued) {
  const auto text = [&](const char* options) {
    return error_of([&] { engine_.validate(Step{.tenant = "me", .options = options}); });
  };
  EXPECT_EQ(text(R"({"lr": -1})"), "optim: lr of AdamW is -1, it must be at least 0 and finite");
  EXPECT_EQ(text(R"({"betas": [0.9, 1]})"),
            "optim: betas[1] of AdamW is 1, it must be at least 0 and below 1");
  EXPECT_EQ(text(""), "no error");
}

TEST_F(BadInput, TenantsThatAreNotThere) {
  for (const Operation& operation :
       {Operation(work("ghost")), Operation(Step{"ghost"}), Operation(ZeroGrad{"ghost"}),
        Operation(Save{"ghost", scratch_ / "x"}), Operation(Delete{"ghost"})})
    expect_refused(operation, "engine: no tenant 'ghost'");
}

TEST_F(BadInput, PromptsThatTheModelCannotTake) {
  const auto sample = [](std::vector<std::vector<int32_t>> prompts, size_t num_params = 1) {
    return Sample{"me", std::move(prompts), std::vector<SamplingParams>(num_params)};
  };
  expect_refused(sample({}), "engine: sample: prompts is empty");
  expect_refused(sample({{1}, {2}, {3}}, 2),
                 "engine: sample: 2 parameters for 3 prompts; give one, or one for each");
  expect_refused(sample({{}}), "empty");
  expect_refused(sample({{1, 500}}), "500");
  expect_refused(sample({std::vector<int32_t>(300, 1)}), "256");
}

}  // namespace
}  // namespace twinkle::engine
