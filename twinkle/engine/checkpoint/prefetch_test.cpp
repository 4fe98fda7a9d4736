#include "twinkle/engine/checkpoint/prefetch.h"

#include <gtest/gtest.h>

#include <future>

#include "twinkle/engine/operations_for_test.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::engine {
namespace {

namespace fs = std::filesystem;

class PrefetchTest : public testing::Test {
 protected:
  PrefetchTest() {
    engine_.run<Done>(Create{.tenant = "me", .lora_json = kLora, .seed = 3});
    engine_.run<ForwardResult>(work("me"));
    engine_.run<StepResult>(Step{.tenant = "me", .options = R"({"lr": 0.01})"});
  }
  std::string folder() const { return scratch_ / "checkpoint"; }

  static constexpr const char* kLora = R"({"r": 4, "target_modules": ["q_proj", "down_proj"]})";
  const model::TinyModel model_;
  const ScratchDir scratch_{memory_folder()};
  Engine engine_{{.model = model_.path(), .mixed_precision = "no"}};
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

TEST_F(PrefetchTest, AFolderThatAQueuedSaveIsToWriteIsReadAfterIt) {
  const State saved = state_of(engine_, "me");
  std::vector<Operation> all{Save{"me", folder(), true}, work("me", 5),
                             Step{.tenant = "me", .options = R"({"lr": 0.01})"},
                             Load{"me", folder() + "/../checkpoint", true}};
  for (Future& future : engine_.submit(std::move(all))) future.get();
  EXPECT_EQ(state_of(engine_, "me"), saved);
}

}  // namespace
}  // namespace twinkle::engine
