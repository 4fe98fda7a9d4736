// Memory runs out on the thread that syncs, behind its rank's hello: the others, which have the
// hello and would wait, hear of it.
#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <thread>
#include <utility>

#include "twinkle/base/error_for_test.h"
#include "twinkle/engine/heap_for_test.h"
#include "twinkle/mesh/counting_comm.h"
#include "twinkle/sync/link_for_test.h"

namespace twinkle::sync {
namespace {

// Between the hello of its rank and the checksums one allocation fails, after `spared` others.
class ThenShort : public mesh::CountingComm {
 public:
  ThenShort(std::unique_ptr<mesh::Comm> comm, int64_t spared, bool& all_spared)
      : CountingComm(*comm), kept_(std::move(comm)), spared_(spared), all_spared_(all_spared) {}

  std::vector<std::string> all_gather(const std::string& bytes) override {
    int64_t left = std::exchange(engine::succeeding_allocations, -1);
    std::vector<std::string> out = CountingComm::all_gather(bytes);
    if (bytes.size() > 1) {  // not of a rank that is at work, or was
      if (num_told_++ == 0) {
        left = spared_;
      } else {
        all_spared_ = std::exchange(left, -1) >= 0;
      }
    }
    engine::failing_allocations = 1;
    engine::succeeding_allocations = left;
    return out;
  }

 private:
  const std::unique_ptr<mesh::Comm> kept_;
  const int64_t spared_;
  bool& all_spared_;
  int num_told_ = 0;
};

// The outcome of a sync in which `rank` runs short: false, if it had enough.
bool ends_the_link(int rank, int64_t spared, Engine& trainer, Engine& sampler) {
  auto comms = mesh::thread_comms(2, 5);
  auto& own = comms[static_cast<size_t>(rank)];
  bool all_spared = false;
  own = std::make_unique<ThenShort>(std::move(own), spared, all_spared);
  const auto sync = [&](int r) {
    Link link(std::move(comms[static_cast<size_t>(r)]), {});
    if (r == 0)
      link.send(trainer, "me", "default");
    else
      link.receive(sampler, "frozen");
  };
  std::string others;
  std::thread other([&] { others = error_of([&] { sync(1 - rank); }); });
  bool failed = false;
  try {
    sync(rank);
  } catch (const std::bad_alloc&) {
    failed = true;
  }
  other.join();
  EXPECT_EQ(failed, !all_spared) << spared;
  EXPECT_EQ(others, failed ? "sync: rank " + std::to_string(rank) +
                                 ": the machine has no memory left for this: make it smaller"
                           : "no error")
      << spared;
  return failed;
}

TEST(LinkShortOfMemory, EndsWithTheRankThatTheOthersWouldWaitFor) {
  const model::TinyModel model;
  Engine trainer(options_of(model)), sampler(options_of(model));
  trainer.run<Done>(Create{.tenant = "me", .lora_json = kLora});
  sampler.run<Done>(Create{.tenant = "frozen", .frozen = true});
  constexpr int64_t kEach = 61;  // there are more than a thousand
  for (const int rank : {0, 1}) {
    int64_t spared = 0;
    while (ends_the_link(rank, spared, trainer, sampler)) spared += kEach;
    EXPECT_GT(spared, 5 * kEach);
  }
}

}  // namespace
}  // namespace twinkle::sync
