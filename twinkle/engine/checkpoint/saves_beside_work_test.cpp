// A Save is written while its tenant and others go on. The disk is held before the first file.
#include <future>
#include <thread>

#include "twinkle/base/fault/fault.h"
#include "twinkle/engine/checkpoint/persist_for_test.h"

namespace twinkle {

namespace {
std::function<void(std::string_view)> at_fault_point;  // set while no Save is written
}  // namespace

void reach_fault_point(std::string_view name) {
  if (at_fault_point) at_fault_point(name);
}

namespace engine {
namespace {

namespace fs = std::filesystem;

class SavesBesideWork : public testing::Test {
 protected:
  explicit SavesBesideWork(const std::map<std::string, std::string>& tenants = {{"me", kLora},
                                                                                {"other", kLora}})
      : tenants_(tenants) {
    restart({});
  }
  ~SavesBesideWork() override {
    let_go();
    engine_.reset();
    at_fault_point = nullptr;
  }
  void restart(EngineOptions options) {
    options.model.path = model_.path();
    options.model.mixed_precision = "no";
    engine_ = std::make_unique<Engine>(options);
    for (const auto& [name, lora] : tenants_) {
      engine_->run<Done>(Create{.tenant = name, .lora_json = lora, .seed = 3});
      train(name);
    }
  }
  void train(const std::string& tenant, uint64_t seed = 1) {
    engine_->run<ForwardResult>(work(tenant, seed));
    engine_->run<StepResult>(Step{.tenant = tenant, .options = R"({"lr": 0.01})"});
  }
  std::string folder(const std::string& name = "x") const { return (scratch_ / name).string(); }

