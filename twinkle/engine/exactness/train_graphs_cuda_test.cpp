// Whatever tenants do, engines that replay training passes and engines that don't give the same
// bits: on a GPU in engine_test, skipped where there is none, and on the emulated device in
// cuda_emulation_test.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "twinkle/engine/exactness/outcomes_for_test.h"
#include "twinkle/engine/training/split.h"
#include "twinkle/engine/training/training.h"
#include "twinkle/io/peft/peft.h"
#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/model/family.h"

namespace twinkle::engine {
namespace {

constexpr const char* kPlainKeys =
    R"({"r": 3, "lora_alpha": 9, "target_modules": ["k_proj", "down_proj"]})";
constexpr const char* kOtherKeys = R"({"r": 8, "target_modules": ["k_proj"]})";
constexpr const char* kDroppedKeys =
    R"({"r": 2, "lora_dropout": 0.2, "target_modules": ["k_proj"]})";

class TrainGraphsOfEngine : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!kernels::cuda::available()) GTEST_SKIP() << "this build or machine has no CUDA device";
    EngineOptions options{.model = {.path = model_.path(), .mixed_precision = GetParam()},
                          .sampler = {.kv_tokens = 512}};
    options.model.device = "cuda";  // or what stands for it in tests/cuda_emulation
    options.scheduling.gather_ms = 0;
    options.parking.resident_bytes = resident_bytes_;
    options.parking.directory = scratch_.path().string();
    with_ = std::make_unique<Engine>(options);
    options.model.train_graphs = false;
    without_ = std::make_unique<Engine>(options);
  }

  // Both do it, one after the other, and give the same; how many passes were replayed.
  int64_t replays(const std::vector<Operation>& operations) {
    const int64_t before = with_->num_replayed_passes();
    const auto got = outcomes(*with_, operations), want = outcomes(*without_, operations);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i], want[i]) << i;
    EXPECT_EQ(without_->num_replayed_passes(), 0);
    return with_->num_replayed_passes() - before;
  }
  static std::vector<std::string> outcomes(Engine& engine, std::vector<Operation> operations) {
    std::vector<std::string> out;
    for (Future& f : engine.submit(operations)) out.push_back(outcome_of(f));
    for (const char* tenant : {"a", "b", "c"}) {
      Future state = engine.submit(Inspect{tenant, true});
      out.push_back(outcome_of(state));
    }
    return out;
  }
  int64_t create(const char* tenant, const char* config, uint64_t seed = 5) {
    return replays({Create{.tenant = tenant, .lora_json = config, .seed = seed}});
  }
  // Other ids, the same lengths.
  ForwardBackward learn(const char* tenant) {
    const uint64_t seed = ++seed_;
    return {.tenant = tenant, .sequences = {drawn(seed, 3, 41), drawn(seed + 100, 2, 41)}};
  }
  int64_t replays_of(const char* tenant, int count) {
    int64_t out = 0;
    for (int i = 0; i < count; ++i) out += replays({learn(tenant)});
    return out;
  }
  static Step step(const char* tenant) {
    return {tenant, "AdamW", R"({"lr": 0.02, "eps": 0.001})", /*max_grad_norm=*/0.5};
  }

  const model::TinyModel model_{smallest_config()};
  const ScratchDir scratch_;
  int64_t resident_bytes_ = 0;
  std::unique_ptr<Engine> with_, without_;
  uint64_t seed_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Precisions, TrainGraphsOfEngine, testing::Values("no", "bf16"));

TEST_P(TrainGraphsOfEngine, StepsOfTwoTenantsAreReplayed) {
  create("a", kPlainKeys);
  create("b", kOtherKeys);
  int64_t num = 0;
  for (int i = 0; i < 6; ++i) {
    num += replays({learn("a"), learn("b")});
    replays({step("a")});
    if (i % 2 == 1) replays({Step{"b", "SGD", R"({"lr": 0.5, "momentum": 0.9})"}});
  }
  EXPECT_GE(num, 2) << "a batch may begin with either";
}

TEST_P(TrainGraphsOfEngine, NothingThatATenantDoesIsMissedByAReplay) {
  create("a", kPlainKeys);
  EXPECT_EQ(replays_of("a", 3), 1);
  replays({step("a")});
  EXPECT_EQ(replays_of("a", 2), 2) << "sums that begin, and go on";
  replays({ClipGradNorm{"a", 0.1}});
  EXPECT_EQ(replays_of("a", 1), 0) << "clipped sums take no more";
  replays({ZeroGrad{"a"}});
  EXPECT_EQ(replays_of("a", 1), 1);
  const std::string folder[] = {(scratch_ / "with").string(), (scratch_ / "without").string()};
  with_->run<SaveResult>(Save{"a", folder[0], /*optimizer=*/true});
  without_->run<SaveResult>(Save{"a", folder[1], /*optimizer=*/true});
  replays({step("a")});
  EXPECT_EQ(replays_of("a", 1), 1);
  with_->run<LoadResult>(Load{"a", folder[0], /*optimizer=*/true});
  without_->run<LoadResult>(Load{"a", folder[1], /*optimizer=*/true});
  EXPECT_EQ(replays_of("a", 1), 1) << "with sums that were saved";
  replays({step("a")});
  ForwardBackward bad = learn("a");
  for (Example& s : bad.sequences) s.weights.assign(s.input_ids.size(), std::nanf(""));
  EXPECT_EQ(replays({bad}), 0);
  EXPECT_EQ(replays_of("a", 1), 1);
  EXPECT_EQ(replays({bad}), 0);
  EXPECT_EQ(replays_of("a", 1), 1);
  replays({step("a"), Forward{.tenant = "a", .sequences = learn("a").sequences}});
}

