// Recorded training passes against the decoder's own, bit for bit: in lora_test where there is a
// GPU, and on the emulated device in cuda_emulation_test.
#include "twinkle/lora/train_graphs.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/model/family.h"
#include "twinkle/model/tiny_model.h"
#include "twinkle/nn/rows_for_test.h"

namespace twinkle::lora {
namespace {

using Lengths = std::vector<int64_t>;
using Slots = std::vector<int32_t>;
using Targets = std::vector<std::string>;
using Weak = c10::weak_intrusive_ptr<c10::TensorImpl>;

JsonObject config() {
  JsonObject c = model::tiny_config("qwen3");
  c["num_hidden_layers"] = 1;
  c["hidden_size"] = 16;
  c["intermediate_size"] = 24;
  c["num_attention_heads"] = 2;
  c["num_key_value_heads"] = 1;
  c["head_dim"] = 8;
  return c;
}

// A decoder on the device with its adapters, which a test changes as a step does.
struct Model {
  Checkpoint checkpoint;
  model::Decoder decoder;
  Pool pool{decoder};
  TrainGraphs graphs;
  std::vector<AdapterRef> pins;
  uint64_t key = 0;  // key of dropout

  Model(const std::string& path, at::ScalarType dtype, size_t most)
      : checkpoint(Checkpoint::open(path)),
        decoder(model::read_spec(checkpoint.config()), checkpoint, dtype,
                kernels::cuda::current_device()),
        graphs(decoder, pool, most) {}

  void add(int64_t rank, double dropout = 0) {
    const PeftConfig of{
        .rank = rank, .dropout = dropout, .target_modules = Targets{"q_proj", "down_proj"}};
    pins.push_back(pool.add(std::make_unique<Adapter>(of, pool.linears(), 3)));
    change(pins.size() - 1, static_cast<double>(rank));
  }
  void change(size_t i, double phase) {
    for (Factors& f : pool.at(pins[i].slot()).factors()) {
      const at::Tensor b = at::arange(f.f.b.numel()).view(f.f.b.sizes()).to(f.f.b.scalar_type());
      f.f.b.copy_(b.add(phase).sin() / 10);
    }
    pool.weights_changed(pins[i]);
  }
  void zero_grads(size_t i) { pool.at(pins[i].slot()).zero_grads(); }

  std::vector<at::Tensor> pass(const Lengths& lengths, const Slots& slots, bool learn = true) {
    const at::NoGradGuard no_grad;
    model::Tape tape;
    model::Batch& batch = tape.batch;
    batch.rows = nn::pack(lengths);
    batch.input_ids = (at::arange(batch.rows.num_tokens()) * 7 + num_passes_++) % 131;
    for (size_t s = 0; s < slots.size(); ++s) batch.rows.segments[s] = {slots[s], ++key, true};
    const at::Tensor hidden = graphs.forward(tape);
    std::vector<at::Tensor> out{hidden.cpu()};
    if (!learn) batch.rows.segments[0].learn.end();
    graphs.backward(tape, hidden.cos());
    for (const int32_t slot : std::set<int32_t>(slots.begin(), slots.end())) {
      for (const Factors& f : pool.at(slot).factors()) {
        for (const at::Tensor* grad : {&f.grads[0], &f.grads[1]})
          out.push_back(grad->defined() ? grad->cpu() : at::Tensor());
      }
    }
    return out;
  }

