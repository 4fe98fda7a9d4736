// Decoding on a device, by recorded graphs and without, against the CPU: in sampler_test where
// there is a GPU, and on the emulated device in cuda_emulation_test.
#include <gtest/gtest.h>

#include <cmath>

#include "twinkle/io/peft/peft.h"
#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/lora/pool.h"
#include "twinkle/sampler/requests_for_test.h"
#include "twinkle/sampler/sampler.h"
#include "twinkle/sampler/tiny_decoder_for_test.h"

namespace twinkle::sampler {
namespace {

class Decoding : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!kernels::cuda::available()) GTEST_SKIP() << "this build or machine has no CUDA device";
  }
  static TinyOptions tiny(const at::Device& device) {
    return {.family = "qwen3",
            .dtype = GetParam(),
            .width = 32,
            .hidden = 40,
            .num_layers = 1,
            .num_heads = 4,
            .device = device};
  }
};

INSTANTIATE_TEST_SUITE_P(Dtypes, Decoding, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

// A decoder, and adapters of two ranks whose B is not zero.
struct Model {
  TinyDecoder decoder;
  lora::Pool pool{*decoder};
  std::vector<lora::AdapterRef> pins;

  explicit Model(const TinyOptions& options) : decoder(options) {
    for (const int64_t rank : {2, 5}) {
      const PeftConfig config{.rank = rank, .target_modules = "all-linear"};
      pins.push_back(pool.add(std::make_unique<lora::Adapter>(config, pool.linears(), 3)));
      change(pins.size() - 1, static_cast<double>(rank));
    }
  }
  void change(size_t i, double phase) {
    for (lora::Factors& f : pool.at(pins[i].slot()).factors()) {
      at::Tensor b = f.f.b.cpu();
      b.copy_(at::arange(b.numel()).view(b.sizes()).to(b.scalar_type()).add(phase).sin() / 10);
      f.f.b.copy_(b);
    }
    pool.weights_changed(pins[i]);
  }

  // One prompt ends just before its second page.
  std::vector<Request> requests() {
    std::vector<Request> out;
    for (unsigned i = 0; i < 4; ++i) {
      Request r{some_prompt(std::vector<int64_t>{4, 61, 9, 5}[i], i),
                {.max_tokens = 6 + i, .seed = i}};
      r.params.temperature = i == 3 ? 1 : 0;
      const size_t owner = i % 3;
      r.slot = owner == 2 ? -1 : pins[owner].slot();
      r.version = owner == 2 ? pool.base_version() : pins[owner].version();
      out.push_back(r);
    }
    return out;
  }
};

void expect_all_near(const std::vector<std::vector<Completion>>& a,
                     const std::vector<std::vector<Completion>>& b) {
  for (size_t i = 0; i < a.size(); ++i) expect_same(a[i][0], b[i][0], std::to_string(i));
}

TEST_P(Decoding, ByGraphsGivesTheBitsOfDecodingWithoutAndTheCpusTokens) {
  Model device(tiny(kernels::cuda::current_device()));
  Sampler with(*device.decoder, {.kv_tokens = 1024});
  Sampler without(*device.decoder, {.kv_tokens = 1024, .decode_graphs = false});
  const auto got = generate(with, device.requests());
  expect_all_near(got, generate(without, device.requests()));
  EXPECT_GE(with.num_replays(), 3);
  EXPECT_EQ(without.num_replays(), 0);
  if (GetParam() != at::kFloat) return;
  Model cpu(tiny(at::kCPU));
  Sampler on_cpu(*cpu.decoder, {.kv_tokens = 1024});
  const auto want = generate(on_cpu, cpu.requests());
  EXPECT_EQ(on_cpu.num_replays(), 0);
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i][0].tokens, want[i][0].tokens) << i;
    for (size_t t = 0; t < want[i][0].tokens.size(); ++t)
      EXPECT_NEAR(got[i][0].logprobs[t], want[i][0].logprobs[t], 1e-4) << i << " " << t;
  }
}

TEST_P(Decoding, AGraphIsNotReplayedForWeightsThatHaveChanged) {
  Model device(tiny(kernels::cuda::current_device()));
  Sampler with(*device.decoder, {.kv_tokens = 1024});
  Sampler without(*device.decoder, {.kv_tokens = 1024, .decode_graphs = false});
  const auto before = generate(with, device.requests());
  const int64_t replays = with.num_replays();
  device.change(0, 11);
  const auto after = generate(with, device.requests());
  expect_all_near(after, generate(without, device.requests()));
  EXPECT_NE(after[0][0].logprobs, before[0][0].logprobs);
  EXPECT_GT(with.num_replays(), replays);
  // The base model has not changed: other graphs give the same numbers.
  EXPECT_EQ(after[2][0].logprobs, before[2][0].logprobs);
}

}  // namespace
}  // namespace twinkle::sampler
