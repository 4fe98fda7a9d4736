#include "twinkle/engine/schedule/accepted.h"

#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "twinkle/engine/schedule/dispatched_for_test.h"

namespace twinkle::engine {
namespace {

std::string error_text(const std::exception_ptr& error) {
  if (!error) return "no error";
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return e.what();
  }
}

class AcceptedOperation : public Dispatched {
 protected:
  // Before the outcomes go, which the dispatcher's thread writes.
  void TearDown() override { dispatcher_.reset(); }
  Accepted accept(Operation operation) {
    return std::move(dispatcher_->accept({&operation, 1})[0]);
  }
  // Its outcome, behind `name`, among outcomes().
  OnDone noted(const std::string& name = "") {
    return [this, name](const Outcome& outcome) {
      const Lock lock(mutex_);
      outcomes_.push_back(name + error_text(outcome.error));
    };
  }
  int64_t queue(Accepted accepted, const std::string& name = "") {
    std::vector<Accepted> one;
    one.push_back(std::move(accepted));
    return dispatcher_->submit(std::move(one), {noted(name)})[0];
  }
  std::vector<std::string> outcomes() {
    const Lock lock(mutex_);
    return outcomes_;
  }

  Mutex mutex_;
  std::vector<std::string> outcomes_ GUARDED_BY(mutex_);
};

TEST_F(AcceptedOperation, IsNotRunBeforeItIsSubmitted) {
  open();
  create("a");
  Accepted later = accept(pass_of("a", 1));
  submit(ZeroGrad{"a"}).get();
  const std::vector<std::string> before = state("a");
  queue(std::move(later));
  EXPECT_EQ(state("a").size(), before.size() + 1);  // state() waits for what is before it
}

TEST_F(AcceptedOperation, ItsOutcomeTellsItsShareOfTheExecutorsTime) {
  open({.token_budget = 400});
  executor_.on_batch = [this] { time_ = time_ + 4; };
  executor_.on_step = [this] { time_ = time_ + 2; };
  create("a");
  create("b");
  std::map<std::string, double> seconds;  // read when the dispatcher is gone
  const auto both = [&](Operation a, Operation b, const std::string& what) {
    std::vector<Operation> operations;
    operations.push_back(std::move(a));
    operations.push_back(std::move(b));
    std::vector<OnDone> told;
    for (const char* tenant : {"a ", "b "})
      told.emplace_back([&seconds, name = tenant + what](const Outcome& outcome) {
        seconds[name] = outcome.seconds;
      });
    dispatcher_->submit(dispatcher_->accept(operations), std::move(told));
    state("a");
    state("b");
  };
  both(pass_of("a", 3), pass_of("b", 1), "train");
  both(sampled("a", 2, 3), sampled("b", 2), "sample");
  while (dispatcher_->stats().num_queued > 0) std::this_thread::yield();
  dispatcher_.reset();
  EXPECT_EQ(seconds, (std::map<std::string, double>{
                         {"a train", 3}, {"b train", 1}, {"a sample", 3}, {"b sample", 1}}));
}

TEST_F(AcceptedOperation, KeepsItsPlaceSoThatSubmitCannotBeRefused) {
  open({.token_budget = 100, .max_queued = 2});
  create("a");
  Accepted first = accept(ZeroGrad{"a"}), second = accept(ZeroGrad{"a"});
  EXPECT_THROW(accept(ZeroGrad{"a"}), Error);
  EXPECT_EQ(dispatcher_->stats().num_queued, 2);
  queue(std::move(first));
  queue(std::move(second));
}

TEST_F(AcceptedOperation, GivesItsPlaceAndItsBytesBackWhenDropped) {
  open({.token_budget = 100, .max_queued = 1});
  create("a");
  {
    const Accepted dropped = accept(pass_of("a", 3));
  }
  EXPECT_EQ(dispatcher_->stats().num_queued, 0);
  EXPECT_EQ(dispatcher_->stats().queued_bytes, 0);
  {
    const Accepted unknown = accept(ZeroGrad{"nobody"});
  }
  EXPECT_EQ(dispatcher_->stats().tenants.size(), 1u);
  submit(pass_of("a", 1)).get();
}

TEST_F(AcceptedOperation, IsToldHowItEndedInTheOrderOfTheEnds) {
  open();
  create("a");
  create("b");
  hold_batch();
  std::vector<Accepted> both;
  both.push_back(accept(pass_of("a", 1)));
  both.push_back(accept(pass_of("b", 1)));
  const auto began = dispatcher_->submit(std::move(both), {noted("a: "), noted("b: ")});
  in_batch_.wait();
  queue(accept(ZeroGrad{"nobody"}), "nobody: ");
  const int64_t waiting = queue(accept(pass_of("a", 1)), "behind a: ");
  EXPECT_TRUE(dispatcher_->cancel(began[1]));  // ends with the batch that computes it
  EXPECT_EQ(outcomes(), std::vector<std::string>{});
  EXPECT_TRUE(dispatcher_->cancel(waiting));  // ends at once
  EXPECT_EQ(outcomes(), std::vector<std::string>{"behind a: engine: cancelled"});
  go_on_.count_down();
  Future last = submit(ZeroGrad{"nobody"});
  EXPECT_EQ(error_of(last), "null: no tenant 'nobody'");
  EXPECT_EQ(outcomes(),
            (std::vector<std::string>{"behind a: engine: cancelled", "a: no error",
                                      "b: engine: cancelled", "nobody: null: no tenant 'nobody'"}));
}

TEST_F(AcceptedOperation, IsRefusedByAClosedDispatcherWithoutACall) {
  open();
  Accepted late = accept(ZeroGrad{"a"});
  dispatcher_->close();
  EXPECT_THROW(queue(std::move(late)), Error);
  EXPECT_TRUE(outcomes().empty());
  EXPECT_EQ(dispatcher_->stats().num_queued, 0);
}

TEST_F(AcceptedOperation, HoldsTheResultsBytesUntilTheOutcomeIsDropped) {
  open();
  create("a");
  std::vector<Accepted> one;
  one.push_back(accept(Inspect{"a"}));
  const auto promise = std::make_shared<std::promise<Outcome>>();
  dispatcher_->submit(std::move(one), {[promise](Outcome o) { promise->set_value(std::move(o)); }});
  {
    const Outcome outcome = promise->get_future().get();
    EXPECT_EQ(dispatcher_->stats().queued_bytes, num_bytes(outcome.result));
  }
  EXPECT_EQ(dispatcher_->stats().queued_bytes, 0);
}

}  // namespace
}  // namespace twinkle::engine
