#include "twinkle/mesh/watch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <future>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

namespace twinkle::mesh {
namespace {

// The watches of n ranks, with connections as a Rendezvous makes them; `held` are other ends, of
// ranks that say nothing.
struct Ranks {
  explicit Ranks(int size, double timeout_s = 60, int silent = -1) {
    std::vector<int> of_first;
    std::vector<std::vector<int>> of_others;
    for (int r = 1; r < size; ++r) {
      std::array<int, 2> pair{};
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()), 0);
      of_first.push_back(pair[0]);
      of_others.push_back({pair[1]});
    }
    watches.push_back(std::make_unique<Watch>(0, size, of_first, timeout_s));
    for (int r = 1; r < size; ++r) {
      const std::vector<int>& own = of_others[static_cast<size_t>(r) - 1];
      if (r == silent)
        held.push_back(own[0]);
      else
        watches.push_back(std::make_unique<Watch>(r, size, own, timeout_s));
    }
  }
  ~Ranks() {
    watches.clear();
    for (const int fd : held) close(fd);
  }

  std::vector<std::unique_ptr<Watch>> watches;
  std::vector<int> held;
};

// The timeout of ranks that are silent, late or apart: longer than a busy machine holds up a
// thread.
constexpr double kTimeoutS = 2;
// In which nothing must be said.
void wait_for_longer_than_the_timeout() {
  std::this_thread::sleep_for(std::chrono::duration<double>(2.5 * kTimeoutS));
}

// For 20 s at most.
template <class IsSo>
void wait_until(const IsSo& is_so) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!is_so() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

// Once it is known.
std::string why(const Watch& watch, const std::string& scope = "a") {
  std::string out;
  wait_until([&] { return (out = watch.why_after("nothing", scope)) != "nothing"; });
  return out;
}
// The same, where an end is known before.
std::string why_after_end(const Watch& watch) {
  wait_until([&] { return !watch.why("a").empty(); });
  return watch.why("a");
}

TEST(Watch, AConnectionThatEndsNamesItsRankOnEveryOther) {
  Ranks of(4, 60, 2);
  EXPECT_EQ(of.watches[0]->why("a"), "");
  close(of.held[0]);
  of.held.clear();
  for (const auto& watch : of.watches)
    EXPECT_EQ(why(*watch).substr(0, 26), "mesh: rank 2 has gone: its") << watch->rank();
}

TEST(Watch, TheFirstRanksEndIsSeenByAll) {
  Ranks of(3);
  of.watches[0].reset();
  for (int r : {1, 2}) EXPECT_EQ(why(*of.watches[r]).substr(0, 21), "mesh: rank 0 has gone") << r;
  of.watches.clear();
}

