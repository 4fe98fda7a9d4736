// Syncs of models of several ranks: those that share their base send, and get, each its own parts.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "twinkle/base/error_for_test.h"
#include "twinkle/base/parallel.h"
#include "twinkle/engine/group/groups_for_test.h"
#include "twinkle/mesh/counting_comm.h"
#include "twinkle/sync/link_for_test.h"

namespace twinkle::sync {
namespace {

// A group whose ranks share the base.
struct Sharing {
  int ranks;
  int64_t gathered_bytes;
};

// Ranks of a model that share its base and train an adapter, and a sampler of another base, whose
// ranks may share it, too: the base goes, once, and after each step all sample the same.
void expect_same_shared_samples(const Sharing& senders, const Sharing& receivers) {
  const model::TinyModel model;
  const ScratchDir other;
  write_other(other);
  const auto of_rank = [](int r) {
    return engine::drawn(40 + static_cast<uint64_t>(r), 6 + static_cast<size_t>(r));
  };
  Engine alone(options_of(model));
  const Create create{.tenant = "me", .lora_json = kLora, .seed = 3};
  alone.run<Done>(create);
  std::array<Texts, 2> truth;  // texts of each step
  const auto step = [](Engine& engine, std::vector<engine::Example> sequences) {
    engine.run<engine::ForwardResult>(
        engine::ForwardBackward{.tenant = "me", .sequences = std::move(sequences)});
    engine.run<engine::StepResult>(engine::Step{.tenant = "me", .options = R"({"lr": 0.05})"});
  };
  for (Texts& texts : truth) {
    std::vector<engine::Example> all;
    for (int r = 0; r < senders.ranks; ++r) all.push_back(of_rank(r));
    step(alone, all);
    texts = sampled(alone, "me");
  }
  std::vector<engine::Group> groups;
  for (const Sharing& side : {senders, receivers}) {
    for (engine::Group& group : engine::groups({1, side.ranks})) groups.push_back(std::move(group));
  }
  std::atomic<int64_t> sent = 0, received = 0;
  on_ranks(senders.ranks + receivers.ranks, {.num_senders = senders.ranks, .bucket_bytes = 5000},
           [&](Link& link, int rank) {
             const bool sends = rank < senders.ranks;
             EngineOptions options = options_of(model);
             options.model.gathered_bytes = (sends ? senders : receivers).gathered_bytes;
             if (!sends) options.model.path = other.path().string();
             std::optional<engine::Group> group;
             if ((sends ? senders : receivers).ranks > 1)
               group = std::move(groups[static_cast<size_t>(rank)]);
             Engine engine(options, {}, std::move(group));
             engine.run<Done>(sends ? create : Create{.tenant = "frozen", .frozen = true});
             for (size_t i = 0; i < truth.size(); ++i) {
               if (sends) {
                 step(engine, {of_rank(rank)});
                 const Synced told = link.send(engine, "me", "default");
                 EXPECT_EQ(told.has_base, i == 0);
                 sent += told.num_bytes;
               } else {
                 sampled(engine, "frozen");  // something of the old base may be gathered ahead
                 const Synced told = link.receive(engine, "frozen");
                 EXPECT_EQ(told.has_base, i == 0);
                 received += told.num_bytes;
                 EXPECT_EQ(sampled(engine, told.tenant), truth[i]) << rank;
               }
             }
           });
  EXPECT_EQ(sent, received);
}

TEST(LinkOfParts, GoesFromAndToThoseWhoHoldThem) {
  for (const int64_t gathered : {int64_t{0}, int64_t{30'000}, int64_t{1} << 40}) {
    expect_same_shared_samples(Sharing{2, gathered}, Sharing{1, 0});
    expect_same_shared_samples(Sharing{1, 0}, Sharing{3, gathered});
    expect_same_shared_samples(Sharing{3, gathered}, Sharing{2, gathered});
  }
}

// A door of a model's first rank to which the other one does not come at the operation of this
// number.
class DoorAlone : public mesh::Channel {
 public:
  DoorAlone(std::unique_ptr<mesh::Channel> door, int alone, std::atomic<bool>& is_alone)
      : Channel(door->rank(), door->size()),
        door_(std::move(door)),
        alone_(alone),
        is_alone_(is_alone) {}

  std::vector<std::string> all_gather(const std::string& bytes) override {
    if (++num_operations_ != alone_) return door_->all_gather(bytes);
    is_alone_ = true;
    for (int i = 0; i < 500; ++i) {
      Interrupt::check();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ADD_FAILURE() << "operation " << alone_ << " waits on, its caller has been interrupted";
    throw Interrupted();
  }
  std::string broadcast(std::string bytes, int root) override {
    return door_->broadcast(std::move(bytes), root);
  }
  void close(const std::string& why) noexcept override { door_->close(why); }

 private:
  const std::unique_ptr<mesh::Channel> door_;
  const int alone_;
  std::atomic<bool>& is_alone_;
  int num_operations_ = 0;
};

// Asks for an interrupt before each exchange, as a group of torch does.
class AskingComm : public mesh::CountingComm {
 public:
  explicit AskingComm(std::unique_ptr<mesh::Comm> comm)
      : CountingComm(*comm), kept_(std::move(comm)) {}
  std::vector<std::string> all_gather(const std::string& bytes) override {
    Interrupt::check();
    return CountingComm::all_gather(bytes);
  }

 private:
  const std::unique_ptr<mesh::Comm> kept_;
};

// A sync whose engine waits for the model's other rank, when it is described (the operation after
// the adapter's Create) and when its base is compared.
TEST(LinkOfParts, EndsByAnInterruptWhereTheEngineWaitsForTheModelsOtherRank) {
  const model::TinyModel model;
  Engine sampler(options_of(model));
  sampler.run<Done>(Create{.tenant = "frozen", .frozen = true});
  const Create create{.tenant = "me", .lora_json = kLora};
  for (const int alone : {2, 3}) {
    std::atomic<bool> is_alone = false, second_has_left = false;
    std::vector<engine::Group> groups = engine::groups({2}, 20);
    groups[0].door = std::make_unique<DoorAlone>(std::move(groups[0].door), alone, is_alone);
    std::thread second([&] {
      Engine engine(options_of(model), {}, std::move(groups[1]));
      engine.run<Done>(create);
      for (int i = 2; i < alone; ++i) engine.read_weights("me", [](const engine::WeightsView&) {});
      second_has_left = true;
    });
    Engine trainer(options_of(model), {}, std::move(groups[0]));
    trainer.run<Done>(create);
    auto comms = mesh::thread_comms(2, 20);
    Link sends(std::make_unique<AskingComm>(std::move(comms[0])), {}),
        receives(std::move(comms[1]), {});
    std::string others;
    std::thread other([&] { others = error_of([&] { receives.receive(sampler, "frozen"); }); });
    {
      const Interrupt interrupt([&] { return is_alone && second_has_left; });
      EXPECT_THROW(sends.send(trainer, "me", "default"), Interrupted);
    }
    EXPECT_TRUE(is_alone.load()) << alone;
    other.join();
    second.join();
    EXPECT_EQ(others, "sync: rank 0: its script was interrupted; start all ranks again");
  }
}

}  // namespace
}  // namespace twinkle::sync