 private:
  int64_t num_passes_ = 0;
};

// Two of them, of which one records.
class TrainGraphsOnDevice : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!kernels::cuda::available()) GTEST_SKIP() << "this build or machine has no CUDA device";
    with_ = std::make_unique<Model>(files_.path(), GetParam(), /*most=*/4);
    without_ = std::make_unique<Model>(files_.path(), GetParam(), 0);
    both([](Model& m) { m.add(2), m.add(5); });
  }

  template <class Body>
  void both(const Body& body) {
    body(*with_);
    body(*without_);
  }
  // How many of so many passes were replayed. All have the bits of passes without recordings.
  int64_t replays(int count, const Lengths& lengths, const Slots& slots, bool learn = true) {
    const int64_t before = with_->graphs.num_replays();
    for (int i = 0; i < count; ++i) {
      const auto got = with_->pass(lengths, slots, learn);
      const auto want = without_->pass(lengths, slots, learn);
      EXPECT_EQ(got.size(), want.size());
      for (size_t k = 0; k < want.size(); ++k) {
        const bool same =
            got[k].defined() == want[k].defined() && (!want[k].defined() || got[k].equal(want[k]));
        EXPECT_TRUE(same) << k << " of pass " << i;
      }
    }
    EXPECT_EQ(without_->graphs.num_replays(), 0);
    return with_->graphs.num_replays() - before;
  }
  void step(size_t i) {
    const double phase = static_cast<double>(++num_steps_);
    both([&](Model& m) { m.change(i, phase), m.zero_grads(i); });
  }

  const model::TinyModel files_{config()};
  std::unique_ptr<Model> with_, without_;
  int num_steps_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Dtypes, TrainGraphsOnDevice, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST_P(TrainGraphsOnDevice, ALayoutsThirdPassIsTheFirstToBeReplayedWithTheBitsOfThePlainOne) {
  EXPECT_EQ(replays(2, {2, 3, 1}, {0, 1, 0}), 0);
  EXPECT_EQ(replays(2, {2, 3, 1}, {0, 1, 0}), 2) << "sums go on";
  for (int i = 0; i < 2; ++i) {
    step(0);
    EXPECT_EQ(replays(2, {2, 3, 1}, {0, 1, 0}), 2) << "other weights, for 1 the sums so far";
  }
}

TEST_P(TrainGraphsOnDevice, OtherLengthsOrOwnersAreOtherPassesWhichShareTheirSums) {
  replays(2, {1, 3}, {0, 1});
  EXPECT_EQ(replays(1, {3, 1}, {0, 1}), 0);
  EXPECT_EQ(replays(1, {1, 3}, {1, 0}), 0);
  EXPECT_EQ(replays(1, {1, 3, 1}, {0, 1, 1}), 0);
  EXPECT_EQ(replays(1, {1, 3}, {0, 1}), 1);
  step(0), step(1);
  replays(1, {3, 1}, {0, 1});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(replays(1, {3, 1}, {0, 1}), 1);
    EXPECT_EQ(replays(1, {1, 3}, {0, 1}), 1);
  }
}

TEST_P(TrainGraphsOnDevice, SumsThatWerePutBackAreAddedTo) {
  replays(3, {2, 1}, {0, 1});
  both([](Model& m) {
    for (Factors& f : m.pool.at(0).factors()) f.grads[0] = f.grads[0].clone() * 2;
    for (Factors& f : m.pool.at(1).factors()) f.grads[1] = at::Tensor();
  });
  EXPECT_EQ(replays(2, {2, 1}, {0, 1}), 2);
}

TEST_P(TrainGraphsOnDevice, WeightsThatWereCopiedForTheirReadersAreOthers) {
  replays(3, {2, 1}, {0, 1});
  std::vector<AdapterRef> published{with_->pins[0], without_->pins[0]};
  both([](Model& m) { m.pool.copy_on_write(m.pins[0]); });
  const int32_t slot = with_->pins[0].slot();
  ASSERT_EQ(slot, 2);
  EXPECT_EQ(replays(2, {2, 1}, {slot, 1}), 0);
  EXPECT_EQ(replays(1, {2, 1}, {slot, 1}), 1);
  // The old slot's next owner.
  published.clear();
  both([](Model& m) { m.add(2); });
  ASSERT_EQ(with_->pins.back().slot(), 0);
  EXPECT_EQ(replays(2, {2, 1}, {0, 1}), 0);
  EXPECT_EQ(replays(1, {2, 1}, {0, 1}), 1);
}

