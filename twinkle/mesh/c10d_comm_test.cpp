// When a call over a process group waits, is left, and begins no more. The group is the test's own,
// without a network.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <vector>

#include "twinkle/base/error_for_test.h"
#include "twinkle/base/parallel.h"
#include "twinkle/mesh/watched_comm.h"

namespace twinkle::mesh {
namespace {

using std::chrono::milliseconds;

// The call that a rank has begun. It comes when the test says so; for 3 s, too, of a wait without
// an end.
class Call : public c10d::Work {
 public:
  bool wait(milliseconds timeout) override {
    ++num_waits;
    longest = timeout;
    std::unique_lock<std::mutex> lock(mutex_);
    const milliseconds most = timeout == kNoTimeout ? kLong : std::min(timeout, kLong);
    if (!cv_.wait_for(lock, most, [this] { return completed_ || is_left; }))
      throw std::runtime_error("timed out");
    return completed_;
  }
  void abort() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_left = true;
    cv_.notify_all();
  }
  void arrive() { finish(); }

  static constexpr milliseconds kLong{3000};
  std::atomic<int> num_waits = 0;
  std::atomic<milliseconds> longest = milliseconds(0);
  std::atomic<bool> is_left = false;
};

// The first of two ranks.
class FirstOfTwo : public c10d::ProcessGroup {
 public:
  FirstOfTwo() : ProcessGroup(0, 2) {}

  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>&, int, int) override {
    return begun();
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor&, at::Tensor&,
                                                 const c10d::AllgatherOptions&) override {
    return begun();
  }

  std::function<void(Call&)> on_begin = [](Call&) {};
  std::vector<c10::intrusive_ptr<Call>> calls;

 private:
  c10::intrusive_ptr<c10d::Work> begun() {
    calls.push_back(c10::make_intrusive<Call>());
    on_begin(*calls.back());
    return calls.back();
  }
};

class CommOfAGroup : public testing::Test {
 protected:
  CommOfAGroup() {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends_.data()), 0);
    watch_ = std::make_shared<Watch>(0, 2, std::vector<int>{ends_[0]}, 60);
    c10d::register_process_group(kName, group_);
    comm_ = c10d_comm(kName, watch_);
  }
  ~CommOfAGroup() override {
    comm_.reset();
    watch_.reset();
    ::close(ends_[1]);
  }

  void gather() {
    at::Tensor all = at::zeros({2}), mine = at::zeros({1});
    comm_->gather_into(all, mine);
  }
  std::unique_ptr<Transfer> start_recv() { return comm_->start_recv(at::zeros({1}), 1); }
  Call& last() { return *group_->calls.back(); }
  // While `work` waits.
  static void beside(const std::function<void()>& act, const std::function<void()>& work) {
    std::thread other([&] {
      std::this_thread::sleep_for(milliseconds(50));
      act();
    });
    work();
    other.join();
  }

  static constexpr const char* kName = "test/a";
  static constexpr const char* kGone = "mesh: rank 1 has gone";
  std::array<int, 2> ends_{};
  std::shared_ptr<Watch> watch_;
  const c10::intrusive_ptr<FirstOfTwo> group_ = c10::make_intrusive<FirstOfTwo>();
  std::unique_ptr<Comm> comm_;
};

TEST_F(CommOfAGroup, WaitsForAMessageForAsLongAsItsRankLivesWhateverItsSocketsTake) {
  const auto message = start_recv();
  beside([&] { last().arrive(); }, [&] { message->wait(); });
  EXPECT_GT(last().longest.load(), std::chrono::days(1));
}

TEST_F(CommOfAGroup, LeavesAMessageThatWaitsWhenARankHasGone) {
  const auto message = start_recv();
  beside([&] { watch_->fail("", kGone); }, [&] { expect_error(kGone, [&] { message->wait(); }); });
  EXPECT_TRUE(last().is_left);
}

TEST_F(CommOfAGroup, LeavesAMessageThatWaitsWhenItIsClosed) {
  const auto message = start_recv();
  beside([&] { comm_->close("rank 0: over"); },
         [&] { expect_error("rank 0: over", [&] { message->wait(); }); });
  EXPECT_TRUE(last().is_left);
}

TEST_F(CommOfAGroup, WaitsForNoMessageOnceItIsClosed) {
  const auto first = start_recv();
  last().arrive();
  first->wait();
  const auto message = start_recv();
  comm_->close("rank 0: over");
  std::this_thread::sleep_for(milliseconds(300));  // who would have left it has ended
  expect_error("rank 0: over", [&] { message->wait(); });
  EXPECT_EQ(last().num_waits, 0);
}

// As a worker of a data loader does: it has neither the thread that watches nor the group's.
TEST_F(CommOfAGroup, EndsInAForkAtOnceAndIsThereInItsProcess) {
  const auto message = start_recv();
  beside(
      [&] {
        const pid_t fork_of_it = fork();
        if (fork_of_it == 0) {
          comm_.reset();
          _exit(last().is_left ? 1 : 0);  // its sockets are its process's, too
        }
        int status = -1;
        pid_t ended = 0;
        for (int i = 0; i < 100 && ended == 0; ++i) {
          std::this_thread::sleep_for(milliseconds(20));
          ended = waitpid(fork_of_it, &status, WNOHANG);
        }
        EXPECT_EQ(ended, fork_of_it) << "it waits for a thread that it does not have";
        if (ended == 0) kill(fork_of_it, SIGKILL);
        EXPECT_EQ(status, 0) << "it has left what its process waits for";
        last().arrive();
      },
      [&] { message->wait(); });
  EXPECT_FALSE(last().is_left);
}

TEST_F(CommOfAGroup, TakesWhatHasArrivedThoughItsRankHasGoneAndBeginsNothingMore) {
  group_->on_begin = [&](Call& call) {
    watch_->fail("", kGone);
    call.arrive();
  };
  gather();
  expect_error(kGone, [&] { gather(); });
  EXPECT_EQ(group_->calls.size(), 1u);
}

TEST_F(CommOfAGroup, LeavesACallThatWaitsWhenARankHasGone) {
  group_->on_begin = [&](Call&) { watch_->fail("", kGone); };
  expect_error(kGone, [&] { gather(); });
  EXPECT_EQ(last().num_waits, 1);
}

TEST_F(CommOfAGroup, LeavesACallThatWaitsWhenItsThreadIsInterruptedAndSaysSo) {
  {
    const Interrupt interrupt([] { return true; });
    EXPECT_THROW(gather(), Interrupted);
  }
  const std::string why =
      "mesh: rank 0 can't go on: its script was interrupted; start all ranks again";
  EXPECT_EQ(watch_->why("test"), why);
  EXPECT_EQ(error_of([&] { gather(); }), why);
  EXPECT_EQ(group_->calls.size(), 1u);
}

}  // namespace
}  // namespace twinkle::mesh
