// The schedule of sequences whose mixers keep a state: it is behind the tokens that a pass
// continues, whatever came before.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "twinkle/sampler/schedule/schedule_for_test.h"

namespace twinkle::sampler {
namespace {

// A mixer's state after some tokens: the closed part is of whole pages, the open part of the tokens
// since.
struct Memory {
  int64_t closed_count;
  uint64_t closed;
  int64_t open_count;
  uint64_t open;
};

uint64_t mixed(uint64_t hash, uint64_t x) { return (hash ^ (x + 1)) * 0x9e3779b97f4a7c15; }

Memory of_tokens(std::span<const int32_t> tokens) {
  Memory m{};
  for (const int32_t token : tokens) {
    m.open = mixed(m.open, static_cast<uint64_t>(token));
    if (++m.open_count < kPageTokens) continue;
    m = {m.closed_count + kPageTokens, mixed(m.closed, m.open), 0, 0};
  }
  return m;
}

// Two layers with states around one without.
StateLayout state_layout() {
  StateLayout out;
  out.add(sizeof(Memory), 16);
  out.add(0, 0);
  out.add(sizeof(Memory), 16);
  return out;
}

// Looks at the states as a pass finds them, and leaves what it would.
struct StateDriver : Driver {
  explicit StateDriver(const SamplerOptions& options) : Driver(options, state_layout()) {
    compute = [this](Sequence& s) {
      passes[s.job->ticket].push_back(s.next);
      const std::span<const int32_t> tokens(s.tokens);
      const Memory before = of_tokens(tokens.first(static_cast<size_t>(s.computed)));
      const Memory after = of_tokens(tokens.first(static_cast<size_t>(s.next)));
      for (const size_t layer : {0u, 2u}) {
        std::byte* at = s.state.data() + state_layout().layers[layer].offset;
        const size_t known = before.open_count > 0 ? sizeof(Memory) : 16;
        if (s.computed > 0 && std::memcmp(at, &before, known) != 0) ++num_wrong;
        std::memcpy(at, &after, sizeof after);
      }
    };
  }
  int64_t num_wrong = 0;
  std::map<int64_t, std::vector<int64_t>> passes;  // their ends, by ticket
};

SamplerOptions roomy() {
  return {.kv_tokens = 64 * 100, .max_sequences = 8, .prefill_tokens = 512};
}

TEST(StatefulSchedule, ARequestOfTheSamePromptGoesOnFromTheSnapshotBeforeItsEnd) {
  StateDriver driver(roomy());
  driver.add(count_from(0, 200), 5, 1);
  EXPECT_EQ(driver.run(), 204);
  EXPECT_EQ(driver.passes[0].front(), 192) << "the pass ends where the snapshot is taken";
  driver.add(count_from(0, 200), 5, 1);
  EXPECT_EQ(driver.run(), 204 + 8 + 4);
  driver.add(count_from(0, 200), 5, 2);
  EXPECT_EQ(driver.run(), 204 + 12 + 204) << "of other weights";
  EXPECT_EQ(driver.num_wrong, 0);
}

TEST(StatefulSchedule, WithoutAVersionThereAreNoSnapshots) {
  StateDriver driver(roomy());
  driver.add(count_from(0, 200), 1, 0);
  driver.run();
  EXPECT_EQ(driver.passes[0].front(), 200);
  driver.add(count_from(0, 200), 1, 0);
  EXPECT_EQ(driver.run(), 400);
  EXPECT_EQ(driver.num_wrong, 0);
}

TEST(StatefulSchedule, ABeginningThatIsAskedForTwiceIsThereTheThirdTime) {
  StateDriver driver(roomy());
  const auto ask = [&](int32_t last) {
    auto prompt = count_from(0, 140);  // two whole pages in common
    for (int32_t i = 0; i < 100; ++i) prompt.push_back(last);
    driver.add(prompt, 1, 1);
    const int64_t before = driver.num_computed;
    return driver.run() - before;
  };
  EXPECT_EQ(ask(1), 240);
  EXPECT_EQ(ask(2), 240) << "its pages are known, the state behind them is not";
  EXPECT_EQ(driver.passes[1], (std::vector<int64_t>{128, 192, 240}));
  EXPECT_EQ(ask(3), 240 - 128);
  driver.schedule.reset_prefixes();
  EXPECT_EQ(ask(4), 240);
  EXPECT_EQ(driver.num_wrong, 0);
}

TEST(StatefulSchedule, SamplesOfAPromptEachGoOnFromItsState) {
  StateDriver driver(roomy());
  driver.add(count_from(0, 100), 70, 1, 7);
  driver.add(count_from(0, 100), 70, 1, 1);  // waits for the first and takes its state
  EXPECT_EQ(driver.run(), 100 + 8 * 69);
  EXPECT_EQ(driver.num_wrong, 0);
}

TEST(StatefulSchedule, SamplesBeyondTheSlotsAreComputedFromTheSnapshot) {
  StateDriver driver(roomy());
  driver.add(count_from(0, 100), 5, 1, 20);
  driver.run();
  EXPECT_EQ(driver.num_wrong, 0);
  EXPECT_EQ(driver.num_computed, 100 + 20 * 4 + 12 * (100 - 64));
}

TEST(StatefulSchedule, APassThatThrewIsComputedFromABeginning) {
  StateDriver driver(roomy());
  driver.add(count_from(0, 300), 3, 1);
  const auto compute = driver.compute;
  driver.compute = [&](Sequence& s) {
    compute(s);
    if (s.next == 300) throw std::bad_alloc();
  };
  driver.step();
  EXPECT_THROW(driver.step(), std::bad_alloc);
  driver.schedule.resume();
  driver.compute = compute;
  driver.run();
  EXPECT_EQ(driver.num_wrong, 0);
  EXPECT_EQ(driver.passes[0], (std::vector<int64_t>{256, 300, 300, 301, 302}));
}

TEST(StatefulSchedule, WhateverIsAskedForTogetherEveryPassFindsItsState) {
  std::mt19937 random(11);
  const auto below = [&](uint32_t n) { return static_cast<int64_t>(random() % n); };
  for (int round = 0; round < 30; ++round) {
    StateDriver driver({.kv_tokens = 64 * (12 + below(30)),
                        .max_sequences = 1 + below(6),
                        .prefill_tokens = 1 + below(300)});
    std::vector<Job*> jobs;
    for (int i = 0; i < 25; ++i) {
      auto prompt = count_from(static_cast<int32_t>(below(2)), 1 + below(330));
      if (below(2) == 0) prompt.back() = 7;
      jobs.push_back(driver.add(prompt, 1 + below(150), static_cast<uint64_t>(below(3)),
                                1 + (below(4) == 0 ? below(8) : 0)));
      for (int64_t steps = below(6); steps > 0; --steps) driver.step();
    }
    driver.run();
    EXPECT_EQ(driver.num_wrong, 0) << round;
    for (const Job* job : jobs) EXPECT_EQ(job->num_left, 0) << round;
  }
}

TEST(StatefulSchedule, ASequenceThatGaveItsPlaceToAnotherTenantGoesOnFromItsOwnState) {
  SamplerOptions options = roomy();
  options.max_sequences = 3;
  StateDriver driver(options);
  driver.add(count_from(0, 100), 200, 1, 5)->request.owner = "hog";
  driver.add(count_from(0, 70), 200, 0, 2)->request.owner = "hog";
  for (int i = 0; i < 12; ++i) {
    Job* other = driver.add(count_from(1000, 80), 30, 1);
    other->request.owner = std::to_string(i);
    for (int step = 0; step < 40; ++step) driver.step();
    EXPECT_EQ(other->num_left, 0) << i;
  }
  driver.run();
  EXPECT_EQ(driver.num_wrong, 0);
}

}  // namespace
}  // namespace twinkle::sampler
