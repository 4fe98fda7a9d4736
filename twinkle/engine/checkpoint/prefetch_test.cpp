#include "twinkle/engine/checkpoint/prefetch.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "twinkle/base/parallel.h"
#include "twinkle/engine/operations_for_test.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::engine {
namespace {

namespace fs = std::filesystem;

class PrefetchTest : public testing::Test {
 protected:
  PrefetchTest() {
    engine_.run<Done>(Create{.tenant = "me", .lora_json = kLora, .seed = 3});
    train();
  }
  void train() {
    engine_.run<ForwardResult>(work("me"));
    engine_.run<StepResult>(Step{.tenant = "me", .options = R"({"lr": 0.01})"});
  }
  std::string folder() const { return scratch_ / "checkpoint"; }

  static constexpr const char* kLora = R"({"r": 4, "target_modules": ["q_proj", "down_proj"]})";
  const model::TinyModel model_;
  const ScratchDir scratch_{memory_folder()};
  // Less than the model's weights, more than an adapter's state.
  Engine engine_{{.model = {.path = model_.path(), .mixed_precision = "no"},
                  .scheduling = {.max_queued_bytes = 100'000}}};
};

// The engine's thread is held until the files are gone.
TEST_F(PrefetchTest, FilesAreReadWhenTheOperationIsSubmitted) {
  engine_.run<SaveResult>(Save{"me", folder(), true});
  const State saved = state_of(engine_, "me");
  engine_.run<ForwardResult>(work("me", 5));
  engine_.run<StepResult>(Step{.tenant = "me", .options = R"({"lr": 0.01})"});
  std::promise<void> gone;
  engine_.run<Done>(Create{.tenant = "other", .frozen = true});
  Future held =
      engine_.submit(Sample{.tenant = "other", .prompts = {{3}}, .params = {{.max_tokens = 1}}},
                     {.on_tokens = [wait = gone.get_future().share()](auto) { wait.wait(); }});
  Future load = engine_.submit(Load{"me", folder(), true});
  Future made = engine_.submit(Create{.tenant = "new", .directory = folder()});
  fs::remove_all(folder());
  Future missing = engine_.submit(Load{"me", folder(), true});
  gone.set_value();
  held.get();
  load.get();
  made.get();
  EXPECT_EQ(state_of(engine_, "me"), saved);
  EXPECT_EQ(std::get<0>(state_of(engine_, "new")), std::get<0>(saved));
  EXPECT_EQ(error_of([&] { missing.get(); }), "engine: load: no checkpoint directory " + folder());
}

// At every limit: never as if waiting could help.
TEST_F(PrefetchTest, AStateThatTheQueueCouldNeverHoldIsRefusedWhenItIsSubmitted) {
  engine_.run<SaveResult>(Save{"me", folder(), true});
  int64_t limit = 1000;
  for (bool fits = false; !fits; limit = limit * 5 / 4) {
    Engine small{{.model = {.path = model_.path(), .mixed_precision = "no"},
                  .scheduling = {.max_queued_bytes = limit}}};
    small.run<Done>(Create{.tenant = "me", .lora_json = kLora});
    try {
      small.submit(Load{"me", folder(), true}).get();
      fits = true;
    } catch (const Error& e) {
      EXPECT_EQ(e.code, Code::kInvalid) << limit << ": " << e.what();
      EXPECT_NE(std::string(e.what()).find("max_queued_bytes is " + std::to_string(limit)),
                std::string::npos)
          << e.what();
    }
    EXPECT_EQ(small.stats().queued_bytes, 0);
    ASSERT_LT(limit, 100'000);
  }
  EXPECT_GT(limit, 2000);
}

TEST_F(PrefetchTest, AnInterruptedReaderSubmitsAndHoldsNothing) {
  engine_.run<SaveResult>(Save{"me", folder(), true});
  const State saved = state_of(engine_, "me");
  const auto interrupted = [&](Operation operation) {
    const Interrupt interrupt([] { return true; });
    std::this_thread::sleep_for(Interrupt::kSlice);
    EXPECT_THROW(engine_.submit(std::move(operation)), Interrupted);
  };
  train();
  interrupted(Load{"me", folder(), true});
  interrupted(Create{.tenant = "new", .directory = folder()});
  EXPECT_EQ(engine_.stats().num_queued, 0);
  EXPECT_EQ(engine_.stats().queued_bytes, 0);
  EXPECT_NE(state_of(engine_, "me"), saved);
  engine_.run<Done>(Create{.tenant = "new", .directory = folder()});
  engine_.run<LoadResult>(Load{"me", folder(), true});
  EXPECT_EQ(state_of(engine_, "me"), saved);
}

// "all-linear" stands for names that only the model tells.
TEST_F(PrefetchTest, FilesOfATenantThatIsStillToBeCreatedAreRead) {
  const char* const all = R"({"r": 1, "target_modules": "all-linear"})";
  engine_.run<Done>(Create{.tenant = "all", .lora_json = all, .seed = 5});
  engine_.run<SaveResult>(Save{"all", folder()});
  std::promise<void> gone;
  engine_.run<Done>(Create{.tenant = "other", .frozen = true});
  Future held =
      engine_.submit(Sample{.tenant = "other", .prompts = {{3}}, .params = {{.max_tokens = 1}}},
                     {.on_tokens = [wait = gone.get_future().share()](auto) { wait.wait(); }});
  std::vector<Future> pair = engine_.submit(
      std::vector<Operation>{Create{.tenant = "new", .lora_json = all}, Load{"new", folder()}});
  fs::remove_all(folder());
  gone.set_value();
  held.get();
  for (Future& future : pair) future.get();
  EXPECT_EQ(std::get<0>(state_of(engine_, "new")), std::get<0>(state_of(engine_, "all")));
}

TEST_F(PrefetchTest, AFolderThatAQueuedSaveIsToWriteIsReadAfterIt) {
  const State saved = state_of(engine_, "me");
  std::vector<Operation> all{Save{"me", folder(), true}, work("me", 5),
                             Step{.tenant = "me", .options = R"({"lr": 0.01})"},
                             Load{"me", folder() + "/../checkpoint", true}};
  for (Future& future : engine_.submit(std::move(all))) future.get();
  EXPECT_EQ(state_of(engine_, "me"), saved);
}

// A tenant that trains all weights.
class PrefetchAllWeights : public PrefetchTest {
 protected:
  PrefetchAllWeights() {
    engine_.run<Done>(Delete{"me"});
    engine_.run<Done>(Create{.tenant = "base", .frozen = true});
    base_ = std::get<0>(state_of(engine_, "base"));
    engine_.run<Done>(Delete{"base"});
    engine_.run<Done>(Create{.tenant = "me", .seed = 3});
    train();
  }
  // The engine's thread waits in this operation until the promise is kept.
  Future hold(std::promise<void>& until) {
    return engine_.submit(
        Sample{.tenant = "me", .prompts = {{3}}, .params = {{.max_tokens = 1}}},
        {.on_tokens = [wait = until.get_future().share()](auto) { wait.wait(); }});
  }
  fs::path weights() const { return fs::path(model_.path()) / "model.safetensors"; }
  std::string refusal_of(const Operation& operation) {
    return error_of([&] { engine_.submit(operation).get(); });
  }

  uint64_t base_ = 0;  // the base model's weights
};

TEST_F(PrefetchAllWeights, ALoadAndADeleteReadTheirFilesWhenTheyAreSubmitted) {
  engine_.run<SaveResult>(Save{"me", folder(), true});
  const State saved = state_of(engine_, "me");
  train();
  std::promise<void> gone;
  Future held = hold(gone);
  std::vector<Future> all = engine_.submit(
      std::vector<Operation>{Load{"me", folder(), true}, Inspect{"me"}, Delete{"me"}});
  fs::remove_all(folder());
  fs::remove(weights());
  gone.set_value();
  held.get();
  all[0].get();
  EXPECT_EQ(std::get<InspectResult>(all[1].get()).weights, std::get<0>(saved));
  all[2].get();
  engine_.run<Done>(Create{.tenant = "base", .frozen = true});
  EXPECT_EQ(std::get<0>(state_of(engine_, "base")), base_);
}

// They are larger than max_queued_bytes.
TEST_F(PrefetchAllWeights, OneLoadAtATimeHoldsAllWeightsAndTheNextIsReadAtItsTurn) {
  engine_.run<SaveResult>(Save{"me", folder(), true});
  const auto loads = [&] {
    std::promise<void> gone;
    Future held = hold(gone);
    const int64_t before = engine_.stats().queued_bytes;
    std::vector<Future> out;
    for (int i = 0; i < 2; ++i) out.push_back(engine_.submit(Load{"me", folder(), true}));
    EXPECT_LT(engine_.stats().queued_bytes - before, 10000);
    fs::rename(folder(), scratch_ / "away");
    gone.set_value();
    held.get();
    out[0].get();
    EXPECT_EQ(error_of([&] { out[1].get(); }), "engine: load: no checkpoint directory " + folder());
    fs::rename(scratch_ / "away", folder());
  };
  loads();
  loads();  // the first ones have let go of the weights with their results
}

TEST_F(PrefetchAllWeights, ATenantWhoseDeleteFailedKeepsTheEngineUntilItsFilesAreBack) {
  const State before = state_of(engine_, "me");
  fs::rename(weights(), weights().string() + ".away");
  const std::string path = model_.path();
  EXPECT_EQ(refusal_of(Delete{"me"}),
            "engine: delete: tenant 'me' stays, because the base model's weights that it trained "
            "can't be read again: io: " +
                path +
                " holds no weights: a checkpoint has model.safetensors, "
                "model.safetensors.index.json, one *.safetensors or one *.gguf; put the files of " +
                path + " back and delete it again, or save it and make another engine");
  EXPECT_EQ(state_of(engine_, "me"), before);
  train();
  engine_.run<SaveResult>(Save{"me", folder(), true});
  for (const Create& other : {Create{.tenant = "new", .frozen = true},
                              Create{.tenant = "new", .lora_json = kLora}, Create{.tenant = "new"}})
    EXPECT_EQ(refusal_of(other),
              "engine: tenant 'me' trains all weights of the base model; delete it first");
  fs::rename(weights().string() + ".away", weights());
  engine_.run<Done>(Delete{"me"});
  engine_.run<Done>(Create{.tenant = "new", .frozen = true});
  EXPECT_EQ(std::get<0>(state_of(engine_, "new")), base_);
}

// Its mode and rank are those of the Create that is submitted before it.
TEST_F(PrefetchTest, ALoadIsReadForTheTenantThatItWillFind) {
  engine_.run<SaveResult>(Save{"me", folder(), true});
  const State saved = state_of(engine_, "me");
  const std::string whole = scratch_ / "whole";
  std::vector<Future> all = engine_.submit(std::vector<Operation>{
      Delete{"me"}, Create{.tenant = "me"}, Save{"me", whole}, Delete{"me"},
      Create{.tenant = "me", .lora_json = R"({"r": 2, "target_modules": ["q_proj"]})"},
      Load{"me", folder()}, Delete{"me"}, Create{.tenant = "me", .lora_json = kLora},
      Load{"me", folder(), true}});
  for (const size_t i : {0, 1, 2, 3, 4, 6, 7, 8}) all[i].get();
  EXPECT_EQ(error_of([&] { all[5].get(); }),
            "lora: " + folder() +
                ": the saved adapter has rank 4, this one has 2: create it with the r and "
                "rank_pattern of the saved one");
  EXPECT_EQ(state_of(engine_, "me"), saved);

  // The Create that it was read for fails: it is read again, for the tenant that is there.
  train();
  std::vector<Future> pair =
      engine_.submit(std::vector<Operation>{Create{.tenant = "me"}, Load{"me", folder(), true}});
  EXPECT_EQ(error_of([&] { pair[0].get(); }), "engine: tenant 'me' exists already");
  pair[1].get();
  EXPECT_EQ(state_of(engine_, "me"), saved);
}

}  // namespace
}  // namespace twinkle::engine
