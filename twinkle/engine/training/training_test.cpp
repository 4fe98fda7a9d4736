// Failures of the arithmetic itself, as for want of memory.
#include "twinkle/engine/training/training.h"

#include <ATen/ATen.h>

#include "twinkle/base/error_for_test.h"
#include "twinkle/engine/heap_shortage_for_test.h"
#include "twinkle/engine/training/training_for_test.h"
#include "twinkle/mesh/thread_comm.h"

namespace twinkle::engine {
namespace {

TEST_F(TrainingOnADecoder, WhoeverMakesAPassThrowFailsAloneAndNobodyIsChanged) {
  const Operation first = work("a", 1), theirs = work("a", 2), mine = work("b", 2);
  succeed(1, first);  // gradients to go back to: a's are not zero, b's are
  const uint64_t before_a = gradients("a"), before_b = gradients("b");
  {
    // The first layer's, whose backward pass is the last: the others have added their gradients.
    const Failing failing(*decoder_.linears().at(0).linear, tenants_.at("a")->slot());
    BatchOutcome outcome = run({{2, &theirs, 0, 2}, {3, &mine, 0, 2}});
    EXPECT_TRUE(outcome.ended.empty());
    ASSERT_EQ(outcome.rewound.size(), 2u) << "nobody knows yet who is to blame";
    for (const Rewound& rewound : outcome.rewound) EXPECT_TRUE(rewound.alone);
    EXPECT_EQ(gradients("a"), before_a);
    EXPECT_EQ(gradients("b"), before_b);

    outcome = run({{2, &theirs, 0, 2}});
    ASSERT_EQ(outcome.ended.size(), 1u);
    EXPECT_THROW(std::rethrow_exception(outcome.ended[0].error), std::bad_alloc);
    EXPECT_EQ(gradients("a"), before_a);
    succeed(3, mine);
  }
  const uint64_t after_b = gradients("b");
  EXPECT_NE(after_b, before_b);
  tenants_.at("b")->zero_grad();
  succeed(4, mine);
  EXPECT_EQ(gradients("b"), after_b);
  succeed(5, theirs);
  EXPECT_NE(gradients("a"), before_a);
}

// Memory runs out at each of the last allocations of a batch in turn, where the error of gradients
// beyond float32 is built.
TEST_F(TrainingOnADecoder, AnErrorThatCannotBeBuiltFailsItsOperationAlone) {
  ForwardBackward beyond = work("a", 1);
  beyond.loss = "LinearLoss";
  for (Example& s : beyond.sequences) s.extras["grad"].assign(s.input_ids.size(), 3e38f);
  const Operation theirs = beyond, mine = work("b", 2);
  succeed(1, mine);
  const uint64_t want = gradients("b");
  int64_t id = 2;
  const auto run_both = [&](int64_t num_left) {
    tenants_.at("b")->zero_grad();
    const std::vector<Work> batch{{++id, &theirs, 0, 2}, {++id, &mine, 0, 2}};
    BatchOutcome outcome;
    outcome.ended.reserve(4);
    outcome.rewound.reserve(4);
    int64_t used = 0;
    {
      const HeapShortage shortage(num_left, 1);
      training_.run_batch(batch, stop_, outcome);
      used = num_left - succeeding_allocations;
    }
    return std::pair(std::move(outcome), used);
  };
  const auto finish = [&](const BatchOutcome& outcome) {
    bool ended = false;
    for (const Ended& e : outcome.ended) {
      ended = ended || e.id == id;
      if (e.id == id) {
        EXPECT_FALSE(e.error) << "of the neighbour";
      }
      if (!e.error) training_.commit(e.id);
    }
    if (!ended) succeed(id, mine);
    training_.undo(id - 1);
    EXPECT_EQ(gradients("b"), want);
  };
  const auto [first, num_allocations] = run_both(INT64_MAX);
  finish(first);
  for (int64_t left = num_allocations - 40; left < num_allocations; ++left) {
    SCOPED_TRACE(left);
    finish(run_both(left).first);
  }
}

TEST_F(TrainingOnADecoder, OfSeveralRanksOneThatLacksMemoryForAnOperationEndsTheGroup) {
  const auto torchs = [] { at::empty({int64_t{1} << 58}, at::kByte); };
  const auto heaps = [] { throw std::bad_alloc(); };
  const std::vector<std::function<void()>> lacks{torchs, heaps};
  for (const std::function<void()>& lack : lacks) {
    const auto comms = mesh::thread_comms(2, 5);
    const Split split(*comms[0]);
    Training training({decoder_, pool_, graphs_, split}, [&](const std::string& name) -> Tenant& {
      lack();
      return *tenants_.at(name);
    });
    const Operation mine = work("a", 1);
    const std::vector<Work> batch{{1, &mine, 0, 2}};
    BatchOutcome outcome;
    EXPECT_ANY_THROW(training.run_batch(batch, stop_, outcome));
    EXPECT_TRUE(outcome.ended.empty());
    const std::string why = error_of([&] { comms[1]->barrier(); });
    EXPECT_NE(why.find("no memory left for this"), std::string::npos) << why;
  }
}

TEST_F(TrainingOnADecoder, OfSeveralRanksAnOperationThatAllRefuseFailsAlone) {
  const auto comms = mesh::thread_comms(2, 5);
  const Split split(*comms[0]);
  Training training({decoder_, pool_, graphs_, split}, [&](const std::string& name) -> Tenant& {
    fail(Code::kNotFound, "no tenant '", name, "'");
  });
  const Operation mine = work("a", 1);
  const std::vector<Work> batch{{1, &mine, 0, 2}};
  BatchOutcome outcome;
  training.run_batch(batch, stop_, outcome);
  EXPECT_EQ(outcome.ended.size(), 1u);
}

// Rank 0 of two that send each other the same.
class Mirrored : public mesh::Comm {
 public:
  Mirrored() : Comm(0, 2) {}
  at::Tensor all_to_all(const at::Tensor& in, mesh::Counts, mesh::Counts) override { return in; }
  void broadcast(at::Tensor&, int) override {}
  std::unique_ptr<mesh::Transfer> start_send(const at::Tensor&, int) override { return nullptr; }
  std::unique_ptr<mesh::Transfer> start_recv(const at::Tensor&, int) override { return nullptr; }
  void close(const std::string& text) noexcept override { why = text; }

