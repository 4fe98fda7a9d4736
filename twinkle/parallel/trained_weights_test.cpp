#include "twinkle/parallel/trained_weights.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "twinkle/mesh/counting_comm.h"
#include "twinkle/mesh/thread_comm.h"
#include "twinkle/model/family.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::parallel {
namespace {

constexpr int64_t kAtOnce = int64_t{1} << 40;

using Sizes = std::vector<std::pair<int, int>>;  // ranks, and those that share the base

JsonObject trained_config(bool tied) {
  JsonObject config = model::tiny_config("qwen2");  // its sizes are no whole lines, with biases
  config["tie_word_embeddings"] = tied;
  return config;
}

model::Decoder decoder_of(const std::string& path, model::Borders& borders) {
  const Checkpoint checkpoint = Checkpoint::open(path);
  return {model::read_spec(checkpoint.config()), checkpoint, at::kFloat, at::kCPU, borders};
}

model::Batch batch() {
  return {.input_ids = (at::arange(9) * 37).remainder(131),
          .rows = nn::pack(std::vector<int64_t>{5, 4})};
}

TEST(Ownership, GivesEveryElementOneRankAndEachRankItsShare) {
  for (const bool tied : {true, false}) {
    const model::TinyModel model(trained_config(tied));
    model::Decoder decoder = decoder_of(model.path(), model::no_borders());
    for (const auto& [n, fsdp] : Sizes{{1, 1}, {2, 1}, {3, 1}, {2, 2}, {4, 2}, {6, 3}, {8, 4}}) {
      const Ownership owned(decoder, n, fsdp);
      for (const Ownership::Piece& piece : owned.pieces()) {
        std::vector<int> owners(static_cast<size_t>(piece.count));
        for (int r = 0; r < n; ++r) {
          const parallel::Run run = owned.run(piece, r);
          EXPECT_LE(run.size(), piece.count / n + 32);
          for (int64_t i = run.begin; i < run.end; ++i) ++owners[static_cast<size_t>(i)];
        }
        EXPECT_EQ(owners, std::vector<int>(static_cast<size_t>(piece.count), 1)) << n << fsdp;
      }
      for (size_t w = 0; w < decoder.weights().size(); ++w) {
        int64_t count = 0;
        for (int r = 0; r < n; ++r) count += owned.runs(r)[w].size();
        EXPECT_EQ(count, decoder.weights()[w].value->numel()) << decoder.weights()[w].name;
      }
    }
  }
}

// Two ranks have the same sequences, so that the sums are twice one rank's, exactly; others have
// none.
TEST(TrainedWeights, AddUpWhatRanksComputeAndTellTheirValues) {
  for (const bool tied : {true, false}) {
    const model::TinyModel model(trained_config(tied));
    model::Decoder alone = decoder_of(model.path(), model::no_borders());
    alone.train_all();
    model::Tape tape{.batch = batch()};
    alone.backward(tape, alone.forward_train(tape).cos());
    const std::vector<at::Tensor> want = alone.grads();
    for (const auto& size : Sizes{{2, 1}, {4, 1}, {2, 2}, {4, 2}, {4, 4}}) {
      const int n = size.first, fsdp = size.second;
      for (const int64_t gathered : {int64_t{0}, int64_t{40'000}, kAtOnce}) {
        auto data = mesh::thread_comms(n);
        std::vector<std::unique_ptr<mesh::Comm>> base;
        while (std::ssize(base) < n)
          for (auto& comm : mesh::thread_comms(fsdp)) base.push_back(std::move(comm));
        const auto script = [&](int rank) {
          std::optional<Shards> shards;
          if (fsdp > 1) shards.emplace(*base[static_cast<size_t>(rank)], gathered);
          model::Decoder decoder = decoder_of(model.path(), shards ? *shards : model::no_borders());
          const Ownership owned(decoder, n, fsdp);
          TrainedWeights trained(decoder, owned, *data[static_cast<size_t>(rank)],
                                 shards ? &*shards : nullptr);
          model::Tape mine{.batch = batch()};
          if (rank == 0 || rank == n - 1) {
            decoder.backward(mine, decoder.forward_train(mine).cos());
          } else {
            decoder.walk_forward();
            decoder.walk_backward();
          }
          for (size_t i = 0; i < want.size(); ++i) {
            const std::string& name = decoder.weights()[i].name;
            ASSERT_EQ(trained.grads()[i].defined(), want[i].defined()) << name;
            if (want[i].defined()) {
              EXPECT_EQ(trained.grads()[i].numel(), trained.runs()[i].size()) << name;
              EXPECT_TRUE(at::equal(trained.whole(i, trained.grads()[i]), want[i] * 2)) << name;
            }
            EXPECT_FALSE(decoder.take_grad(i).defined()) << "the rank holds all of it";
          }
          // Twice the values, on every rank, whoever holds them.
          for (const at::Tensor& master : trained.masters()) master.mul_(2);
          trained.share();
          size_t i = 0;
          decoder.visit_weights([&](const model::NamedWeight& w) {
            EXPECT_TRUE(at::equal(*w.value, *alone.weights()[i++].value * 2)) << w.name;
          });
          trained.zero_grads();
          decoder.walk_forward();
          decoder.walk_backward();
          for (const at::Tensor& grad : trained.grads()) EXPECT_FALSE(grad.defined());
        };
        std::vector<std::thread> threads;
        for (int r = 0; r < n; ++r) threads.emplace_back(script, r);
        for (std::thread& t : threads) t.join();
      }
    }
  }
}

TEST(TrainedWeights, WhatStaysFloat32InABfloat16ModelIsToldWithoutRounding) {
  JsonObject config = model::tiny_config("qwen3_5");
  config["linear_num_key_heads"] = 2;
  config["linear_num_value_heads"] = 4;
  config["linear_key_head_dim"] = 8;
  config["linear_value_head_dim"] = 12;
  config["partial_rotary_factor"] = 0.5;
  const model::TinyModel model(config);
  auto data = mesh::thread_comms(2);
  const auto script = [&](int rank) {
    const Checkpoint files = Checkpoint::open(model.path());
    model::Decoder decoder(model::read_spec(config), files, at::kBFloat16);
    const Ownership owned(decoder, 2, 1);
    TrainedWeights trained(decoder, owned, *data[static_cast<size_t>(rank)], nullptr);
    std::vector<at::Tensor> want;
    for (size_t i = 0; i < trained.masters().size(); ++i) {
      trained.masters()[i].mul_(1.001);
      want.push_back(trained.whole(i, trained.masters()[i]));
    }
    trained.share();
    int64_t count = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      const model::NamedWeight& w = decoder.weights()[i];
      EXPECT_TRUE(at::equal(*w.value, want[i].to(w.value->scalar_type()))) << w.name;
      if (w.value->scalar_type() != at::kFloat) continue;
      ++count;
      EXPECT_FALSE(at::equal(want[i], want[i].to(at::kBFloat16).to(at::kFloat))) << w.name;
    }
    EXPECT_EQ(count, 4);
  };
  std::thread other(script, 1);
  script(0);
  other.join();
}

// Counts the bytes of gradients that this rank holds where ranks add them up.
class HeldGrads : public mesh::CountingComm {
 public:
  using CountingComm::CountingComm;
  at::Tensor all_to_all(const at::Tensor& in, mesh::Counts to, mesh::Counts from) override {
    int64_t held = in.scalar_type() == at::kFloat ? static_cast<int64_t>(in.nbytes()) : 0;
    for (const at::Tensor& grad : decoder->grads())
      if (grad.defined()) held += static_cast<int64_t>(grad.nbytes());
    most = std::max(most, held);
    return CountingComm::all_to_all(in, to, from);
  }
  model::Decoder* decoder = nullptr;
  int64_t most = 0;
};

TEST(TrainedWeights, HoldTheGradientsOfOnePieceAtATimeAndOfATiedHead) {
  for (const bool tied : {true, false}) {
    JsonObject config = trained_config(tied);
    config["num_hidden_layers"] = 6;
    const model::TinyModel model(config);
    for (const int fsdp : {1, 2}) {
      auto data = mesh::thread_comms(2), base = mesh::thread_comms(2);
      const auto script = [&](size_t rank) {
        std::optional<Shards> shards;
        if (fsdp > 1) shards.emplace(*base[rank], 0);
        model::Decoder decoder = decoder_of(model.path(), shards ? *shards : model::no_borders());
        HeldGrads counted(*data[rank]);
        counted.decoder = &decoder;
        const Ownership owned(decoder, 2, fsdp);
        TrainedWeights trained(decoder, owned, counted, shards ? &*shards : nullptr);
        const int64_t whole = [&] {
          int64_t out = 0;
          for (const auto& w : decoder.weights()) out += w.value->numel() * 4;
          return out;
        }();
        int64_t largest = 0, vectors = owned.pieces().back().count * 4;
        for (const Ownership::Piece& piece : owned.pieces())
          largest = std::max(largest, piece.count * 4);
        const int64_t head = owned.pieces().front().count * 4;
        counted.most = 0;
        for (int pass = 0; pass < 2; ++pass) {
          model::Tape tape{.batch = batch()};
          const at::Tensor x = decoder.forward_train(tape);
          decoder.backward(tape, x.cos());
        }
        EXPECT_LE(counted.most, largest + vectors + (tied ? head : 0));
        EXPECT_GE(counted.most, largest);
        EXPECT_LT(counted.most, whole / 2);
      };
      std::vector<std::thread> threads;
      for (size_t r = 0; r < 2; ++r) threads.emplace_back(script, r);
      for (std::thread& t : threads) t.join();
    }
  }
}

}  // namespace
}  // namespace twinkle::parallel
