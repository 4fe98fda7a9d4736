// Snapshots of runs whose queue is full, and the folders that they take the place of.
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string_view>
#include <thread>

#include "twinkle/base/file.h"
#include "twinkle/serving/starts/starts_for_test.h"

namespace {
std::atomic<bool> sync_waits = false;  // a journal's, until it is false again
}  // namespace

// In place of the system's, for every caller in this process.
extern "C" int fdatasync(int fd) {
  std::array<char, 4096> name{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = ::readlink(link.c_str(), name.data(), name.size());
  const std::string_view file(name.data(), length > 0 ? static_cast<size_t>(length) : 0);
  if (file.ends_with(".journal")) sync_waits.wait(true);
  return static_cast<int>(::syscall(SYS_fdatasync, fd));
}

namespace twinkle::server {
namespace {

namespace fs = std::filesystem;

class SnapshotsTest : public StartsTest {
 protected:
  void serve_with(double again_seconds, int64_t max_queued = 1024) {
    options_.saving.again_seconds = again_seconds;
    open({.max_queued = max_queued});
    restart();
  }
  fs::path folder(const std::string& run, const std::string& name) const {
    return dir_ / "snapshots" / run / name;
  }
};

TEST_F(SnapshotsTest, MoreVersionsThanTheQueueHasPlacesAreSavedAsPlacesCome) {
  constexpr int64_t kVersions = 100, kPlaces = 64;
  serve_with(1000, kPlaces);
  const std::string id = run();
  result(train(id, 1));
  for (int64_t v = 1; v <= kVersions; ++v) result(publish(id, v + 1));
  EXPECT_EQ(saved(id), -1) << "none was taken yet";
  run_saves();
  EXPECT_EQ(saved(id), kVersions + 1);
  restart();
  EXPECT_EQ(done(id).size(), 1U);
  EXPECT_EQ(executor_->num_batches, 0) << "nothing is computed again";
  for (int64_t v = 1; v <= kVersions; ++v)
    EXPECT_TRUE(is_there(folder(id, "version-" + std::to_string(v)))) << v;
}

TEST_F(SnapshotsTest, ARunThatPublishesAndDoesNotStepIsSaved) {
  serve_with(1000);
  const std::string id = run();
  result(train(id, 1));
  for (int64_t seq_id = 2; seq_id <= 300; ++seq_id) result(publish(id, seq_id));
  EXPECT_TRUE(is_saved(id, 250)) << "the engine keeps each version until it is in a snapshot";
}

TEST_F(SnapshotsTest, OneThatFindsNoRoomIsTakenAtTheNextPlaceAndToldOnce) {
  serve_with(1000, 1);
  const std::string id = run();
  settle();
  std::atomic<bool> go = false;
  executor_->on_batch = [&] { go.wait(false); };
  const Response first = train(id, 1), second = train(id, 2);
  Tasks tasks;
  tasks.start(core_->save_runs());
  loop_->pass(std::chrono::milliseconds(200));  // and is tried again
  ASSERT_EQ(troubles_.size(), 1U) << "told once";
  EXPECT_EQ(
      troubles_[0].find("the snapshot of the run '" + id + "' waits for room: engine: tenant '"),
      0U);
  EXPECT_NE(troubles_[0].find("max_queued is 1"), std::string::npos) << troubles_[0];
  go = true;
  go.notify_all();
  EXPECT_TRUE(is_saved(id, 1));
  EXPECT_TRUE(until([&] { return tasks.num_running() == 0; }));
  result(first), result(second);
}

TEST_F(SnapshotsTest, WhatCameBehindOneThatWasStillWrittenIsSavedAtTheEndToo) {
  std::atomic<bool> go = false;
  serve_with(1000);
  const std::string id = run();
  result(train(id, 1));
  executor_->on_write = [&] { go.wait(false); };
  Tasks tasks;
  tasks.start(core_->save_runs());
  result(step(id, 2));
  tasks.start(core_->save_runs());
  go = true;
  go.notify_all();
  EXPECT_TRUE(until([&] { return tasks.num_running() == 0; }));
  EXPECT_EQ(saved(id), 2);
  restart();
  EXPECT_EQ(done(id).size(), 2U);
  EXPECT_EQ(executor_->num_batches, 0);
}

TEST_F(SnapshotsTest, TheFolderBeforeStaysUntilTheRecordOfTheNextIsSynced) {
  options_.journal.sync_seconds = 60;  // it is synced when that is waited for
  serve_with(1000);
  const std::string id = run();
  result(train(id, 1)), result(step(id, 2));
  run_saves();
  ASSERT_EQ(saved(id), 2);
  sync_waits = true;
  result(train(id, 3)), result(step(id, 4));
  run_saves();
  ASSERT_EQ(saved(id), 4);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_TRUE(is_there(folder(id, "2")))
      << "a loss of power now would leave the record of this one";
  EXPECT_TRUE(is_there(folder(id, "4")));
  sync_waits = false;
  sync_waits.notify_all();
  EXPECT_TRUE(until([&] { return !is_there(folder(id, "2")); }));
  EXPECT_TRUE(is_there(folder(id, "4")));
}

// The engine parks runs between two of its operations: what it has been given is in memory.
TEST_F(SnapshotsTest, AStartReadsNoMoreLargeSnapshotsThanTheQueueMayHaveBytes) {
  constexpr int kRuns = 3;
  serve_with(1000);
  options_.queues.max_bytes = 100;
  for (int i = 0; i < kRuns; ++i) {
    const std::string id = run();
    for (int64_t seq_id = 1; seq_id <= 10; ++seq_id) result(step(id, seq_id));
    run_saves();
    EXPECT_GT(core_->domain().run(id)->snapshot.bytes, 100);
  }
  end();
  make();
  std::atomic<bool> is_busy = false, go = false;
  executor_->on_batch = [&] {
    is_busy = true;
    is_busy.notify_all();
    go.wait(false);
  };
  std::vector<engine::Operation> busy;
  busy.emplace_back(engine::Create{.tenant = "busy"});
  busy.emplace_back(engine::ForwardBackward{.tenant = "busy", .sequences = {{.input_ids = {1}}}});
  auto futures = dispatcher_->submit(std::move(busy));
  is_busy.wait(false);
  int num_given = 0;
  backend_->on_submit = [&] { ++num_given; };
  core_->open(opened_, true);
  for (int i = 0; i < 20; ++i) loop_->pass(std::chrono::milliseconds(50));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  loop_->pass(std::chrono::milliseconds(50));
  EXPECT_EQ(num_given, 1);
  go = true;
  go.notify_all();
  EXPECT_TRUE(until([&] { return core_->num_recovering() == 0; }));
  EXPECT_EQ(num_given, 2 * kRuns);
  for (auto& future : futures) future.get();
}

}  // namespace
}  // namespace twinkle::server