TEST_P(TrainGraphsOnDevice, APassWhoseSequenceIsNotToLearnAfterAllIsThePlainOne) {
  replays(2, {2, 1}, {0, 1});
  EXPECT_EQ(replays(1, {2, 1}, {0, 1}, /*learn=*/false), 0);
  EXPECT_EQ(replays(1, {2, 1}, {0, 1}), 1);
}

TEST_P(TrainGraphsOnDevice, DropoutAndBaseWeightsThatLearnAreNotRecorded) {
  both([](Model& m) { m.add(3, /*dropout=*/0.5); });
  EXPECT_EQ(replays(3, {2, 1}, {2, 1}), 0);
  EXPECT_EQ(replays(3, {2, 1}, {0, 1}), 1);
  both([](Model& m) { m.decoder.train_all(); });
  EXPECT_EQ(replays(3, {2, 1}, {0, 1}), 0);
  both([](Model& m) { m.decoder.freeze(); });
  EXPECT_EQ(replays(1, {2, 1}, {0, 1}), 1);
}

TEST_P(TrainGraphsOnDevice, RecordingsStayTogetherWithinTheLimitOfActivations) {
  model::Batch batch;
  batch.rows = nn::rows_of({2, 1}, {0, 1}, {0, 0}, {1, 1});
  const int64_t bytes = with_->decoder.activation_bytes(batch);
  both([&](Model& m) { m.decoder.limit_activations(bytes - 1); });
  EXPECT_EQ(replays(3, {2, 1}, {0, 1}), 0) << "its layers are computed again";
  both([&](Model& m) { m.decoder.limit_activations(bytes + 1); });
  EXPECT_EQ(replays(3, {2, 1}, {0, 1}), 1);
  EXPECT_EQ(replays(3, {1}, {0}), 0) << "no room beside the other";
  EXPECT_EQ(replays(15, {2}, {0}), 2) << "which has not come for 16 passes";
  both([&](Model& m) { m.decoder.limit_activations(0); });
  EXPECT_EQ(replays(2, {1}, {0}), 1);
  EXPECT_EQ(replays(2, {2, 1}, {0, 1}), 1);
}

TEST_P(TrainGraphsOnDevice, TheLastLayoutsAreRemembered) {
  for (int64_t length = 1; length <= 5; ++length) EXPECT_EQ(replays(3, {length}, {0}), 1);
  EXPECT_EQ(replays(1, {5}, {0}), 1);
  EXPECT_EQ(replays(1, {2}, {0}), 1);
  EXPECT_EQ(replays(1, {1}, {0}), 0);
}

TEST_P(TrainGraphsOnDevice, WhatARecordingHoldsGoesWithItsAdapters) {
  const auto weak = [](const at::Tensor& x) { return Weak(x.getIntrusivePtr()); };
  const auto held = [&](size_t i) {
    const Factors& f = with_->pool.at(with_->pins[i].slot()).factors()[0];
    return std::vector<Weak>{weak(f.f.a), weak(f.grads[1])};
  };
  const auto expect_held = [](const std::vector<Weak>& all, bool want) {
    for (const Weak& x : all) EXPECT_EQ(!x.expired(), want);
  };
  replays(3, {2, 1}, {0, 1});
  const auto first = held(0);
  both([](Model& m) { m.pins[0] = AdapterRef(); });
  expect_held(first, true);
  with_->graphs.sweep();
  expect_held(first, false);
  replays(3, {2, 1}, {1, 1});
  const auto now = held(1);
  both([](Model& m) { m.zero_grads(1); });
  expect_held({now[1]}, true);
  EXPECT_TRUE(with_->graphs.forget());
  expect_held({now[1]}, false);
  EXPECT_FALSE(with_->graphs.forget());
  EXPECT_EQ(replays(2, {2, 1}, {1, 1}), 0);
  EXPECT_EQ(replays(1, {2, 1}, {1, 1}), 1);
}

}  // namespace
}  // namespace twinkle::lora