TEST_P(TrainGraphsOfEngine, VersionsSamplesDropoutAndNewTenantsHaveTheirOwnWeights) {
  create("a", kPlainKeys);
  create("b", kDroppedKeys);
  const Sample sample{.tenant = "a",
                      .prompts = {{5, 9, 11, 3}},
                      .params = {{.max_tokens = 3, .seed = 2, .ignore_eos = true}}};
  Sample published = sample;
  published.version = 1;
  EXPECT_EQ(replays_of("a", 3), 1);
  replays({step("a"), sample, Publish{"a"}});
  EXPECT_EQ(replays_of("a", 1), 1);
  replays({step("a")});
  EXPECT_EQ(replays_of("a", 2), 0) << "a copy of the weights that version 1 keeps";
  replays({step("a"), sample, published});
  EXPECT_EQ(replays_of("a", 2), 2);
  replays({published, step("a"), Release{"a", 1}, sample});
  EXPECT_EQ(replays_of("a", 1), 1);
  EXPECT_EQ(replays_of("b", 4), 0);
  replays({Delete{"a"}});
  create("c", kPlainKeys, /*seed=*/6);
  create("a", kPlainKeys, /*seed=*/7);
  for (const char* tenant : {"c", "a"}) EXPECT_EQ(replays_of(tenant, 3), 1) << tenant;
}

class ParkedTrainGraphs : public TrainGraphsOfEngine {
 protected:
  ParkedTrainGraphs() { resident_bytes_ = 1; }
};

INSTANTIATE_TEST_SUITE_P(Precisions, ParkedTrainGraphs, testing::Values("no"));

TEST_P(ParkedTrainGraphs, ATenantThatComesBackIsRecordedAnew) {
  create("a", kPlainKeys);
  EXPECT_EQ(replays_of("a", 1), 0);
  const auto learn_alone = [&] { with_->run<ForwardResult>(learn("a")); };
  const int64_t before = with_->num_replayed_passes();
  for (int i = 0; i < 3; ++i) learn_alone();
  EXPECT_EQ(with_->num_replayed_passes() - before, 2);
  with_->run<Done>(Create{.tenant = "b", .lora_json = kOtherKeys, .seed = 5});
  EXPECT_EQ(with_->parking().num_parked, 1);
  for (int i = 0; i < 2; ++i) learn_alone();
  EXPECT_EQ(with_->num_replayed_passes() - before, 2);
  learn_alone();
  EXPECT_EQ(with_->num_replayed_passes() - before, 3);
}

// Throws in every backward pass that is not replayed.
class FailingDelta : public nn::Delta {
 public:
  explicit FailingDelta(nn::Linear& linear) : linear_(linear), inner_(linear.delta) {
    linear.delta = this;
  }
  ~FailingDelta() override { linear_.delta = inner_; }

  std::vector<at::Tensor> forward(const at::Tensor& x, const nn::Rows& rows,
                                  at::Tensor& y) override {
    return inner_->forward(x, rows, y);
  }
  void backward(const at::Tensor&, const at::Tensor&, const std::vector<at::Tensor>&,
                const nn::Rows&, at::Tensor&) override {
    throw std::bad_alloc();
  }

 private:
  nn::Linear& linear_;
  nn::Delta* inner_;
};

TEST(TrainGraphsOfTraining, APassThatFailsBeginsAgainOnceWithoutTheMemoryOfRecordings) {
  if (!kernels::cuda::available()) GTEST_SKIP() << "this build or machine has no CUDA device";
  const model::TinyModel model(smallest_config());
  const Checkpoint checkpoint = Checkpoint::open(model.path());
  model::Decoder decoder(model::read_spec(checkpoint.config()), checkpoint, at::kFloat,
                         kernels::cuda::current_device());
  lora::Pool pool(decoder);
  lora::TrainGraphs graphs(decoder, pool);
  const PeftConfig config{.rank = 3, .target_modules = "all-linear"};
  Tenant tenant("a", Mode::kLora,
                pool.add(std::make_unique<lora::Adapter>(config, pool.linears(), 3)), 3,
                {decoder, pool});
  const Split split;
  Training training({decoder, pool, graphs, split},
                    [&](const std::string&) -> Tenant& { return tenant; });
  const Operation often = ForwardBackward{.tenant = "a", .sequences = {drawn(1, 5, 41)}};
  const Operation seldom = ForwardBackward{.tenant = "a", .sequences = {drawn(1, 6, 41)}};
  int64_t id = 0;
  const Stop nobody_stops = false;
  const auto run = [&](const Operation& operation) {
    BatchOutcome outcome;
    training.run_batch(std::vector<Work>{{++id, &operation, 0, 1}}, nobody_stops, outcome);
    if (!outcome.ended.empty() && !outcome.ended[0].error) training.commit(id);
    return outcome;
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run(often).ended.size(), 1u);
  EXPECT_EQ(graphs.num_replays(), 1);
  const uint64_t before = tenant.inspect(false).gradients;
  {
    const FailingDelta failing(*decoder.linears().at(0).linear);
    const BatchOutcome first = run(seldom), second = run(seldom);
    ASSERT_EQ(first.rewound.size(), 1u);
    EXPECT_TRUE(first.rewound[0].alone);
    ASSERT_EQ(second.ended.size(), 1u);
    EXPECT_THROW(std::rethrow_exception(second.ended[0].error), std::bad_alloc);
  }
  EXPECT_EQ(tenant.inspect(false).gradients, before);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run(often).ended.size(), 1u);
  EXPECT_EQ(graphs.num_replays(), 2) << "recorded anew";
}

}  // namespace
}  // namespace twinkle::engine
