// Greetings of ranks when a sync begins: their bytes, and who does not fit.
#include "twinkle/sync/hello.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <thread>

#include "twinkle/base/error_for_test.h"
#include "twinkle/mesh/counting_comm.h"
#include "twinkle/sync/link_for_test.h"

namespace twinkle::sync {
namespace {

// A Comm that notes of each text that its rank tells the others how long it is, and what it sends
// for that.
class Telling : public mesh::CountingComm {
 public:
  struct Text {
    int64_t length, sent;
  };
  explicit Telling(std::unique_ptr<mesh::Comm> comm)
      : CountingComm(*comm), kept_(std::move(comm)) {}

  std::vector<std::string> all_gather(const std::string& bytes) override {
    const int64_t before = sent().all_to_all;
    std::vector<std::string> out = CountingComm::all_gather(bytes);
    texts.push_back({std::ssize(bytes), sent().all_to_all - before});
    return out;
  }
  std::vector<Text> texts;

 private:
  std::unique_ptr<mesh::Comm> kept_;
};

// A trainer of an adapter, rank 0, and samplers, each with its link and what it tells.
using ToldScript = std::function<void(Engine&, Link&, Telling&, int rank)>;
void on_telling_ranks(const std::vector<Options>& of_ranks, const ToldScript& script) {
  const model::TinyModel model;
  auto comms = mesh::thread_comms(static_cast<int>(of_ranks.size()), 20);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < comms.size(); ++r) {
    threads.emplace_back([&, r] {
      Engine engine(options_of(model));
      if (r == 0)
        engine.run<Done>(Create{.tenant = "me", .lora_json = kLora});
      else
        engine.run<Done>(Create{.tenant = "me", .frozen = true});
      auto comm = std::make_unique<Telling>(std::move(comms[r]));
      Telling& told = *comm;
      Link link(std::move(comm), of_ranks[r]);
      script(engine, link, told, static_cast<int>(r));
    });
  }
  for (std::thread& t : threads) t.join();
}

Synced synced(Engine& engine, Link& link, int rank) {
  return rank == 0 ? link.send(engine, "me", "default") : link.receive(engine, "me");
}

// A tag and a size take 10 bytes. A tensor has a size, five fields, and one slice of two numbers.
int64_t bytes_of_tensors(const std::vector<engine::Weight>& tensors) {
  int64_t out = 0;
  for (const engine::Weight& t : tensors)
    out += 8 + 5 * 10 + 8 + (8 + 2 * (10 + 8)) + std::ssize(t.name) + 8 * std::ssize(t.shape) +
           std::ssize(t.value.dtype().name());
  return out;
}

int64_t bytes_of_hello(Engine& engine) {
  int64_t out = 8 + 11 * 10 + 3 * 1 + 4 + 2 * 8;  // three bools, an int32, two int64
  engine.read_weights("me", [&](const engine::WeightsView& view) {
    out += bytes_of_tensors(view.base) + bytes_of_tensors(view.adapter);
    if (!view.lora_json.empty()) out += std::ssize(view.lora_json) + std::ssize("default") - 1;
  });
  return out;
}

TEST(Hello, AndWhatFollowsAreTheBytesOfTheFormulas) {
  constexpr int64_t kSamplers = 2, kFrame = 256, kInFrame = 248;
  std::array<int64_t, kSamplers + 1> of_checksums{};
  on_telling_ranks(std::vector<Options>(kSamplers + 1), [&](Engine& engine, Link& link,
                                                            Telling& told, int rank) {
    for (int i = 0; i < 2; ++i) {
      told.texts.clear();
      const int64_t hello = bytes_of_hello(engine), before = told.sent().send;
      const Synced sync = synced(engine, link, rank);
      EXPECT_EQ(told.sent().send - before, rank == 0 ? sync.num_bytes : 0);
      for (const auto& [length, sent] : told.texts)
        EXPECT_EQ(sent, kSamplers * (kFrame + std::max<int64_t>(0, length - kInFrame)));
      // After it, whether ranks are at work, a byte or none, and of the first sync checksums.
      std::erase_if(told.texts, [](const Telling::Text& text) { return text.length <= 1; });
      ASSERT_EQ(told.texts.size(), i == 0 ? 2u : 1u);
      EXPECT_EQ(told.texts[0].length, hello);
      if (i == 0) of_checksums[static_cast<size_t>(rank)] = told.texts[1].length;
    }
  });
  // 8 for each message in which the base would travel.
  EXPECT_GT(of_checksums[1], 0);
  EXPECT_EQ(of_checksums[1] % 8, 0);
  EXPECT_EQ(of_checksums[2], of_checksums[1]);
  EXPECT_EQ(of_checksums[0], kSamplers * of_checksums[1]);
}

TEST(Hello, OfOtherBucketBytesIsRefusedOnEveryRankAndNothingTravels) {
  on_telling_ranks({{.bucket_bytes = 4096}, {.bucket_bytes = 999}},
                   [](Engine& engine, Link& link, Telling& told, int rank) {
                     const Texts before = sampled(engine, "me");
                     EXPECT_EQ(invalid_of([&] { synced(engine, link, rank); }),
                               "sync: rank 1 (the sampler) has num_senders 1 and bucket_bytes 999, "
                               "rank 0 has 1 and 4096: they must be the same on all ranks");
                     std::erase_if(told.texts, [](const auto& text) { return text.length <= 1; });
                     EXPECT_EQ(told.texts.size(), 1u);
                     EXPECT_EQ(told.sent().send, 0);
                     EXPECT_EQ(sampled(engine, "me"), before);
                   });
}

TEST(Hello, OfRanksThatDoNotFitNamesTheFirstOfThem) {
  const auto hello = [](bool sends) {
    return Hello{.sends = sends, .bucket_bytes = 5, .num_senders = 2};
  };
  const std::vector<Hello> fit{hello(true), hello(true), hello(false)};
  const auto refused = [&](const std::function<void(Hello&)>& of_rank_1) {
    std::vector<Hello> ranks = fit;
    of_rank_1(ranks[1]);
    return error_of([&] { require_fit(ranks, 2); });
  };
  EXPECT_EQ(refused([](Hello&) {}), "no error");
  EXPECT_EQ(refused([](Hello& h) { h.num_senders = 1; }),
            "sync: rank 1 (the model) has num_senders 1 and bucket_bytes 5, rank 0 has 2 and 5: "
            "they must be the same on all ranks");
  EXPECT_EQ(refused([](Hello& h) { h.sends = false; }),
            "sync: rank 1 (the model) has called receive_weights: the first 2 ranks send, the "
            "others receive");
  EXPECT_EQ(refused([](Hello& h) { h.adapter_name = "b"; }),
            "sync: rank 1 sends adapter 'b' of , rank 0 '' of : all ranks of the model must send "
            "the same");
  EXPECT_EQ(refused([](Hello& h) { h.trains_base = true; }),
            "sync: rank 1 sends adapter '' of , rank 0 '' of : all ranks of the model must send "
            "the same");
  EXPECT_EQ(refused([](Hello& h) { h.error = "engine: no tenant 'me'"; }),
            "sync: rank 1 (the model): engine: no tenant 'me'");
}

}  // namespace
}  // namespace twinkle::sync
