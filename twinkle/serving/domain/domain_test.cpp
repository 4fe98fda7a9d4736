// The state as a value: what records make of nothing, and what a start makes of a State.
#include "twinkle/serving/domain/domain.h"

#include <gtest/gtest.h>

#include "twinkle/base/fields/codec.h"

namespace twinkle::server::core {
namespace {

Submit submit(int64_t seq_id, const engine::Operation& operation) {
  return {
      .run = "s:train:0", .seq_id = seq_id, .time_ms = 5, .operation = engine::to_bytes(operation)};
}

engine::Operation batch() {
  return engine::ForwardBackward{.tenant = "s:train:0",
                                 .sequences = {{.input_ids = {1, 2}, .labels = {2, 3}}}};
}

// A session with a run that was made, trained by its request 1, and waits for 2.
Domain trained() {
  Domain out;
  uint64_t sequence = 0;
  out.apply(OpenSession{{.id = "s", .owner = "a"}}, ++sequence);
  out.apply(CreateRun{.run = {.id = "s:train:0", .owner = "a", .session = "s"}}, ++sequence);
  out.apply(Ended{.id = "s:train:0:0"}, ++sequence);
  out.apply(submit(1, batch()), ++sequence);
  out.apply(submit(3, engine::Step{.tenant = "s:train:0"}), ++sequence);
  out.apply(Ended{.id = "s:train:0:1", .result = "bytes", .used = {.seconds = 2}}, ++sequence);
  out.take_effects();
  return out;
}

std::string bytes_in(const State& state) {
  ByteWriter writer;
  writer.put(state);
  return writer.take();
}

TEST(DomainTest, AStateIsReadBackAsItWasAndNamesTheRecordsThatItNeeds) {
  const Domain domain = trained();
  const State state = domain.state(6, 7);
  EXPECT_EQ(Domain::carried(state), (std::set<uint64_t>{3, 4, 5, 6}));
  Domain again;
  again.apply(state, 6);
  again.carry(submit(1, batch()), 4);
  again.carry(submit(3, engine::Step{.tenant = "s:train:0"}), 5);
  EXPECT_EQ(bytes_in(again.state(6, 7)), bytes_in(state));
  again.apply(submit(2, batch()), 7);
  EXPECT_EQ(again.take_effects().started.size(), 1U) << "the step waits for its window";
  again.apply(Ended{.id = "s:train:0:2"}, 8);
  EXPECT_EQ(again.take_effects().started,
            (std::vector<std::pair<std::string, int64_t>>{{"s:train:0", 3}}));
}

TEST(DomainTest, ASnapshotTakesTheWorkBehindItAway) {
  Domain domain = trained();
  EXPECT_EQ(domain.run("s:train:0")->computed, 2);
  domain.apply(Snapshotted{"s:train:0", {.folder = "s:train:0/1", .seq_id = 1}}, 7);
  EXPECT_FALSE(domain.run("s:train:0")->work.contains(1));
  EXPECT_TRUE(domain.run("s:train:0")->work.contains(3));
  EXPECT_EQ(domain.run("s:train:0")->computed, 0);
  domain.apply(Snapshotted{"s:train:0", {.folder = "s:train:0/3", .seq_id = 3}}, 8);
  EXPECT_EQ(domain.removable(), (std::vector<std::string>{"snapshots/s:train:0/1"}));
}

TEST(DomainTest, WhatWaitsForANumberFailsWithItsSession) {
  Domain domain = trained();
  EXPECT_EQ(domain.open_of("a").num, 1);
  domain.apply(FinishSession{"s"}, 7);
  EXPECT_EQ(domain.open_of("a").num, 0);
  EXPECT_NE(domain.future("s:train:0:3")->error.find("seq_id 2"), std::string::npos);
}

TEST(DomainTest, NamesOfRequestsAreTakenApartWhateverTheyAre) {
  EXPECT_EQ(parse_request_id("s:train:0:7"), std::pair(std::string("s:train:0"), int64_t{7}));
  EXPECT_EQ(parse_request_id("none"), std::pair(std::string(), int64_t{0}));
  EXPECT_EQ(parse_request_id("a:b"), std::pair(std::string("a"), int64_t{0}));
  EXPECT_EQ(parse_request_id(""), std::pair(std::string(), int64_t{0}));
}

}  // namespace
}  // namespace twinkle::server::core
