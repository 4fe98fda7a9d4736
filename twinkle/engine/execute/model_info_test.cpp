#include "twinkle/engine/execute/model_info.h"

#include <gtest/gtest.h>

#include "twinkle/engine/engine.h"
#include "twinkle/io/scratch_dir_for_test.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::engine {
namespace {

namespace fs = std::filesystem;

TEST(ModelInfo, RepliesEndAsTheConfigsAndTheTokenizerSayAndASavedModelsConfigSaysAll) {
  JsonObject config = model::tiny_config();
  config["eos_token_id"] = 2;
  const model::TinyModel base(config);
  const fs::path folder = base.path();
  const auto eos = [&] {
    return Engine({.model = {.path = base.path(), .mixed_precision = "no"}}).model_info().eos_ids;
  };
  EXPECT_EQ(eos(), (std::vector<int32_t>{2}));
  write_text(folder / "tokenizer.json",
             R"({"added_tokens": [{"id": 7, "content": "<x>"}, {"id": 5, "content": "<e>"}],)"
             R"( "model": {"vocab": {"<e>": 1}}})");
  for (const char* text : {R"({"eos_token": "<e>"})", R"({"eos_token": {"content": "<e>"}})"}) {
    write_text(folder / "tokenizer_config.json", text);
    EXPECT_EQ(eos(), (std::vector<int32_t>{2, 5})) << text;
  }
  write_text(folder / "generation_config.json", R"({"eos_token_id": 3, "top_k": 4})");
  Engine engine({.model = {.path = base.path(), .mixed_precision = "no"}});
  EXPECT_EQ(engine.model_info().eos_ids, (std::vector<int32_t>{2, 3, 5}));
  const ScratchDir scratch;
  const auto saved = [&](const char* tenant, const char* lora) {
    engine.run<Done>(Create{.tenant = tenant, .lora_json = lora});
    const fs::path target = scratch / tenant;
    engine.run<SaveResult>(Save{.tenant = tenant, .directory = target.string()});
    engine.run<Done>(Delete{.tenant = tenant});
    return boost::json::serialize(read_json(target / "generation_config.json"));
  };
  EXPECT_EQ(saved("model", ""), R"({"eos_token_id":[2,3,5],"top_k":4})");
  EXPECT_EQ(saved("adapter", R"({"r": 2, "target_modules": ["q_proj"]})"),
            R"({"eos_token_id":3,"top_k":4})");
}

TEST(ModelInfo, ASavedModelSaysItsEndsWhereTheBaseHasNoGenerationConfigAndItsConfigLacksOne) {
  JsonObject config = model::tiny_config();
  config["eos_token_id"] = config["pad_token_id"] = 0;
  const model::TinyModel base(config);
  const fs::path folder = base.path();
  const ScratchDir scratch;
  const auto saved = [&](const std::string& lora) {
    Engine engine({.model = {.path = base.path(), .mixed_precision = "no"}});
    engine.run<Done>(Create{.tenant = "me", .lora_json = lora});
    engine.run<SaveResult>(Save{.tenant = "me", .directory = scratch / "x"});
    const fs::path file = scratch / "x/generation_config.json";
    return fs::exists(file) ? boost::json::serialize(read_json(file)) : "none";
  };
  EXPECT_EQ(saved(""), "none") << "config.json says it";
  write_text(folder / "tokenizer.json", R"({"added_tokens": [{"id": 5, "content": "<e>"}]})");
  write_text(folder / "tokenizer_config.json", R"({"eos_token": "<e>"})");
  EXPECT_EQ(saved(""), R"({"eos_token_id":[0,5],"pad_token_id":0})");
  EXPECT_EQ(saved(R"({"r": 2, "target_modules": ["q_proj"]})"), "none") << "an adapter has none";
}

}  // namespace
}  // namespace twinkle::engine