// As of a rank that has begun a helper: a worker of a data loader, or a reward's own process.
TEST(Watch, ARankThatIsKilledHasGoneThoughAForkOfItLives) {
  std::array<int, 2> ends{}, told{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  ASSERT_EQ(pipe(told.data()), 0);
  const pid_t rank = fork();
  if (rank == 0) {
    alarm(60);
    close(ends[0]);
    const Watch its(1, 2, {ends[1]}, 60);
    const pid_t helper = fork();
    alarm(60);  // a fork has no alarm
    if (helper > 0) (void)!write(told[1], &helper, sizeof(helper));
    while (true) pause();
  }
  close(ends[1]);
  const Watch watch(0, 2, {ends[0]}, 60);
  pid_t helper = 0;
  ASSERT_EQ(read(told[0], &helper, sizeof(helper)), static_cast<ssize_t>(sizeof(helper)));
  EXPECT_EQ(watch.why("a"), "");
  kill(rank, SIGKILL);
  EXPECT_EQ(waitpid(rank, nullptr, 0), rank);
  EXPECT_EQ(why(watch).substr(0, 21), "mesh: rank 1 has gone");
  EXPECT_EQ(kill(helper, SIGKILL), 0) << "it has not lived until now";
  for (const int fd : told) close(fd);
}

TEST(Watch, AForkClosesItsCopiesOfTheConnectionsAndNoFileThatHasTheirNumbers) {
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  auto watch = std::make_unique<Watch>(0, 2, std::vector{ends[0]}, 60);
  const pid_t child = fork();
  if (child == 0) {
    const bool is_closed = fcntl(ends[0], F_GETFD) < 0;
    dup2(STDERR_FILENO, ends[0]);
    watch.reset();
    _exit(is_closed && fcntl(ends[0], F_GETFD) >= 0 ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_GE(fcntl(ends[0], F_GETFD), 0) << "the process's own";
  EXPECT_EQ(watch->why("a"), "");
  watch.reset();
  EXPECT_LT(fcntl(ends[0], F_GETFD), 0);
  close(ends[1]);
}

TEST(Watch, WhatARankSaysOfItsFailureIsWhatAllSay) {
  const Ranks of(3);
  of.watches[2]->fail("a", "rank 2: no memory");
  for (const auto& watch : of.watches) EXPECT_EQ(why(*watch), "rank 2: no memory");
  of.watches[1]->fail("a", "rank 1: later");
  for (const auto& watch : of.watches) {
    EXPECT_EQ(watch->why("a"), "rank 2: no memory");
    EXPECT_EQ(watch->why("b"), "") << "of another scope";
  }
  of.watches[0]->fail("", "all is over");
  for (const auto& watch : of.watches) EXPECT_EQ(why(*watch, "b"), "all is over");
}

TEST(Watch, AnEndThatIsSaidIsNoFailureUnlessACallFails) {
  Ranks of(3);
  of.watches[2]->end();
  of.watches.pop_back();
  for (const auto& watch : of.watches) {
    EXPECT_EQ(why(*watch), "mesh: rank 2 has ended its script, and can't be asked");
    EXPECT_EQ(watch->why("a"), "");
  }
}

TEST(Watch, WhoWaitsForARankThatHasEndedIsTold) {
  const Ranks of(3);
  const Watch::Waiting waits(*of.watches[2], "step of 'a'"), as(*of.watches[1], Watch::kEnd);
  of.watches[1]->end();
  for (const auto& watch : of.watches)
    EXPECT_EQ(why_after_end(*watch),
              "mesh: rank 1 has ended its script, rank 2 waits for it at step of 'a'");
}

TEST(Watch, WhoWaitsForTheFirstRankWhichHasEndedIsTold) {
  Ranks of(2);
  const Watch::Waiting waits(*of.watches[1], "the making of an engine");
  {
    const Watch::Waiting was_there(*of.watches[0], "the making of an engine");
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // the watch has reported it
  }
  of.watches[0]->end();
  of.watches[0].reset();
  EXPECT_EQ(why_after_end(*of.watches[1]),
            "mesh: rank 0 has ended its script, rank 1 waits for it at the making of an engine");
}

TEST(Watch, ARankIsSilentForTheTimeoutAtMost) {
  const auto begun = std::chrono::steady_clock::now();
  const Ranks of(3, kTimeoutS, 1);
  for (const auto& watch : of.watches)
    EXPECT_EQ(why(*watch).substr(0, 44), "mesh: rank 1 has been silent for 2 s: its pr");
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(5));
}

void expect_late(const Ranks& of, const std::string& text) {
  for (const auto& watch : of.watches) {
    wait_until([&] { return watch->late() == text; });
    EXPECT_EQ(watch->why("a"), "");
    EXPECT_EQ(watch->late(), text) << watch->rank();
  }
}

TEST(Watch, ARankThatDoesSomethingElseLivesAndIsNamedOnEveryRank) {
  const Ranks of(3, kTimeoutS);
  {
    const Watch::Waiting first(*of.watches[0], "step of 'a'"), third(*of.watches[2], "step of 'a'");
    expect_late(of,
                "rank 1 has not come to step of 'a', where rank 0 has waited for 2 s or more; "
                "its process lives, so this goes on waiting");
  }
  expect_late(of, "");
}

TEST(Watch, TheFirstRankIsNamedTooWhereItDoesSomethingElse) {
  const Ranks of(2, kTimeoutS);
  const Watch::Waiting waits(*of.watches[1], "step of 'a'");
  expect_late(of,
              "rank 0 has not come to step of 'a', where rank 1 has waited for 2 s or more; "
              "its process lives, so this goes on waiting");
}

TEST(Watch, RanksThatWaitForEachOtherAtDifferentPlacesHaveFailed) {
  const Ranks of(2, kTimeoutS);
  {
    const Watch::Waiting same(*of.watches[0], "a"), as(*of.watches[1], "a");
    wait_for_longer_than_the_timeout();
    EXPECT_EQ(of.watches[0]->why(""), "");
    for (const auto& watch : of.watches) EXPECT_EQ(watch->late(), "");
  }
  const Watch::Waiting first(*of.watches[0], "a"), second(*of.watches[1], "b");
  for (const auto& watch : of.watches)
    EXPECT_EQ(why(*watch),
              "mesh: the ranks wait for each other: rank 0 at a, rank 1 at b: all ranks must call "
              "the same methods in the same order");
}

// One thread of each has come to where the other's is late.
TEST(Watch, RanksWhoseOtherThreadsAreBusyAreNotApart) {
  const Ranks of(2, kTimeoutS);
  std::promise<void> ends;
  const std::shared_future<void> end = ends.get_future().share();
  std::latch have_waited(3);
  std::vector<std::thread> others;
  for (const auto& watch : of.watches) {
    others.emplace_back([&] {
      {
        const Watch::Waiting before(*watch, "earlier");
      }
      have_waited.count_down();
      end.wait();
    });
  }
  have_waited.arrive_and_wait();
  const Watch::Waiting first(*of.watches[0], "a"), second(*of.watches[1], "b");
  wait_for_longer_than_the_timeout();
  for (const auto& watch : of.watches) EXPECT_EQ(watch->why(""), "");
  ends.set_value();
  for (std::thread& thread : others) thread.join();
  for (const auto& watch : of.watches)
    EXPECT_EQ(why(*watch).substr(0, 53), "mesh: the ranks wait for each other: rank 0 at a, ran");
}

}  // namespace
}  // namespace twinkle::mesh
