// The core for tests: a dispatcher over a null model behind it, no protocol before it. Time passes
// when a test says so.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/engine/schedule/dispatcher.h"
#include "twinkle/engine/schedule/null_executor_for_test.h"
#include "twinkle/io/scratch_dir_for_test.h"
#include "twinkle/server/null_backend_for_test.h"
#include "twinkle/server/service/loop_for_test.h"
#include "twinkle/serving/core/core.h"

namespace twinkle::server::core {

class CoreTest : public testing::Test {
 protected:
  CoreTest() { start(); }
  ~CoreTest() override { kill(); }

  // Goes on with what the journal holds.
  void start() {
    make();
    core_->open(opened_, accept_other_arithmetic_);
    loop_->run();
  }
  // One that has not been opened yet.
  void make() {
    kill();
    loop_ = std::make_unique<LoopForTest>();
    executor_ = std::make_unique<engine::NullExecutor>();
    executor_->on_batch = on_batch_;
    queue_.gather_ms = 0;
    dispatcher_ = std::make_unique<engine::Dispatcher>(queue_, *executor_);
    backend_ = std::make_unique<NullBackend>(*dispatcher_, names_);
    core_ = std::make_unique<Core>(*backend_, *loop_, dir_.path(), options_);
    core_->on_trouble = [this](const std::string& text) { troubles_.push_back(text); };
    opened_.arithmetic = arithmetic_;
  }
  // Whatever has not ended is not told.
  void kill() {
    if (!core_) return;
    core_->close();
    dispatcher_->close();
    core_.reset();
    loop_.reset();  // with what was posted
    dispatcher_.reset();
  }

  // Runs the loop until the task has ended. Error: what it throws.
  template <class T>
  T run(Task<T> task) {
    std::optional<T> value;
    std::exception_ptr error;
    bool is_over = false;
    Tasks tasks;
    tasks.start(take(std::move(task), value, error, is_over));
    EXPECT_TRUE(until([&] { return is_over; }));
    if (error) std::rethrow_exception(error);
    return std::move(*value);
  }
  void run(Task<> task) { run(one(std::move(task))); }
  // Time passes, too, where the loop has nothing to do.
  template <class Done>
  bool until(const Done& done) {
    for (int i = 0; i < 20000 && !done(); ++i) {
      loop_->run();
      if (done()) return true;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      if (i % 10 == 9) loop_->pass(std::chrono::milliseconds(5));
    }
    return done();
  }

  std::string session(const std::string& owner = "a") {
    const std::string id = new_id();
    run(core_->commit(OpenSession{{.id = id, .owner = owner}}));
    return id;
  }
  std::string make_run(const std::string& owner = "a") {
    const std::string in = session(owner), id = in + ":train:0";
    const std::string future =
        run(core_->create_run({.run = {.id = id,
                                       .owner = owner,
                                       .session = in,
                                       .rank = 8,
                                       .origin = {.lora_json = R"({"r": 8})"}}}));
    EXPECT_EQ(result(future)->error, "");
    return id;
  }
  static engine::ForwardBackward batch(const std::string& run, const std::string& loss = "ok") {
    return {
        .tenant = run, .sequences = {{.input_ids = {1, 2, 3}, .labels = {2, 3, 4}}}, .loss = loss};
  }
  std::string train(const std::string& id, int64_t seq_id, const std::string& loss = "ok") {
    return run(
        core_->submit({.run = id, .seq_id = seq_id, .breaks_window = true},
                      [&](const core::Run&) -> engine::Operation { return batch(id, loss); }));
  }
  std::string step(const std::string& id, int64_t seq_id) {
    return run(
        core_->submit({.run = id, .seq_id = seq_id}, [&](const core::Run&) -> engine::Operation {
          return engine::Step{.tenant = id, .options = "{}"};
        }));
  }
  std::string publish(const std::string& id, int64_t seq_id) {
    return run(core_->submit(
        {.run = id, .seq_id = seq_id, .sampler = id + ":sample:" + std::to_string(seq_id)},
        [&](const core::Run&) -> engine::Operation { return engine::Publish{id}; }));
  }
  std::string save_as(const std::string& id, int64_t seq_id, const std::string& name) {
    const std::string path = id + "/weights/" + name;
    const Checkpoint made{.path = path, .owner = "a", .run = id, .folder = "checkpoints/" + path};
    return run(core_->submit({.run = id, .seq_id = seq_id, .saves = made},
                             [&](const core::Run&) -> engine::Operation {
                               return engine::Save{.tenant = id, .directory = made.folder};
                             }));
  }
  Result result(const std::string& future) { return run(core_->wait(future)); }
  // All that has been done to the engine's tenant, in order.
  std::vector<std::string> done(const std::string& run) {
    EXPECT_TRUE(until([&] { return core_->num_recovering() == 0; }));
    std::vector<engine::Operation> one;
    one.emplace_back(engine::Inspect{run});
    const auto result =
        std::get<engine::InspectResult>(dispatcher_->submit(std::move(one))[0].get());
    std::vector<std::string> out;
    for (const auto& t : result.tensors) out.push_back(t.name.substr(0, 4));
    return out;
  }

  CoreOptions options_;
  engine::DispatcherOptions queue_;
  std::vector<std::string> names_{"null"};
  std::string arithmetic_ = "{}";
  Opened opened_{.model = "null"};
  bool accept_other_arithmetic_ = true;
  std::function<void()> on_batch_;
  ScratchDir dir_;
  std::vector<std::string> troubles_;
  std::unique_ptr<LoopForTest> loop_;
  std::unique_ptr<engine::NullExecutor> executor_;
  std::unique_ptr<engine::Dispatcher> dispatcher_;
  std::unique_ptr<NullBackend> backend_;
  std::unique_ptr<Core> core_;

 private:
  template <class T>
  static Task<> take(Task<T> task, std::optional<T>& value, std::exception_ptr& error,
                     bool& is_over) {
    try {
      value.emplace(co_await task);
    } catch (...) {
      error = std::current_exception();
    }
    is_over = true;
  }
  static Task<bool> one(Task<> task) {
    co_await task;
    co_return true;
  }
};

}  // namespace twinkle::server::core
