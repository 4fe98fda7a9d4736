// Syncs from and to ranks that share their base: each sends, and gets, its own parts.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <optional>

#include "twinkle/engine/group/groups_for_test.h"
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
void expect_same_samples(const Sharing& senders, const Sharing& receivers) {
  const model::TinyModel model;
  const ScratchDir other;
  write_other(other);
  const auto of_rank = [](int r) {
    return engine::drawn(40 + static_cast<uint64_t>(r), 6 + static_cast<size_t>(r));
  };
  Engine alone(options_of(model));
  const Create create{.tenant = "me", .lora_json = kLora, .seed = 3};
  alone.run<Done>(create);
  std::array<Texts, 2> truth;  // of each step
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
    expect_same_samples(Sharing{2, gathered}, Sharing{1, 0});
    expect_same_samples(Sharing{1, 0}, Sharing{3, gathered});
    expect_same_samples(Sharing{3, gathered}, Sharing{2, gathered});
  }
}

}  // namespace
}  // namespace twinkle::sync