  std::string why;
};

TEST_F(TrainingOnADecoder, OfSeveralRanksOneThatLacksMemoryForAResultEndsTheGroup) {
  Mirrored comm;
  const Split split(comm);
  Training training({decoder_, pool_, graphs_, split},
                    [&](const std::string& name) -> Tenant& { return *tenants_.at(name); });
  const Operation score = Forward{.tenant = "a", .sequences = {drawn(1, 5), drawn(2, 5)}};
  int64_t id = 0;
  const auto used_of = [&](int64_t num_left) {
    const std::vector<Work> batch{{++id, &score, 0, 2}};
    BatchOutcome outcome;
    outcome.ended.reserve(1);
    const HeapShortage shortage(num_left, 1);
    training.run_batch(batch, stop_, outcome);
    return num_left - succeeding_allocations;
  };
  used_of(INT64_MAX);
  const int64_t all = used_of(INT64_MAX);
  EXPECT_EQ(comm.why, "");
  // The last one is of the result. Some runs have one less than others, in torch.
  int num_thrown = 0;
  for (int64_t left = all - 1; num_thrown == 0 && left > all - 5; --left) {
    try {
      used_of(left);
    } catch (const std::bad_alloc&) {
      ++num_thrown;
    }
  }
  EXPECT_EQ(num_thrown, 1);
  EXPECT_NE(comm.why.find("no memory left for this"), std::string::npos) << comm.why;
}

TEST_F(TrainingOnADecoder, APassThatThrowsInTheMiddleOfAnOperationStartsItAnew) {
  const Operation mine = work("b", 2), theirs = work("a", 2);
  succeed(1, mine);
  const uint64_t whole = gradients("b");
  tenants_.at("b")->zero_grad();
  EXPECT_TRUE(run({{2, &mine, 0, 1}}).ended.empty());
  {
    const Failing failing(*decoder_.linears().at(0).linear, tenants_.at("a")->slot());
    const BatchOutcome outcome = run({{2, &mine, 1, 2}, {3, &theirs, 0, 1}});
    EXPECT_EQ(outcome.rewound.size(), 2u);
  }
  succeed(2, mine);
  EXPECT_EQ(gradients("b"), whole);
}

// Losses whose derivatives need all rows of an operation, or of a sequence.
TEST_F(TrainingOnADecoder, ALossOfTheWholeOperationTakesOnePassWhereItFitsABatchAndTheSameBits) {
  for (const char* loss : {"GSPOLoss", "DPOLoss"}) {
    SCOPED_TRACE(loss);
    ForwardBackward whole = work("a", 1);
    whole.loss = loss;
    for (Example& s : whole.sequences) {
      if (whole.loss == "DPOLoss")
        s.extras["ref_sums"] = {-20.0f};
      else
        s.extras["advantages"].assign(s.input_ids.size(), 0.7f);
    }
    const Operation mine = whole, theirs = work("b", 2);
    int forwards = 0;
    const auto watched = std::make_unique<Watched>(*decoder_.linears().at(0).linear,
                                                   [&](bool backward) { forwards += !backward; });
    const auto finish = [&](const BatchOutcome& outcome) {
      EXPECT_TRUE(outcome.rewound.empty());
      double value = 0;
      for (const Ended& e : outcome.ended) {
        EXPECT_FALSE(e.error);
        const ForwardResult result = training_.commit(e.id);
        if (e.id == 1) value = result.loss;
      }
      const std::pair out(value, gradients("a"));
      tenants_.at("a")->zero_grad();
      return out;
    };
    const auto alone = finish(run({{1, &mine, 0, 2}}));
    EXPECT_EQ(forwards, 1);
    EXPECT_NE(alone.first, 0);
    EXPECT_EQ(finish(run({{2, &theirs, 0, 2}, {1, &mine, 0, 2}})), alone);
    forwards = 0;
    EXPECT_TRUE(run({{1, &mine, 0, 1}}).ended.empty());
    EXPECT_EQ(run({{1, &mine, 1, 2}}).rewound.size(), 1u) << "all rows are known";
    EXPECT_TRUE(run({{1, &mine, 0, 1}}).ended.empty());
    EXPECT_EQ(finish(run({{1, &mine, 1, 2}})), alone);
    EXPECT_EQ(forwards, 2) << "the second round is backwards alone";
  }
}

TEST_F(TrainingOnADecoder, SeveralTargetsOfATokenAndTheirNeighboursHaveTheBitsThatTheyHaveAlone) {
  ForwardBackward several = work("a", 1);
  for (Example& s : several.sequences) {
    s.num_targets = 3;
    s.labels.clear();
    for (const int32_t id : s.input_ids) s.labels.insert(s.labels.end(), {id, 7, 130 - id});
  }
  const Operation mine = several, theirs = work("b", 2);
  const auto run_all = [&](const std::vector<Work>& batch) {
    std::map<int64_t, double> losses;
    for (const Ended& e : run(batch).ended) {
      EXPECT_FALSE(e.error);
      losses[e.id] = training_.commit(e.id).loss;
    }
    const std::tuple out(losses, gradients("a"), gradients("b"));
    for (const char* name : {"a", "b"}) tenants_.at(name)->zero_grad();
    return out;
  };
  const auto [loss_a, grad_a, none_b] = run_all({{1, &mine, 0, 2}});
  const auto [loss_b, none_a, grad_b] = run_all({{2, &theirs, 0, 2}});
  EXPECT_NE(grad_a, none_a);
  for (const bool first : {true, false}) {
    std::vector<Work> both{{1, &mine, 0, 2}, {2, &theirs, 0, 2}};
    if (!first) std::swap(both[0], both[1]);
    const auto [losses, a, b] = run_all(both);
    EXPECT_EQ(losses.at(1), loss_a.at(1));
    EXPECT_EQ(losses.at(2), loss_b.at(2));
    EXPECT_EQ(a, grad_a);
    EXPECT_EQ(b, grad_b);
  }
}

TEST_F(TrainingOnADecoder, ALossOfTheWholeOperationThatCannotBeFailsAlone) {
  ForwardBackward odd = work("a", 1);
  odd.loss = "CPOLoss";
  odd.sequences.push_back(drawn(3, 5));
  const Operation mine = odd, theirs = work("b", 2);
  succeed(1, theirs);
  const uint64_t before = gradients("a"), want = gradients("b");
  tenants_.at("b")->zero_grad();
  const BatchOutcome outcome = run({{2, &mine, 0, 3}, {3, &theirs, 0, 2}});
  ASSERT_EQ(outcome.ended.size(), 2u);
  for (const Ended& e : outcome.ended) EXPECT_EQ(e.error != nullptr, e.id == 2);
  training_.commit(3);
  EXPECT_EQ(gradients("a"), before);
  EXPECT_EQ(gradients("b"), want);
}

TEST_F(TrainingOnADecoder, ABatchThatNobodyWantsAnyMoreBeginsNoOtherLayer) {
  const auto layers = static_cast<size_t>(decoder_.spec().num_layers());
  ASSERT_GE(layers, 2u);
  const ForwardBackward learns = work("a", 2);
  const Operation first = work("a", 1), train = learns,
                  score = Forward{.tenant = "a", .sequences = learns.sequences};
  succeed(1, first);
  const uint64_t before = gradients("a");
  int64_t id = 2;
  const auto passes = [&](const Operation& operation, bool backward) {
    size_t count = 0;
    std::vector<std::unique_ptr<Watched>> watched;
    for (size_t i = 0; i < layers; ++i) {
      auto& q_proj = *decoder_.linears().at(7 * i).linear;
      watched.push_back(std::make_unique<Watched>(q_proj, [&](bool is_backward) {
        if (is_backward != backward) return;
        ++count;
        stop_ = true;  // in the middle of the layer
      }));
    }
    EXPECT_THROW(run({{++id, &operation, 0, 2}}), model::Stopped);
    EXPECT_TRUE(training_.undo(id));
    stop_ = false;
    return count;
  };
  EXPECT_EQ(passes(score, false), 1u);
  EXPECT_EQ(passes(train, false), 1u);
  EXPECT_EQ(passes(train, true), 1u);
  EXPECT_EQ(gradients("a"), before);
  succeed(++id, train);
  EXPECT_NE(gradients("a"), before);
}

}  // namespace
}  // namespace twinkle::engine
