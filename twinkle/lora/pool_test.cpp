#include "twinkle/lora/pool.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <utility>

#include "twinkle/kernels/allocation_meter_for_test.h"
#include "twinkle/model/family.h"
#include "twinkle/model/tiny_families.h"
#include "twinkle/nn/rows_for_test.h"

namespace twinkle::lora {
namespace {

using Names = std::vector<std::string>;

class PoolTest : public testing::Test {
 protected:
  PoolTest()
      : decoder_(model::read_spec(model::tiny_config()), Checkpoint::open(directory_.path()),
                 at::kDouble) {}

  std::unique_ptr<Adapter> adapter(int64_t rank, Names modules, double dropout = 0) {
    auto out = std::make_unique<Adapter>(
        PeftConfig{
            .rank = rank, .alpha = 5, .dropout = dropout, .target_modules = std::move(modules)},
        decoder_.linears(), static_cast<uint64_t>(rank));
    for (Factors& f : out->factors()) f.f.b.normal_(0, 0.3);
    out->weights_changed();
    return out;
  }

  const nn::Linear& linear(size_t index) { return *decoder_.linears()[index].linear; }

  Names with_seam() {
    Names out;
    for (const auto& l : decoder_.linears()) {
      if (l.linear->delta) out.push_back(l.path);
    }
    return out;
  }

