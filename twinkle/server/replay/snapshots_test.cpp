// Snapshots of runs whose queue is full, and the folders that they take the place of.
#include "twinkle/server/service/snapshots.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <fstream>
#include <mutex>
#include <string_view>
#include <thread>

#include "twinkle/base/file.h"
#include "twinkle/server/service_for_test.h"

namespace {
std::atomic<bool> sync_waits = false;  // of a journal, until it is false again
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

class SnapshotsTest : public ServiceTest {
 protected:
  void restart(int64_t max_queued = 1024) {
    open({.max_queued = max_queued});
    go_on();
  }
  void publish(const std::string& run, int64_t seq_id) {
    result(post("/api/v1/save_weights_for_sampler", {{"model_id", run}, {"seq_id", seq_id}}));
  }
  bool is_saved(const std::string& run, int64_t seq_id) {
    return loop_->run_until([&] { return services_->snapshots.last(run) >= seq_id; });
  }
  fs::path folder(const std::string& run, const std::string& name) const {
    return dir_ / "snapshots" / run / name;
  }
};

TEST_F(SnapshotsTest, MoreVersionsThanTheQueueHasPlacesAreSavedAsPlacesCome) {
  constexpr int64_t kVersions = 100, kPlaces = 64;
  restart(kPlaces);
  const std::string id = run();
  result(train(id, 1));
  for (int64_t v = 1; v <= kVersions; ++v) publish(id, v + 1);
  EXPECT_EQ(services_->snapshots.last(id), -1) << "none was taken yet";
  // A state in which builds before this one took no snapshot any more.
  options_.truncation.journal_bytes = 1;
  restart(kPlaces);
  ASSERT_TRUE(truncate());
  EXPECT_EQ(services_->snapshots.last(id), kVersions + 1);
  restart(kPlaces);
  EXPECT_EQ(executor_->num_batches, 0) << "nothing is computed again";
  EXPECT_EQ(services_->snapshots.version(id, kVersions),
            folder(id, "version-" + std::to_string(kVersions)).string());
  for (int64_t v = 1; v <= kVersions; ++v)
    EXPECT_TRUE(is_there(folder(id, "version-" + std::to_string(v)))) << v;
}

TEST_F(SnapshotsTest, ARunThatPublishesAndDoesNotStepIsSaved) {
  restart();
  const std::string id = run();
  result(train(id, 1));
  int64_t last = 1;
  while (last < 300) publish(id, ++last);
  EXPECT_TRUE(is_saved(id, 250)) << "the engine keeps each version until it is in a snapshot";
}

TEST_F(SnapshotsTest, OneThatFindsNoRoomIsTakenAtTheNextPlaceThatTheRunGivesBack) {
  options_.lines.max_given = 1;
  restart(1);
  std::vector<std::string> told;
  services_->snapshots.on_put_off([&](const std::string& text) { told.push_back(text); });
  const std::string id = run();
  std::atomic<bool> is_busy = false, go = false;
  executor_->on_batch = [&] {
    is_busy = true;
    is_busy.notify_all();
    go.wait(false);
  };
  const Response first = train(id, 1), second = train(id, 2);
  const auto& of = *services_->runs.find(id);
  EXPECT_TRUE(services_->snapshots.take(of));
  EXPECT_TRUE(services_->snapshots.take(of)) << "it waits";
  loop_->pass(std::chrono::milliseconds(200));  // and is tried again
  ASSERT_EQ(told.size(), 1U) << "told once";
  EXPECT_EQ(told[0].find("the snapshot of the run '" + id + "' waits for room: engine: tenant '"),
            0U);
  EXPECT_NE(told[0].find("max_queued is 1"), std::string::npos) << told[0];
  EXPECT_TRUE(services_->snapshots.is_saving());
  go = true;
  go.notify_all();
  EXPECT_TRUE(is_saved(id, 1));
  EXPECT_EQ(services_->snapshots.last(id), 1) << "before the line gave the engine more";
  EXPECT_FALSE(services_->snapshots.is_saving());
  loop_->pass(std::chrono::milliseconds(200));
  result(first), result(second);
}

TEST_F(SnapshotsTest, TheFolderBeforeStaysUntilTheRecordOfTheNextIsSynced) {
  options_.snapshots.every = std::chrono::milliseconds(0);
  options_.journal.sync_seconds = 60;  // it is synced when that is waited for
  restart();
  const std::string id = run();
  result(train(id, 1)), result(step(id, 2));
  ASSERT_TRUE(is_saved(id, 2));
  sync_waits = true;
  result(train(id, 3)), result(step(id, 4));
  ASSERT_TRUE(is_saved(id, 4));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_TRUE(is_there(folder(id, "2")))
      << "a loss of power now would leave the record of this one";
  EXPECT_TRUE(is_there(folder(id, "4")));
  sync_waits = false;
  sync_waits.notify_all();
  for (int i = 0; i < 5000 && is_there(folder(id, "2")); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_FALSE(is_there(folder(id, "2")));
  EXPECT_TRUE(is_there(folder(id, "4")));
}

// The engine parks runs between two of its operations: what it has been given is in memory.
TEST_F(SnapshotsTest, AStartReadsNoMoreLargeSnapshotsThanTheEngineHasTaken) {
  constexpr int kRuns = 3;
  options_.snapshots.every = std::chrono::milliseconds(0);
  restart();
  for (int i = 0; i < kRuns; ++i) {
    const std::string id = run();
    result(train(id, 1));
    result(step(id, 2));
    ASSERT_TRUE(is_saved(id, 2));
    std::ofstream(folder(id, "2") / "large");
    fs::resize_file(folder(id, "2") / "large",
                    uintmax_t{300} << 20);  // without a block of the disk
  }
  open();
  std::atomic<bool> go = false;
  executor_->on_batch = [&] { go.wait(false); };
  std::vector<engine::Operation> busy;
  busy.emplace_back(engine::Create{.tenant = "busy"});
  busy.emplace_back(engine::ForwardBackward{.tenant = "busy", .sequences = {{.input_ids = {1}}}});
  auto futures = dispatcher_->submit(std::move(busy));
  is_busy.wait(false);
  int num_given = 0, num_turns = 0, num_given_at_once = 0;
  backend_->on_submit = [&] { ++num_given; };
  services_->open(
      {}, false,
      [this](uint64_t sequence, const Command& command) { replay(sequence, command, *services_); },
      [&] {
        loop_->run();
        if (++num_turns != 20) return;
        num_given_at_once = num_given;
        go = true;
        go.notify_all();
      });
  EXPECT_EQ(num_given_at_once, 1);
  EXPECT_EQ(num_given, 2 * kRuns);
  for (auto& future : futures) future.get();
}

}  // namespace
}  // namespace twinkle::server