  // Submits a Save and returns when a disk that is slow, and then perhaps `fails`, keeps it.
  Future held_save(const std::string& tenant = "me", bool fails = false) {
    std::promise<void> reached;
    at_fault_point = [fails, &reached, wait = go_on_.get_future().share(),
                      first = true](std::string_view name) mutable {
      if (name != "before a save's files" || !std::exchange(first, false)) return;
      reached.set_value();
      wait.wait();
      require(!fails, Code::kInternal, "the disk is broken");
    };
    is_held_ = true;
    Future out = engine_->submit(Save{tenant, folder(), true, "note"});
    reached.get_future().wait();
    return out;
  }
  void let_go() {
    if (std::exchange(is_held_, false)) go_on_.set_value();
  }
  static bool has_ended(const Future& future) {
    return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  State loaded(const std::string& name = "x") {
    engine_->run<Done>(Create{.tenant = "copy", .lora_json = kLora, .seed = 9});
    engine_->run<LoadResult>(Load{"copy", folder(name), true});
    return state_of(*engine_, "copy");
  }

  const std::map<std::string, std::string> tenants_;  // and their lora_json
  const model::TinyModel model_;
  const ScratchDir scratch_{memory_folder()};
  std::promise<void> go_on_;
  bool is_held_ = false;
  std::unique_ptr<Engine> engine_;
};

TEST_F(SavesBesideWork, StepsOfItsTenantAndBatchesOfOthersEndBeforeASaveOfWhatWasThen) {
  engine_->run<ForwardResult>(work("me", 7));  // gradients that wait for a step
  const State then = state_of(*engine_, "me");
  Future saved = held_save();
  engine_->run<StepResult>(Step{.tenant = "me", .options = R"({"lr": 0.01})"});
  train("me", 5);
  train("other", 5);
  engine_->run<ForwardResult>(work("me", 8));
  const State now = state_of(*engine_, "me");
  EXPECT_FALSE(has_ended(saved));
  EXPECT_FALSE(fs::exists(folder()));
  let_go();
  EXPECT_EQ(std::get<SaveResult>(saved.get()).directory, folder());
  EXPECT_EQ(loaded(), then);
  EXPECT_EQ(state_of(*engine_, "me"), now);
}

// The same operations without a Save among them.
TEST_F(SavesBesideWork, ASaveThatIsWrittenChangesNoBitOfWhatItsTenantLearns) {
  Future saved = held_save();
  for (const uint64_t seed : {2, 3, 4}) train("me", seed);
  let_go();
  saved.get();
  for (const uint64_t seed : {2, 3, 4}) train("other", seed);
  EXPECT_EQ(state_of(*engine_, "me"), state_of(*engine_, "other"));
}

TEST_F(SavesBesideWork, ALoadOfTheFolderWaitsForItInAnyQueue) {
  const State then = state_of(*engine_, "me");
  Future saved = held_save();
  train("me", 5);
  Future mine = engine_->submit(Load{"me", folder(), true});
  Future others = engine_->submit(Load{"other", folder(), true});
  Future made = engine_->submit(Create{.tenant = "new", .directory = folder() + "/../x"});
  engine_->run<Done>(Create{.tenant = "base", .frozen = true});
  EXPECT_FALSE(has_ended(mine) || has_ended(others) || has_ended(made));
  let_go();
  mine.get();
  others.get();
  made.get();
  EXPECT_EQ(state_of(*engine_, "me"), then);
  EXPECT_EQ(state_of(*engine_, "other"), then);
  EXPECT_EQ(std::get<0>(state_of(*engine_, "new")), std::get<0>(then));
}

TEST_F(SavesBesideWork, OfTwoToOneFolderTheLaterOneWinsWhole) {
  Future first = held_save();
  train("me", 5);
  const State then = state_of(*engine_, "me");
  Future second = engine_->submit(Save{"me", folder(), true, "second"});
  train("me", 6);
  let_go();
  first.get();
  second.get();
  EXPECT_EQ(loaded(), then);
  EXPECT_EQ(engine_->run<LoadResult>(Load{"me", folder(), true}).extra_json, "second");
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch_.path()), {}), 1);
}

TEST_F(SavesBesideWork, AStateThatIsBeingWrittenIsNotParked) {
  engine_.reset();
  restart({.parking = {.resident_bytes = 1, .directory = (scratch_ / "parked").string()}});
  const State then = state_of(*engine_, "me");
  Future saved = held_save();
  for (const uint64_t seed : {5, 6}) train("other", seed);
  EXPECT_EQ(engine_->parking().num_parked, 0);
  let_go();
  saved.get();
  for (const uint64_t seed : {5, 6}) train("other", seed);
  EXPECT_EQ(engine_->parking().num_parked, 1);
  EXPECT_EQ(loaded(), then);
}

TEST_F(SavesBesideWork, ClosingLetsItEnd) {
  const State then = state_of(*engine_, "me");
  Future saved = held_save();
  std::thread closing([this] { engine_->close(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(has_ended(saved));
  let_go();
  closing.join();
  saved.get();
  restart({});
  EXPECT_EQ(loaded(), then);
}

TEST_F(SavesBesideWork, TheTokenizersFilesAreReadAtTheFirstSaveAlone) {
  const fs::path tokenizer = fs::path(model_.path()) / "tokenizer.json";
  write_text(tokenizer, "first");
  engine_->run<SaveResult>(Save{.tenant = "me", .directory = folder("1")});
  fs::remove(tokenizer);
  engine_->run<SaveResult>(Save{.tenant = "me", .directory = folder("2")});
  EXPECT_EQ(read_text(scratch_ / "2/tokenizer.json"), "first");
}

// Names, not numbers: a checkpoint of other software, or of another order, can be read by them.
TEST_F(SavesBesideWork, EveryTensorOfTheTrainingStateIsNamedAfterItsParameter) {
  engine_->run<ForwardResult>(work("me", 7));
  engine_->run<SaveResult>(Save{"me", folder(), true});
  std::set<std::string> want, steps;
  for (const auto& t : engine_->run<InspectResult>(Inspect{"me", true}).tensors) {
    if (t.name.starts_with("grad/") || t.name.starts_with("optimizer/")) continue;
    steps.insert(t.name);
    want.insert({"grad/" + t.name, "optimizer/" + t.name + ".exp_avg",
                 "optimizer/" + t.name + ".exp_avg_sq"});
  }
  std::set<std::string> found, counted;
  const SafetensorsFile file(scratch_ / "x/training.safetensors");
  for (const StoredTensor& t : file.tensors()) found.insert(t.name);
  EXPECT_EQ(found, want);
  const Json state = read_json(scratch_ / "x/trainer_state.json");
  for (const auto& [name, count] : state.at("training").at("optimizer").at("steps").as_object())
    counted.insert(std::string(name));
  EXPECT_EQ(counted, steps);
}

// A model, which is written from where it is. Its tenant is the only one.
class ModelSavesBesideWork : public SavesBesideWork {
 protected:
  ModelSavesBesideWork() : SavesBesideWork({{"me", ""}}) {}

  // The dispatcher has begun what it may of all that was submitted.
  void settle() {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_THROW(engine_->run<Done>(ZeroGrad{"nobody"}), Error);
  }
  State loaded_by_itself() {
    engine_->run<LoadResult>(Load{"me", folder(), true});
    return state_of(*engine_, "me");
  }
};

TEST_F(ModelSavesBesideWork, ItRunsForwardsBackwardsSamplesAndSavesAndAStepWaits) {
  const State then = state_of(*engine_, "me");
  Future saved = held_save();
  engine_->run<ForwardResult>(work("me", 5));
  engine_->run<ForwardResult>(Forward{.tenant = "me", .sequences = {drawn(5, 6)}});
  engine_->run<SampleResult>(
      Sample{.tenant = "me", .prompts = {{1, 2, 3}}, .params = {{.max_tokens = 2}}});
  Future again = engine_->submit(Save{"me", folder("again")});
  const State learnt = state_of(*engine_, "me");
  Future step = engine_->submit(Step{.tenant = "me", .options = R"({"lr": 0.01})"});
  settle();
  EXPECT_FALSE(has_ended(saved) || has_ended(again) || has_ended(step));
  EXPECT_FALSE(fs::exists(folder()));
  let_go();
  saved.get();
  again.get();
  step.get();
  EXPECT_NE(state_of(*engine_, "me"), learnt);
  EXPECT_EQ(loaded_by_itself(), then);
}

TEST_F(ModelSavesBesideWork, WhatChangesItsWeightsWaits) {
  const State then = state_of(*engine_, "me");
  engine_->run<SaveResult>(Save{"me", folder("1"), true});
  train("me", 5);
  const std::vector<Operation> changes{Load{"me", folder("1"), true}, Delete{"me"}};
  for (const Operation& change : changes) {
    Future saved = held_save();
    Future changed = engine_->submit(change);
    settle();
    EXPECT_FALSE(has_ended(changed)) << change.index();
    let_go();
    saved.get();
    changed.get();
    go_on_ = {};
    if (std::holds_alternative<Load>(change)) {
      EXPECT_EQ(state_of(*engine_, "me"), then);
    }
  }
  engine_->run<Done>(Create{.tenant = "me", .seed = 3});
  EXPECT_EQ(loaded_by_itself(), then);
}

// They are added to where they are.
TEST_F(ModelSavesBesideWork, GradientsThatAreSavedAreNotAddedToMeanwhile) {
  engine_->run<ForwardResult>(work("me", 7));
  const State then = state_of(*engine_, "me");
  Future saved = held_save();
  Future more = engine_->submit(work("me", 8));
  Future clipped = engine_->submit(ClipGradNorm{.tenant = "me", .max_grad_norm = 0.01});
  settle();
  EXPECT_FALSE(has_ended(more) || has_ended(clipped));
  let_go();
  saved.get();
  more.get();
  clipped.get();
  EXPECT_EQ(loaded_by_itself(), then);
}

TEST_F(ModelSavesBesideWork, AWriteThatFailsIsTheSavesOwnErrorAndChangesNothing) {
  const State then = state_of(*engine_, "me");
  Future saved = held_save("me", true);
  Future step = engine_->submit(Step{.tenant = "me", .none_is_zero = true});
  let_go();
  EXPECT_EQ(error_of([&] { saved.get(); }), "the disk is broken");
  step.get();
  EXPECT_FALSE(fs::exists(folder()));
  EXPECT_NE(state_of(*engine_, "me"), then);
  const State now = state_of(*engine_, "me");
  engine_->run<SaveResult>(Save{"me", folder(), true});
  EXPECT_EQ(loaded_by_itself(), now);
}

TEST_F(ModelSavesBesideWork, ClosingLetsItEnd) {
  const State then = state_of(*engine_, "me");
  Future saved = held_save();
  std::thread closing([this] { engine_->close(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(has_ended(saved));
  let_go();
  closing.join();
  saved.get();
  restart({});
  EXPECT_EQ(loaded_by_itself(), then);
}

}  // namespace
}  // namespace engine
}  // namespace twinkle