  const model::TinyModel directory_;
  model::Decoder decoder_;
};

constexpr size_t kQ = 0, kK = 1;  // the first layer's

TEST_F(PoolTest, EverySequenceGetsItsOwnersDenseDeltaAndGradients) {
  Pool pool(decoder_);
  const AdapterRef pin0 = pool.add(adapter(3, {"q_proj", "k_proj"}));
  const AdapterRef pin1 = pool.add(adapter(17, {"q_proj"}));
  const std::vector<int64_t> lengths{4, 2, 6, 3};
  const nn::Rows rows = nn::rows_of(lengths, {1, -1, 0, 1}, {0, 0, 0, 0}, {1, 1, 1, 0});
  for (const size_t index : {kQ, kK}) {
    const at::Tensor x = at::randn({15, 48}, at::kDouble).requires_grad_();
    std::vector<at::Tensor> a, b;  // factors of the two slots
    for (const int32_t slot : {0, 1}) {
      Factors* f = pool.at(slot).at(index);
      a.push_back((f ? f->f.a : at::zeros({1, 48}, at::kDouble)).clone().requires_grad_());
      b.push_back((f ? f->f.b : at::zeros({linear(index).weight.size(0), 1}, at::kDouble)).clone());
      b.back().requires_grad_();
    }
    std::vector<at::Tensor> outputs;
    for (size_t s = 0; s < lengths.size(); ++s) {
      const at::Tensor mine = x.slice(0, rows.cu_seqlens[s], rows.cu_seqlens[s + 1]);
      at::Tensor y = mine.matmul(linear(index).weight.t());
      if (rows.segments[s].slot >= 0) {
        const auto i = static_cast<size_t>(rows.segments[s].slot);
        // A sequence that does not learn has a delta, and its factors are constants.
        const bool learn = rows.segments[s].learn;
        y = y + 5.0 / (i == 0 ? 3 : 17) *
                    mine.matmul((learn ? a[i] : a[i].detach()).t())
                        .matmul((learn ? b[i] : b[i].detach()).t());
      }
      outputs.push_back(y);
    }
    const at::Tensor want = at::cat(outputs), weights = at::randn_like(want);
    (want * weights).sum().backward();
    const at::Tensor in = x.detach().clone().requires_grad_();
    const at::Tensor got = nn::linear(in, linear(index), rows);
    EXPECT_LT((got - want).abs().max().item<double>(), 1e-12);
    (got * weights).sum().backward();
    EXPECT_LT((in.grad() - x.grad()).abs().max().item<double>(), 1e-12);
    for (const int32_t slot : {0, 1}) {
      Factors* f = pool.at(slot).at(index);
      if (!f) continue;
      const auto i = static_cast<size_t>(slot);
      EXPECT_LT((f->grads[0] - a[i].grad()).abs().max().item<double>(), 1e-11);
      EXPECT_LT((f->grads[1] - b[i].grad()).abs().max().item<double>(), 1e-11);
    }
  }
}

TEST_F(PoolTest, DropoutIsKeyedBySequenceAndLinearAndOffWithoutAKey) {
  Pool pool(decoder_);
  const AdapterRef pin0 = pool.add(adapter(3, {"q_proj", "o_proj"}, 0.5));
  const std::vector<int64_t> lengths{5};
  const at::Tensor x = at::randn({5, 48}, at::kDouble);
  const auto out = [&](size_t index, uint64_t key) {
    const nn::Rows rows = nn::rows_of(lengths, {0}, {key}, {0});
    return nn::linear(x, linear(index), rows) - x.matmul(linear(index).weight.t());
  };
  const auto dense = [&](const at::Tensor& in) {
    const Factors& f = *pool.at(0).at(kQ);
    return 5.0 / 3 * in.matmul(f.f.a.t()).matmul(f.f.b.t());
  };
  EXPECT_TRUE(at::allclose(out(kQ, 0), dense(x), 1e-9, 1e-12));
  EXPECT_TRUE(at::equal(out(kQ, 9), out(kQ, 9)));
  EXPECT_FALSE(at::allclose(out(kQ, 9), dense(x), 1e-3, 1e-3));
  EXPECT_FALSE(at::allclose(out(kQ, 9), out(kQ, 10), 1e-3, 1e-3));
  EXPECT_LT(out(kK, 9).abs().max().item<double>(), 1e-12) << "k_proj has no adapter";
}

TEST_F(PoolTest, TheBytesKeptForBackwardAreCountedWithoutRunning) {
  Pool pool(decoder_);
  const AdapterRef pin0 = pool.add(adapter(3, {"q_proj"}));
  const AdapterRef pin1 = pool.add(adapter(17, {"q_proj", "k_proj"}));
  const nn::Rows rows = nn::rows_of({4, 2, 6, 3}, {1, -1, 0, 1}, {0, 0, 0, 0}, {1, 1, 1, 0});
  for (const size_t index : {kQ, kK}) {
    const at::Tensor x = at::randn({15, 48}, at::kDouble);
    at::Tensor y = at::zeros({15, linear(index).weight.size(0)}, at::kDouble);
    size_t bytes = 0;
    for (const at::Tensor& t : linear(index).delta->forward(x, rows, y)) bytes += t.nbytes();
    EXPECT_EQ(linear(index).delta->saved_bytes(rows), static_cast<int64_t>(bytes));
  }
}

TEST_F(PoolTest, OnlyTargetedLinearsHaveASeamAndOnlyAsLongAsTheyAreTargeted) {
  {
    Pool pool(decoder_);
    EXPECT_TRUE(with_seam().empty());
    AdapterRef q = pool.add(adapter(3, {"0.self_attn.q_proj"}));
    AdapterRef both = pool.add(adapter(4, {"0.self_attn.q_proj", "1.mlp.up_proj"}));
    EXPECT_EQ(with_seam(),
              (Names{"model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj"}));
    both = {};
    EXPECT_EQ(with_seam(), Names{"model.layers.0.self_attn.q_proj"});
    q = {};
    EXPECT_TRUE(with_seam().empty());
    const AdapterRef k = pool.add(adapter(3, {"k_proj"}));
    EXPECT_EQ(with_seam().size(), 2u);
  }
  EXPECT_TRUE(with_seam().empty()) << "the pool takes its seams along";
}

TEST_F(PoolTest, ASlotIsFreedWithItsLastShareAndUsedAgainAndNeighboursStay) {
  Pool pool(decoder_);
  AdapterRef first = pool.add(adapter(3, {"q_proj"})), second = pool.add(adapter(4, {"q_proj"})),
             third = pool.add(adapter(5, {"q_proj"}));
  EXPECT_EQ(first.slot(), 0);
  EXPECT_EQ(second.slot(), 1);
  EXPECT_EQ(third.slot(), 2);
  const Adapter* last = &pool.at(2);
  AdapterRef copy = first;
  first = {};
  EXPECT_EQ(pool.at(0).config().rank, 3) << "the copy holds it";
  EXPECT_EQ(first.slot(), -1);
  copy = {};
  second = {};
  for (const int32_t slot : {0, 1, 3, -1})
    EXPECT_EQ(error_of([&] { pool.at(slot); }), "lora: slot " + std::to_string(slot) + " is empty");
  first = pool.add(adapter(6, {"q_proj"}));
  EXPECT_EQ(first.slot(), 0);
  EXPECT_EQ(pool.at(0).config().rank, 6);
  EXPECT_EQ(&pool.at(2), last);
}

TEST_F(PoolTest, WeightsThatOthersShareAreCopiedBeforeAChangeAndNoneElse) {
  Pool pool(decoder_);
  AdapterRef mine = pool.add(adapter(3, {"q_proj"}));
  pool.copy_on_write(mine);
  EXPECT_EQ(mine.slot(), 0) << "nobody else holds it";
  const AdapterRef reader = mine;
  EXPECT_EQ(mine.num_shares(), 2);
  pool.at(0).make_grads();
  pool.copy_on_write(mine);
  EXPECT_EQ(mine.slot(), 1);
  EXPECT_EQ(reader.slot(), 0);
  EXPECT_EQ(reader.num_shares(), 1);
  EXPECT_TRUE(pool.at(1).factors()[0].grads[0].defined()) << "gradients move along";
  const at::Tensor x = at::randn({4, 48}, at::kDouble);
  const auto run = [&](const AdapterRef& pin) {
    return nn::linear(x, linear(kQ), nn::rows_of({4}, {pin.slot()}, {0}, {0}));
  };
  const at::Tensor before = run(reader);
  EXPECT_TRUE(at::equal(run(mine), before));
  pool.at(1).factors()[0].f.a.add_(1);
  pool.weights_changed(mine);
  EXPECT_TRUE(at::equal(run(reader), before));
  EXPECT_FALSE(at::equal(run(mine), before));
}

TEST_F(PoolTest, AVersionNamesTheWeightsAndNeverComesBack) {
  Pool pool(decoder_);
  AdapterRef a = pool.add(adapter(3, {"q_proj"})), b = pool.add(adapter(3, {"q_proj"}));
  std::set<uint64_t> seen{pool.base_version(), a.version(), b.version()};
  EXPECT_EQ(seen.size(), 3u);
  EXPECT_FALSE(seen.contains(0));
  const AdapterRef reader = a;
  const uint64_t old = a.version();
  pool.copy_on_write(a);
  EXPECT_EQ(a.version(), old) << "a copy of the same weights";
  pool.weights_changed(a);
  EXPECT_EQ(reader.version(), old);
  EXPECT_TRUE(seen.insert(a.version()).second);
  pool.base_changed();
  EXPECT_TRUE(seen.insert(pool.base_version()).second);
  b = pool.add(adapter(3, {"q_proj"}));
  EXPECT_TRUE(seen.insert(b.version()).second);
}

// Stands where no seam may be written.
struct Untouched : nn::Delta {
  std::vector<at::Tensor> forward(const at::Tensor&, const nn::Rows&, at::Tensor&) override {
    return {};
  }
  void backward(const at::Tensor&, const at::Tensor&, const std::vector<at::Tensor>&,
                const nn::Rows&, at::Tensor&) override {}
};

// How many linears have their seam written by `change`. The others keep theirs.
size_t num_written(const std::vector<model::NamedLinear>& linears,
                   const std::function<void()>& change) {
  Untouched mark;
  std::vector<nn::Delta*> seams;
  for (const auto& l : linears) seams.push_back(std::exchange(l.linear->delta, &mark));
  change();
  size_t written = 0;
  for (size_t i = 0; i < linears.size(); ++i) {
    nn::Delta*& now = linears[i].linear->delta;
    written += now == &mark ? 0 : 1;
    if (now == &mark) now = seams[i];
  }
  return written;
}

TEST(PoolOfExperts, AttachingAnAdapterTouchesTheLinearsThatItTargetsAndNoOthers) {
  JsonObject config = model::tiny_family("qwen3_moe");
  config["num_experts"] = 64;
  const model::TinyModel directory(config);
  model::Decoder decoder(model::read_spec(config), Checkpoint::open(directory.path()), at::kFloat);
  const auto linears = decoder.linears();
  ASSERT_GT(linears.size(), 512u);
  Pool pool(decoder);
  const auto adapter = [&](Names modules) {
    return std::make_unique<Adapter>(
        PeftConfig{.rank = 2, .alpha = 4, .target_modules = std::move(modules)}, linears, 1);
  };
  std::vector<AdapterRef> others;  // slots that nobody asks
  for (int i = 0; i < 12; ++i) others.push_back(pool.add(adapter({"q_proj", "down_proj"})));
  AdapterRef pin, copy;
  const auto written = [&](const std::function<void()>& change) {
    return num_written(linears, change);
  };
  EXPECT_EQ(written([&] { pin = pool.add(adapter({"0.mlp.experts.5.down_proj", "o_proj"})); }), 3u);
  EXPECT_EQ(written([&] { copy = pin; }), 0u);
  EXPECT_EQ(written([&] { pool.copy_on_write(copy); }), 3u);
  EXPECT_EQ(written([&] { pool.weights_changed(copy); }), 0u);
  EXPECT_EQ(written([&] { pin = {}; }), 3u);
  EXPECT_EQ(written([&] { others.pop_back(); }), 2 + 2 * 64u);
}

// Latent attention, whose backward keeps a gradient of kv_b_proj's size for each sequence until
// it has gone through the layer.
TEST(PoolOfLatents, ActivationsAreCountedWithWhatTheBackwardOfOneLayerKeeps) {
  const JsonObject config = model::tiny_family("deepseek_v3");
  const model::TinyModel directory(config);
  model::Decoder decoder(model::read_spec(config), Checkpoint::open(directory.path()), at::kFloat);
  Pool pool(decoder);
  const AdapterRef pin = pool.add(std::make_unique<Adapter>(
      PeftConfig{.rank = 2, .alpha = 4, .target_modules = Names{"kv_b_proj"}}, decoder.linears(),
      1));
  const auto batch = [&] {
    return model::Batch{.input_ids = at::arange(5, at::kLong),
                        .rows = nn::rows_of({3, 2}, {pin.slot(), pin.slot()}, {0, 0}, {1, 1})};
  };
  int64_t slopes = 0;  // for the two sequences, in one layer
  for (const auto& linear : decoder.linears())
    if (linear.path == "model.layers.0.self_attn.kv_b_proj")
      slopes = 2 * linear.linear->weight.numel() * 4;
  ASSERT_GT(slopes, 0);
  const int64_t counted = decoder.activation_bytes(batch());
  const auto recomputed = [&](int64_t limit) {
    decoder.limit_activations(limit);
    const int64_t before = decoder.num_recomputed_layers();
    model::Tape tape{.batch = batch(), .segments = {}};
    const kernels::AllocationMeter meter;
    const at::Tensor hidden = decoder.forward_train(tape);
    if (limit == counted) {
      const auto held = static_cast<double>(meter.now());
      EXPECT_NEAR(static_cast<double>(counted - slopes) / held, 1.0, 0.02);
      EXPECT_GT(static_cast<double>(slopes), 0.1 * held);
    }
    decoder.backward(tape, at::ones_like(hidden));
    return decoder.num_recomputed_layers() - before;
  };
  EXPECT_EQ(recomputed(counted), 0);
  EXPECT_EQ(recomputed(counted - 1), 1);
}

}  // namespace
}  // namespace twinkle::lora
