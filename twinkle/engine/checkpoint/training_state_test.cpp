// Contents of trainer_state.json and training.safetensors.
#include "twinkle/engine/checkpoint/training_state.h"

#include "twinkle/engine/checkpoint/persist_for_test.h"

namespace twinkle::engine {
namespace {

namespace fs = std::filesystem;

class TrainingStateTest : public Persist {
 protected:
  void is_not_saved(const char* field, const std::function<void()>& count);
};

TEST_P(TrainingStateTest, AFieldThatNoTrainingLeavesIsNamedAndChangesNothing) {
  const std::string file = this->file("trainer_state.json").string();
  const auto wrong = [&](const char* field, const Json& value, const std::string& what) {
    refused([&] { set(field, value); },
            "engine: load: " + file + ": field '" + field + "' is " + what);
  };
  const std::string most = ", it must be from 0 to 9007199254740992";
  wrong("num_tokens", -3, "-3" + most);
  wrong("num_tokens", 1e300, "1e+300" + most);
  wrong("calls", -1, "-1" + most);
  wrong("calls", INT64_MAX, "9223372036854775807" + most);
  wrong("published", INT64_MAX, "9223372036854775807" + most);
  wrong("published", -5, "-5" + most);
  wrong("pending", -1, "-1, it must be from 0 to 2");
  wrong("pending", INT64_MAX, "9223372036854775807, it must be from 0 to 2");
  wrong("pending", 0, "0, but training.safetensors has gradients");
  const auto drop = [](Tensors& all) {
    std::erase_if(all, [](const auto& t) { return t.first.starts_with("grad/"); });
  };
  refused([&] { edit_tensors(drop); },
          "field 'pending' is 1, but training.safetensors has no gradients");
  refused([&] { edit_tensors(drop), set("pending", 0); },
          "field 'pending' is 0, but num_tokens is 15");
}

// By `count` the field passes the limit.
void TrainingStateTest::is_not_saved(const char* field, const std::function<void()>& count) {
  save();
  set(field, int64_t{1} << 53);
  ASSERT_EQ(load(), "no error");
  count();
  const auto before = files_of(scratch_.path());
  EXPECT_EQ(error_of([&] { save(); }),
            std::string("engine: save: field '") + field +
                "' of the training state is 9007199254740993, it must be from 0 to "
                "9007199254740992; nothing was saved: save without the optimizer, and train on "
                "in a new tenant");
  EXPECT_EQ(files_of(scratch_.path()), before);
  engine_.run<SaveResult>(Save{"me", target()});
  engine_.run<LoadResult>(Load{"me", target()});
}

TEST_P(TrainingStateTest, CallsThatNoLoadWouldTakeAreNotSaved) {
  is_not_saved("calls", [&] { engine_.run<ForwardResult>(work("me")); });
}

TEST_P(TrainingStateTest, ANumberOfVersionsThatNoLoadWouldTakeIsNotSaved) {
  if (GetParam()) return;  // all weights are not published
  is_not_saved("published", [&] { engine_.run<PublishResult>(Publish{"me"}); });
}

TEST_P(TrainingStateTest, ATensorThatNoTrainingLeavesIsNamedAndChangesNothing) {
  const auto add = [&](const std::string& name) {
    return [this, name] { edit_tensors([&](Tensors& all) { all[name] = at::zeros({3}); }); };
  };
  for (const std::string name : {"junk", "grad/999", "grad/", "optimizer/junk", "master/junk"})
    refused(add(name), "tensor " + name + " belongs to no parameter of tenant 'me'");
  const auto first = [](Tensors& all, std::string_view ending) {
    return std::ranges::find_if(all, [&](const auto& t) { return t.first.ends_with(ending); });
  };
  refused(
      [&] {
        edit_tensors([&](Tensors& all) { first(all, ".exp_avg_sq")->second.neg_().sub_(1); });
      },
      "it must be finite and at least 0");
  refused(
      [&] { edit_tensors([&](Tensors& all) { first(all, ".exp_avg")->second.fill_(INFINITY); }); },
      "holds NaN or infinity");
  refused([&] { edit_tensors([&](Tensors& all) { all.erase(first(all, ".exp_avg_sq")); }); },
          "the training state has no tensor optimizer/");
  refused([&] { set("optimizer", nullptr); }, "it has optimizer tensors, but ");
}

// A few bytes on disk: the tensor is a hole in a sparse file.
TEST_P(TrainingStateTest, ATensorThatNobodyAsksForIsNotRead) {
  refused(
      [&] {
        const fs::path tensors = file("training.safetensors");
        const int64_t bytes = int64_t{1} << 40;
        const std::string text = R"({"junk":{"dtype":"F32","shape":[)" + std::to_string(bytes / 4) +
                                 R"(],"data_offsets":[0,)" + std::to_string(bytes) + "]}}";
        const uint64_t size = text.size();
        write_text(tensors, std::string(reinterpret_cast<const char*>(&size), 8) + text);
        fs::resize_file(tensors, 8 + size + static_cast<uint64_t>(bytes));
      },
      "tensor junk belongs to no parameter of tenant 'me'");
}

TEST_P(TrainingStateTest, ClippedGradientsAreStillClippedAfterALoad) {
  engine_.run<StepResult>(ClipGradNorm{.tenant = "me"});
  save();
  engine_.run<Done>(ZeroGrad{"me"});
  EXPECT_EQ(load(), "no error");
  EXPECT_NE(error_of([&] { engine_.run<ForwardResult>(work("me")); }).find("clip_grad_norm"),
            std::string::npos);
  engine_.run<StepResult>(Step{"me"});
  engine_.run<ForwardResult>(work("me"));
}

TEST_P(TrainingStateTest, WeightsOfAnotherSaveAreNamedAndChangeNothing) {
  const fs::path other = scratch_ / "other";
  const auto mix = [&] {
    train();
    engine_.run<SaveResult>(Save{"me", other.string()});
    fs::copy_file(other / weights().filename(), weights(), fs::copy_options::overwrite_existing);
  };
  const std::string what =
      GetParam() ? target() + ": the model's model.embed_tokens.weight" : weights().string();
  refused(mix, "engine: load: " + what +
                   " is of another save than trainer_state.json: copy all files of one save, or "
                   "load it without the optimizer");
  save();
  mix();
  engine_.run<LoadResult>(Load{"me", target()});  // only the weights
}

// Its weights are rounded in one engine, and have been in the other: they are of one save.
TEST_P(TrainingStateTest, AModelGoesOnInAnotherPrecisionAndBack) {
  if (!GetParam()) return;
  Engine rounding({.model = {.path = model_.path(), .mixed_precision = "bf16"}});
  rounding.run<Done>(Create{.tenant = "me"});
  save();
  for (Engine* engine : {&rounding, &engine_, &engine_, &rounding}) {
    EXPECT_EQ(error_of([&] { engine->run<LoadResult>(Load{"me", target(), true}); }), "no error");
    engine->run<SaveResult>(Save{"me", target(), true});
  }
}

INSTANTIATE_TEST_SUITE_P(LoraAndFull, TrainingStateTest, testing::Bool());

TEST(AdaptersBytes, AModelTellsHowMuchAnAdapterOfEachRankHas) {
  const model::TinyModel base;
  write_text(fs::path(base.path()) / "tokenizer.json", std::string(5000, ' '));
  Engine engine({.model = {.path = base.path(), .mixed_precision = "no"}});
  const ModelInfo& info = engine.model_info();
  EXPECT_GE(info.carried_bytes, 5000);
  engine.run<Done>(Create{.tenant = "me", .lora_json = R"({"r": 4, "target_modules": ["q_proj",
      "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]})"});
  engine.run<ForwardResult>(work("me"));
  engine.run<StepResult>(Step{.tenant = "me", .options = R"({"lr": 0.01})"});
  int64_t adapter = 0, headers = 64 << 10;
  for (const auto& [name, size] : info.adapter_sizes) {
    adapter += 4 * 4 * size.numbers;  // float32 of rank 4
    headers += 2048 * size.linears;
  }
  EXPECT_EQ(info.adapter_sizes.size(), 8u);
  const ScratchDir scratch;
  for (const bool optimizer : {false, true}) {
    const fs::path folder = scratch / (optimizer ? "checkpoint" : "for samplers");
    engine.run<SaveResult>(Save{
        .tenant = "me", .directory = folder.string(), .optimizer = optimizer, .gradients = false});
    int64_t bytes = 0;
    for (const auto& file : fs::recursive_directory_iterator(folder))
      if (file.is_regular_file()) bytes += static_cast<int64_t>(file.file_size());
    const int64_t numbers = (optimizer ? 3 : 1) * adapter + info.carried_bytes;
    EXPECT_GE(bytes, numbers);
    EXPECT_LE(bytes, numbers + headers);
  }
}

}  // namespace
}  // namespace twinkle::engine
