#include "twinkle/engine/checkpoint/persist.h"

#include <signal.h>

#include "twinkle/engine/checkpoint/persist_for_test.h"
#include "twinkle/engine/heap_shortage_for_test.h"
#include "twinkle/io/atomic.h"
#include "twinkle/io/limit_for_test.h"

namespace twinkle::engine {
namespace {

namespace fs = std::filesystem;

TEST_P(Persist, WhatIsSavedComesBackWithGradientsOptimizerAndNote) {
  const State saved = state_of(engine_, "me");
  save();
  train();
  EXPECT_NE(state_of(engine_, "me"), saved);
  EXPECT_EQ(engine_.run<LoadResult>(Load{"me", target(), true}).extra_json, "note");
  EXPECT_EQ(state_of(engine_, "me"), saved);
}

TEST_P(Persist, ASaveWithoutGradientsKeepsAllElse) {
  const State before = state_of(engine_, "me");
  engine_.run<SaveResult>(
      Save{.tenant = "me", .directory = target(), .optimizer = true, .gradients = false});
  EXPECT_EQ(state_of(engine_, "me"), before);
  EXPECT_EQ(load(), "no error");
  const auto [weights, gradients, optimizer, step, num_tokens] = state_of(engine_, "me");
  EXPECT_EQ(std::tuple(weights, optimizer, step),
            std::tuple(std::get<0>(before), std::get<2>(before), std::get<3>(before)));
  EXPECT_NE(gradients, std::get<1>(before));
  EXPECT_EQ(num_tokens, 0);
  EXPECT_NE(error_of([&] { engine_.run<StepResult>(Step{"me"}); }).find("no accumulated"),
            std::string::npos);
}

TEST_P(Persist, LoadingWithoutTheOptimizerTakesTheWeightsAndDropsTheRest) {
  const State saved = state_of(engine_, "me");
  save();
  train();
  EXPECT_EQ(engine_.run<LoadResult>(Load{"me", target()}).extra_json, "");
  const auto now = engine_.run<InspectResult>(Inspect{"me"});
  EXPECT_EQ(now.weights, std::get<0>(saved));
  EXPECT_EQ(now.optimizer, 0u);
  EXPECT_EQ(now.step, 0);
  EXPECT_EQ(now.num_tokens, 0);
}

TEST_P(Persist, SavingOverACheckpointReplacesAllOfIt) {
  save();
  train();
  const State second = state_of(engine_, "me");
  engine_.run<SaveResult>(Save{"me", target()});
  EXPECT_FALSE(fs::exists(file("trainer_state.json"))) << "saved without the optimizer";
  EXPECT_EQ(load(), "engine: load: " + target() +
                        " has no trainer_state.json; it was saved without the optimizer");
  engine_.run<LoadResult>(Load{"me", target()});
  EXPECT_EQ(std::get<0>(state_of(engine_, "me")), std::get<0>(second));
}

TEST_P(Persist, AMomentumThatWasSavedIsResumed) {
  train("SGD", R"({"lr": 0.01, "momentum": 0.9})");
  save();
  train("SGD", R"({"lr": 0.01, "momentum": 0.9})");
  const State want = state_of(engine_, "me");
  EXPECT_EQ(load(), "no error");
  train("SGD", R"({"lr": 0.01, "momentum": 0.9})");
  EXPECT_EQ(state_of(engine_, "me"), want);
}

TEST_P(Persist, WeightsWithoutFiniteProductsReplaceNoGoodOnes) {
  save();
  const std::string before = read_text(weights());
  engine_.run<StepResult>(Step{.tenant = "me", .optimizer = "SGD", .options = R"({"lr": 1e30})"});
  const std::string text = error_of([&] { save(); });
  EXPECT_NE(text.find("have no finite products; nothing was saved"), text.npos) << text;
  EXPECT_EQ(read_text(weights()), before);
}

TEST_P(Persist, ASaveAsItIsKeepsThemBitForBit) {
  engine_.run<StepResult>(Step{.tenant = "me", .optimizer = "SGD", .options = R"({"lr": 1e30})"});
  engine_.run<SaveResult>(
      Save{.tenant = "me", .directory = target(), .optimizer = true, .as_is = true});
  Engine other({.model = {.path = model_.path(), .mixed_precision = "no"}});
  other.run<Done>(Create{.tenant = "me", .lora_json = GetParam() ? "" : kLora});
  other.run<LoadResult>(Load{"me", target(), true, /*exact=*/true});
  EXPECT_EQ(state_of(other, "me"), state_of(engine_, "me"));
}

TEST_P(Persist, AReplayIsRefusedWhereTheArithmeticIsAnotherThanTheSavesOwn) {
  const auto exactly = [&] {
    return error_of([&] { engine_.run<LoadResult>(Load{"me", target(), true, /*exact=*/true}); });
  };
  save();
  EXPECT_EQ(exactly(), "no error");
  Json state = read_json(file("trainer_state.json"));
  JsonObject& arithmetic = state.as_object()["arithmetic"].as_object();
  EXPECT_EQ(arithmetic.size(), 6U);
  const auto refused = [&](const std::string& what) {
    write_text(file("trainer_state.json"), pretty(state));
    const State before = state_of(engine_, "me");
    EXPECT_EQ(exactly(), "engine: load: exact is true, but " + file("trainer_state.json").string() +
                             " was saved by an engine whose " + what +
                             ": a replay would give different bits; load it in an engine that "
                             "agrees, or with exact=false to continue from it");
    EXPECT_EQ(state_of(engine_, "me"), before);
    EXPECT_EQ(load(), "no error") << "going on is no replay";
  };
  arithmetic["products"] = "tiles";
  refused("products is \"tiles\", this engine's is \"runs of 128\"");
  arithmetic["mixed_precision"] = "bf16";
  refused("mixed_precision is \"bf16\", this engine's is \"no\"");
  state.as_object().erase("arithmetic");
  refused("device is unknown, this engine's is \"cpu\"");
  EXPECT_EQ(
      error_of([&] { engine_.run<LoadResult>(Load{"me", target(), false, /*exact=*/true}); }),
      "engine: load: exact is true and optimizer false; a replay needs the optimizer, load with "
      "both");
}

TEST_P(Persist, ABrokenCheckpointIsNamedAndChangesNothing) {
  const auto shorten = [](const fs::path& f) { fs::resize_file(f, fs::file_size(f) / 2); };
  const auto edit = [](const fs::path& f, const std::string& from, const std::string& to) {
    std::string text = read_text(f);
    const auto at = text.find(from);
    ASSERT_NE(at, text.npos) << from;
    write_text(f, text.replace(at, from.size(), to));
  };
  const struct {
    std::function<void()> spoil;
    std::string text;
  } cases[] = {
      {[&] { shorten(weights()); }, weights().filename()},
      {[&] { fs::remove(weights()); },
       GetParam() ? "holds no weights: a checkpoint has " : "adapter_model.safetensors"},
      {[&] { shorten(file("training.safetensors")); }, "training.safetensors"},
      {[&] { fs::remove(file("training.safetensors")); }, "training.safetensors"},
      {[&] { shorten(file("trainer_state.json")); }, "trainer_state.json line "},
      {[&] {
         edit(file("trainer_state.json"), "\"checkpoint_version\": 5", "\"checkpoint_version\": 4");
       },
       "trainer_state.json has checkpoint_version 4, this program reads 5: load it without the "
       "optimizer, or in the version that saved it"},
      {[&] { edit(file("trainer_state.json"), "\"training\"", "\"draining\""); },
       "trainer_state.json: field 'training' is missing or not an object"},
      {[&] { edit(file("trainer_state.json"), "\"seed\"", "\"feed\""); },
       "json: field 'seed' is missing"},
      {[&] { edit(file("trainer_state.json"), "\"pending\"", "\"bending\""); },
       "json: field 'pending' is missing"},
      {[&] { edit(file("trainer_state.json"), "\"AdamW\"", "\"AdamX\""); },
       "optim: unknown optimizer 'AdamX'"},
      {[&] { edit(file("training.safetensors"), ".exp_avg\"", ".exp_xyz\""); }, "exp_avg"},
      {[&] {
         std::string name = SafetensorsFile(file("training.safetensors")).tensors()[0].name;
         name = name.substr(name.find('/') + 1);  // the rest is NAME.exp_avg
         const at::Tensor odd = at::zeros({3});
         write_safetensors(
             file("training.safetensors"),
             std::vector{model::view_of("grad/" + name.substr(0, name.find(".exp_avg")), odd)});
         edit(file("trainer_state.json"), "\"optimizer\"", "\"none\"");
       },
       " has shape [3], expected ["},
      {[&] {
         const at::Tensor odd = at::zeros({3});
         write_safetensors(file("training.safetensors"),
                           std::vector{model::view_of("optimizer/x.exp_avg", odd)});
       },
       "engine: load: tensor optimizer/x.exp_avg belongs to no parameter of tenant 'me'"},
  };
  for (const auto& [spoil, want] : cases) {
    save();
    spoil();
    const State before = state_of(engine_, "me");
    const auto files = files_of(scratch_.path());
    const std::string text = load();
    EXPECT_NE(text.find(want), text.npos) << text << "\nwanted: " << want;
    EXPECT_EQ(state_of(engine_, "me"), before) << want;
    EXPECT_EQ(files_of(scratch_.path()), files) << want;
    fs::remove_all(target());
  }
}

// A control character takes six bytes of JSON.
TEST_P(Persist, ANoteThatNoLoadWouldReadIsRefused) {
  save();
  const auto before = files_of(scratch_.path());
  const std::string text = error_of(
      [&] { engine_.run<SaveResult>(Save{"me", target(), true, std::string(12 << 20, '\x01')}); });
  EXPECT_TRUE(
      text.starts_with("engine: save: extra_json has 12582912 bytes, with which "
                       "trainer_state.json has 7549"))
      << text;
  EXPECT_TRUE(text.ends_with(", the limit is 67108864; nothing was saved: keep less in it"))
      << text;
  EXPECT_EQ(files_of(scratch_.path()), before);
}

// The limit on a file's size stands for a full disk: the system refuses the same write.
TEST_P(Persist, AFullDiskKeepsTheOldCheckpointAndTheTenant) {
  save();
  train();
  const State before = state_of(engine_, "me");
  const auto files = files_of(scratch_.path());
  ::signal(SIGXFSZ, SIG_IGN);
  try {
    const LimitForTest tight(RLIMIT_FSIZE, 2048);
    engine_.run<SaveResult>(Save{"me", target(), true, "second"});
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Code::kInternal) << "not the caller's mistake";
    EXPECT_TRUE(std::string(e.what()).starts_with("io: ")) << e.what();
  }
  EXPECT_EQ(state_of(engine_, "me"), before);
  EXPECT_EQ(files_of(scratch_.path()), files);
  save();
  EXPECT_NE(files_of(scratch_.path()), files) << "with room again it works";
}

INSTANTIATE_TEST_SUITE_P(LoraAndFull, Persist, testing::Bool());

// Names and shapes are the same.
TEST(PersistErrors, WeightsOfAModelOfOtherArithmeticAreNamed) {
  const model::TinyModel model;
  const ScratchDir scratch;
  Engine engine({.model = {.path = model.path(), .mixed_precision = "no"}});
  engine.run<Done>(Create{.tenant = "me"});
  engine.run<SaveResult>(Save{.tenant = "me", .directory = scratch / "x"});
  const State before = state_of(engine, "me");
  const Json config = read_json(scratch / "x/config.json");
  const auto refused = [&](const char* key, const Json& value, const std::string& what) {
    Json other = config;
    other.as_object()[key] = value;
    write_text(scratch / "x/config.json", pretty(other));
    EXPECT_EQ(error_of([&] { engine.run<LoadResult>(Load{"me", scratch / "x"}); }),
              "engine: load: " + (scratch / "x").string() + " is of another model: its " + what);
    EXPECT_EQ(state_of(engine, "me"), before);
  };
  const auto number = [&](const char* key) { return boost::json::serialize(config.at(key)); };
  refused("rope_theta", 5, "rope_theta is 5E0, this model's is 1E4");
  refused("rms_norm_eps", 0.5, "rms_norm_eps is 5E-1, this model's is 1E-5");
  refused("hidden_size", 4096, "hidden_size is 4096, this model's is " + number("hidden_size"));
  refused("num_attention_heads", 2,
          "num_attention_heads is 2, this model's is " + number("num_attention_heads"));
  write_text(scratch / "x/config.json", pretty(config));
  engine.run<LoadResult>(Load{"me", scratch / "x"});
}

TEST(PersistErrors, ASaveOfTheTextAloneIsNamedWhereTheEnginesModelHasPictures) {
  JsonObject text = model::tiny_config();
  for (const char* key : {"architectures", "rope_theta"}) text.erase(key);
  text["model_type"] = "qwen3_5_text";
  text["tie_word_embeddings"] = true;
  text["partial_rotary_factor"] = 0.5;
  text["layer_types"] = JsonArray{"linear_attention", "full_attention"};
  text["linear_num_key_heads"] = text["linear_num_value_heads"] = 2;
  text["linear_key_head_dim"] = text["linear_value_head_dim"] = 8;
  JsonObject nested{{"model_type", "qwen3_5"},
                    {"architectures", JsonArray{"Qwen3_5ForConditionalGeneration"}},
                    {"tie_word_embeddings", true},
                    {"text_config", text}};
  text["architectures"] = JsonArray{"Qwen3_5ForCausalLM"};
  const ScratchDir pictures, flat;
  at::manual_seed(1);
  model::write_tiny(pictures.path(), nested, model::drawn_weights(nested));
  model::write_tiny(flat.path(), text, model::drawn_weights(text));
  Engine engine({.model = {.path = pictures.path().string(), .mixed_precision = "no"}});
  engine.run<Done>(Create{.tenant = "me"});
  const std::string there = flat.path().string();
  EXPECT_EQ(error_of([&] { engine.run<LoadResult>(Load{"me", there}); }),
            "engine: load: " + there +
                " is saved as another class of this family has it, as text alone or inside a model "
                "with pictures: its embedding is model.embed_tokens.weight, this engine's is "
                "model.language_model.embed_tokens.weight; make an engine of " +
                there);
}

TEST(PersistErrors, ASaveByTheOtherNamesOfAModelWithPicturesIsNamed) {
  JsonObject text = model::tiny_config("gemma3");
  for (const char* key : {"architectures", "rope_theta"}) text.erase(key);
  const JsonObject fields{{"model_type", "gemma3_text"},
                          {"sliding_window", 8},
                          {"query_pre_attn_scalar", 20},
                          {"hidden_activation", "gelu_pytorch_tanh"}};
  for (const auto& [key, value] : fields) text[key] = value;
  const JsonObject config{{"model_type", "gemma3"},
                          {"architectures", JsonArray{"Gemma3ForConditionalGeneration"}},
                          {"text_config", text}};
  const ScratchDir hub, transformers;
  at::manual_seed(1);
  const auto weights = model::drawn_weights(config);
  std::map<std::string, at::Tensor> older;
  const std::string now = "model.language_model.", before = "language_model.model.";
  for (const auto& [name, value] : weights) older[before + name.substr(now.size())] = value;
  model::write_tiny(transformers.path(), config, weights);
  model::write_tiny(hub.path(), config, older);
  const auto refusal = [&](const ScratchDir& of, const ScratchDir& given) {
    Engine engine({.model = {.path = of.path().string(), .mixed_precision = "no"}});
    engine.run<Done>(Create{.tenant = "me"});
    engine.run<LoadResult>(Load{"me", of.path().string()});
    return error_of([&] { engine.run<LoadResult>(Load{"me", given.path().string()}); });
  };
  const std::string begin = " has its tensors by other names than this engine's model, of ",
                    embedding = "embed_tokens.weight";
  EXPECT_EQ(refusal(hub, transformers),
            "engine: load: " + transformers.path().string() + begin +
                "transformers 5 and not of the hub's older files: its embedding is " + now +
                embedding + ", this engine's is " + before + embedding + "; make an engine of " +
                transformers.path().string());
  EXPECT_EQ(refusal(transformers, hub),
            "engine: load: " + hub.path().string() + begin +
                "the hub's older files and not of transformers 5: its embedding is " + before +
                embedding + ", this engine's is " + now + embedding + "; make an engine of " +
                hub.path().string());
}

// The base model's tokenizer is larger than what is trained, and is what a disk is full of first.
TEST(PersistErrors, AFullDiskWhileCopyingTheTokenizerNamesTheFileAndSaysSo) {
  const model::TinyModel model;
  write_text(fs::path(model.path()) / "tokenizer.json", std::string(200000, ' '));
  const ScratchDir scratch;
  const fs::path target = scratch / "checkpoint";
  Engine engine({.model = {.path = model.path(), .mixed_precision = "no"}});
  engine.run<Done>(Create{.tenant = "me", .lora_json = kLora});
  ::signal(SIGXFSZ, SIG_IGN);
  const std::string text = error_of([&] {
    const LimitForTest tight(RLIMIT_FSIZE, 100000);
    engine.run<SaveResult>(Save{.tenant = "me", .directory = target});
  });
  EXPECT_NE(text.find("tokenizer.json: File too large; free space there or save elsewhere"),
            text.npos)
      << text;
  EXPECT_TRUE(files_of(scratch.path()).empty());
  engine.run<SaveResult>(Save{.tenant = "me", .directory = target});
  EXPECT_EQ(read_text(target / "tokenizer.json").size(), 200000u);
  engine.run<SaveResult>(Save{.tenant = "me", .directory = target, .as_is = true});
  EXPECT_FALSE(fs::exists(target / "tokenizer.json")) << "nobody reads a snapshot's";
}

// Two bases, each with code of its own.
JsonObject coded(const char* module, JsonObject config = model::tiny_config()) {
  const std::string name = std::string(module) + ".Tiny";
  config["auto_map"] = JsonObject{{"AutoModel", name}, {"AutoTokenizer", JsonArray{name, nullptr}}};
  return config;
}

void save_all(const std::string& base, const fs::path& target) {
  Engine engine({.model = {.path = base, .mixed_precision = "no"}});
  engine.run<Done>(Create{.tenant = "me"});
  engine.run<SaveResult>(Save{.tenant = "me", .directory = target});
}

TEST(PersistErrors, TheBasesCodeIsCopiedAndAFolderWithOtherCodeIsNotReplaced) {
  const model::TinyModel model(coded("modeling_tiny"));
  const fs::path base = model.path();
  write_text(base / "modeling_tiny.py", "from .layers import raised\n");
  const ScratchDir scratch;
  const fs::path target = scratch / "checkpoint";
  Engine engine({.model = {.path = model.path(), .mixed_precision = "no"}});
  engine.run<Done>(Create{.tenant = "me"});
  for (const std::string text : {"raise RuntimeError\n", "raise ValueError\n"}) {
    for (const char* name : {"layers.py", "train.py"}) write_text(base / name, text);
    engine.run<SaveResult>(Save{.tenant = "me", .directory = target});
    EXPECT_EQ(read_text(target / "layers.py"), text);
    EXPECT_TRUE(fs::exists(target / "modeling_tiny.py") && !fs::exists(target / "train.py"));
  }
  write_text(target / "train.py", "its user's");
  expect_error("holds 'train.py', which is not a checkpoint file",
               [&] { engine.run<SaveResult>(Save{.tenant = "me", .directory = target}); });
}

TEST(PersistErrors, ASaveOfAnotherBaseTakesThePlaceOfOneWithCodeThatItsAutoMapNames) {
  const model::TinyModel first(coded("modeling_a")), second(coded("modeling_b")), plain;
  write_text(fs::path(first.path()) / "modeling_a.py", "a\n");
  write_text(fs::path(second.path()) / "modeling_b.py", "b\n");
  const ScratchDir scratch;
  const fs::path target = scratch / "checkpoint";
  save_all(first.path(), target);
  EXPECT_EQ(read_text(target / "modeling_a.py"), "a\n");
  save_all(second.path(), target);
  EXPECT_FALSE(fs::exists(target / "modeling_a.py"));
  EXPECT_EQ(read_text(target / "modeling_b.py"), "b\n");
  write_text(target / "modeling_b.py", "b, changed\n");
  save_all(plain.path(), target);
  EXPECT_FALSE(fs::exists(target / "modeling_b.py"));
}

TEST(PersistErrors, AUsersScriptStaysThoughTheBaseHasOneOfItsName) {
  JsonObject config = coded("modeling_tiny");
  config["_name_or_path"] = "train.v2";  // it names no module
  const model::TinyModel model(config);
  write_text(fs::path(model.path()) / "modeling_tiny.py", "a\n");
  write_text(fs::path(model.path()) / "train.py", "the base's\n");
  const ScratchDir scratch;
  const fs::path target = scratch / "checkpoint";
  save_all(model.path(), target);
  save_all(model.path(), target);
  write_text(target / "train.py", "its user's\n");
  const auto before = files_of(scratch.path());
  expect_error("holds 'train.py', which is not a checkpoint file",
               [&] { save_all(model.path(), target); });
  EXPECT_EQ(files_of(scratch.path()), before);
}

TEST(PersistErrors, AnAdaptersFolderHasNoCode) {
  const model::TinyModel model(coded("modeling_tiny"));
  write_text(fs::path(model.path()) / "modeling_tiny.py", "a\n");
  write_text(fs::path(model.path()) / "tokenizer_config.json", "{}");
  const ScratchDir scratch;
  Engine engine({.model = {.path = model.path(), .mixed_precision = "no"}});
  engine.run<Done>(Create{.tenant = "me", .lora_json = kLora});
  engine.run<SaveResult>(Save{.tenant = "me", .directory = scratch / "x"});
  EXPECT_TRUE(fs::exists(scratch / "x/tokenizer_config.json"));
  EXPECT_FALSE(fs::exists(scratch / "x/modeling_tiny.py"));
}

TEST(PersistErrors, ALoopOfLinksAmongTheBasesFilesIsNamed) {
  const model::TinyModel model;
  const fs::path loop = fs::path(model.path()) / "merges.txt";
  fs::create_symlink(loop, loop);
  const ScratchDir scratch;
  Engine engine({.model = {.path = model.path(), .mixed_precision = "no"}});
  engine.run<Done>(Create{.tenant = "me", .lora_json = kLora});
  const Save save{.tenant = "me", .directory = scratch / "x"};
  EXPECT_EQ(error_of([&] { engine.run<SaveResult>(save); }),
            "io: cannot open " + loop.string() +
                ": Too many levels of symbolic links; put the file itself there");
  EXPECT_TRUE(files_of(scratch.path()).empty());
  fs::remove(loop);
  engine.run<SaveResult>(save);
}

// Memory runs out at every allocation of a save's files in turn, for one and for all that follow:
// the target holds the old ones or the new ones, and what is left of the others goes with the next.
TEST(PersistErrors, ASaveWithoutMemoryLeavesTheOldOrTheNewFiles) {
  const ScratchDir scratch(memory_folder());
  const fs::path target = scratch / "checkpoint";
  const auto save = [&](const std::string& text) {
    AtomicDirectory directory(target);
    write_file_atomically(directory.staging() / "config.json", text);
    directory.commit();
  };
  const auto text = [&] { return read_text(target / "config.json"); };
  save("new");
  for (const int64_t refused : {int64_t{1}, INT64_MAX}) {
    int64_t num_failures = 0;
    for (bool failed = true; failed; ++num_failures) {
      save("old");
      try {
        const HeapShortage shortage(num_failures, refused);
        check_target(target, scratch.path(), "field");
        save("new");
        failed = false;
      } catch (const std::bad_alloc&) {
        EXPECT_TRUE(text() == "old" || text() == "new") << num_failures;
      }
      ASSERT_LT(num_failures, 1000);
    }
    EXPECT_GT(num_failures, 20);
    EXPECT_EQ(text(), "new");
    EXPECT_EQ(files_of(scratch.path()).size(), 1u);
  }
}

TEST(PersistErrors, NameWhatCannotBeSavedOrLoaded) {
  const model::TinyModel model;
  const ScratchDir scratch;
  Engine engine({.model = {.path = model.path(), .mixed_precision = "no"}});
  engine.run<Done>(Create{.tenant = "me", .lora_json = kLora});
  engine.run<Done>(Create{.tenant = "base", .frozen = true});
  EXPECT_EQ(error_of([&] { engine.run<SaveResult>(Save{.tenant = "me"}); }),
            "engine: save: directory is empty; name a directory");
  Save save{.tenant = "me", .directory = scratch / "x", .max_shard_bytes = -1};
  EXPECT_EQ(error_of([&] { engine.run<SaveResult>(save); }),
            "engine: save: max_shard_bytes is -1, it must be at least 0, which means 5 GiB");
  save.max_shard_bytes = 1000;
  EXPECT_EQ(error_of([&] { engine.run<SaveResult>(save); }),
            "engine: save: max_shard_bytes is 1000, but tenant 'me' is an adapter, which is one "
            "file; leave it out");
  EXPECT_TRUE(files_of(scratch.path()).empty());
  EXPECT_EQ(error_of([&] { engine.run<LoadResult>(Load{"me", "/no/such/folder"}); }),
            "engine: load: no checkpoint directory /no/such/folder");
  EXPECT_EQ(error_of([&] { engine.run<LoadResult>(Load{"base", model.path()}); }),
            "engine: load: tenant 'base' is the frozen base model");
}

}  // namespace
}  // namespace twinkle::engine
