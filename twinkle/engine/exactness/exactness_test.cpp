// A tenant alone, one operation at a time, against the same tenant among fifteen others.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <map>

#include "twinkle/engine/exactness/outcomes_for_test.h"
#include "twinkle/engine/shortage_for_test.h"

namespace twinkle::engine {
namespace {

constexpr int kSteps = 20;
constexpr size_t kTinyWidth = 48, kInWholeTiles = 64;  // for the tiny model, and for the other one

// The differences between tenants; drawn from its index.
struct Person {
  std::string name;
  uint64_t seed;
  std::string lora, optimizer, options, loss, loss_options;
  int micro_batches;
  double max_grad_norm;
  size_t width;         // width of the model
  bool through_logits;  // learns by gradients of all logits
};

Person person(uint64_t i, size_t width = kTinyWidth) {
  static const std::vector<std::string> targets{
      R"("all-linear")", R"(["q_proj", "v_proj"])", R"(["down_proj"])",
      R"(["gate_proj", "up_proj", "o_proj"])", R"(".*layers\\.1.*")"};
  static const std::vector<std::pair<std::string, std::string>> optimizers{
      {"AdamW", R"({"lr": 0.02, "weight_decay": 0.1})"},
      {"SGD", R"({"lr": 0.1, "momentum": 0.9})"},
      {"AdamW", R"({"lr": 0.005, "betas": [0.8, 0.95]})"}};
  static const std::vector<std::pair<std::string, std::string>> losses{
      {"CrossEntropyLoss", ""},
      {"LinearLoss", R"({"num_tokens": 7})"},
      {"CrossEntropyLoss", R"({"reduction": "mean"})"},
      {"CrossEntropyLoss", R"({"dft": true})"}};
  Person p{.name = "tenant " + std::to_string(i), .seed = key_of(5, i)};
  std::ostringstream lora;
  lora << R"({"r": )" << 1 + (i * 5) % 17 << R"(, "lora_alpha": )" << 4 + i
       << R"(, "target_modules": )" << targets[i % targets.size()] << R"(, "lora_dropout": )"
       << (i % 3 == 0 ? 0.1 : 0.0) << R"(, "use_rslora": )" << (i % 2 ? "true" : "false") << "}";
  p.lora = lora.str();
  std::tie(p.optimizer, p.options) = optimizers[i % optimizers.size()];
  std::tie(p.loss, p.loss_options) = losses[i % losses.size()];
  p.micro_batches = 1 + static_cast<int>(i % 3);
  p.max_grad_norm = i % 2 ? 0.5 : 0.0;
  p.width = width;
  p.through_logits = i % 8 == 5;  // this one has a LinearLoss
  return p;
}

Example sequence_of(const Person& p, uint64_t key) {
  Example s = drawn(key, 1 + key % 19);
  for (size_t t = 0; t + 1 < s.labels.size(); t += 4) s.labels[t] = -100;
  if (p.loss != "LinearLoss") return s;
  if (p.through_logits) {
    s.labels.clear();
    for (size_t k = 0; k < 131 * s.input_ids.size(); ++k)
      s.logits_grad.push_back(static_cast<float>(0.02 * uniform_at(key, k) - 0.01));
    return s;
  }
  for (size_t t = 0; t < s.labels.size(); ++t)
    s.extras["grad"].push_back(static_cast<float>(0.1 * uniform_at(key, t) - 0.08));
  s.extras["entropy_grad"].assign(s.labels.size(), -0.03f);
  if (key % 3 == 0) s.embedding_grad.assign(p.width, 0.2f);
  return s;
}

// Greedy, nucleus, penalties, stops: each a tenant's own.
Sample sampling(const Person& p, uint64_t key) {
  Sample op{.tenant = p.name, .prompts = {{3, 1, 4, 1, 5}, {2, 7}}};
  sampler::SamplingParams params{.max_tokens = 6,
                                 .seed = key,
                                 .temperature = key % 5 ? 0.8 : 0.0,
                                 .num_samples = 2,
                                 .top_logprobs = static_cast<int64_t>(key % 4),
                                 .prompt_logprobs = key % 2 == 0,
                                 .top_prompt_logprobs = static_cast<int64_t>(key % 3)};
  op.params.assign(2, params);
  op.params[0].stop = {"ab", "q"};
  op.params[0].stop_token_ids = {static_cast<int32_t>(key % 131), 17, 60};
  op.params[0].top_k = 40;
  op.params[1].top_p = 0.9;
  op.params[1].min_p = 0.002;
  op.params[1].repetition_penalty = 1.3;
  op.params[0].prompt_alt_tokens = static_cast<int64_t>(key % 3);
  op.params[0].prompt_targets = {{1, 4}, {4, static_cast<int32_t>(key % 131)}};
  op.params[1].prompt_logprobs_last_n = op.params[1].prompt_logprobs ? 1 : 0;
  return op;
}

// Twenty steps with what leads to them, and what shows the state that they leave.
std::deque<Operation> life_of(const Person& p) {
  std::deque<Operation> out{Create{.tenant = p.name, .lora_json = p.lora, .seed = p.seed}};
  for (int step = 0; step < kSteps; ++step) {
    const uint64_t key = key_of(p.seed, static_cast<uint64_t>(step));
    for (int micro = 0; micro < p.micro_batches; ++micro) {
      ForwardBackward op{.tenant = p.name, .loss = p.loss, .loss_options = p.loss_options};
      for (uint64_t s = 0; s < 1 + key % 4; ++s)
        op.sequences.push_back(sequence_of(p, key_of(key, 100 * static_cast<uint64_t>(micro) + s)));
      out.push_back(op);
    }
    out.push_back(Inspect{p.name});  // the gradients
    out.push_back(Step{.tenant = p.name,
                       .optimizer = p.optimizer,
                       .options = p.options,
                       .max_grad_norm = p.max_grad_norm});
    if (step % 5 != 4) continue;
    out.push_back(Forward{.tenant = p.name,
                          .sequences = {drawn(9, 30), drawn(10, 1)},
                          .entropy = step % 2 == 0,
                          .logits = step % 2 == 1,
                          .embedding = true});
    out.push_back(sampling(p, key));
  }
  out.push_back(Inspect{.tenant = p.name, .tensors = true});
  return out;
}

using Lines = std::vector<std::string>;

struct Setting {
  std::string model, precision;
  int threads;
  int64_t budget;
};

class Threads {
 public:
  explicit Threads(int threads) : before_(at::get_num_threads()) { at::set_num_threads(threads); }
  ~Threads() { at::set_num_threads(before_); }

 private:
  int before_;
};

EngineOptions setting_options(const Setting& run) {
  return {.model = {.path = run.model, .mixed_precision = run.precision},
          .scheduling = {.token_budget = run.budget},
          .sampler = {.kv_tokens = 2048}};
}

// Some of its operations meet each other in batches, drawn from its index and the budget.
Lines alone(const Setting& run, const Person& p) {
  const Threads threads(run.threads);
  Engine engine(setting_options(run), in_letters);
  Lines out;
  std::vector<Future> waiting;
  for (const Operation& op : life_of(p)) {
    waiting.push_back(engine.submit(op));
    if (key_of(p.seed, out.size() + static_cast<uint64_t>(run.budget)) % 2) continue;
    for (Future& future : waiting) out.push_back(outcome_of(future));
    waiting.clear();
  }
  for (Future& future : waiting) out.push_back(outcome_of(future));
  return out;
}

// All lives at once: who submits next, and how many operations at a time, is drawn from `seed`.
// `meddle` sees every future just after its submission.
using Meddle = std::function<void(Engine&, size_t who, const Future&)>;
std::vector<Lines> together(const Setting& run, std::vector<std::deque<Operation>> lives,
                            uint64_t seed, const Meddle& meddle = {}) {
  const Threads threads(run.threads);
  Engine engine(setting_options(run), in_letters);
  std::vector<Lines> out(lives.size());
  std::deque<std::pair<size_t, Future>> waiting;
  for (uint64_t turn = 0;; ++turn) {
    std::vector<size_t> left;
    for (size_t i = 0; i < lives.size(); ++i) {
      if (!lives[i].empty()) left.push_back(i);
    }
    // Some wait until all is quiet before they speak again, some do not.
    const size_t most = 1 + key_of(seed, turn) % 60;
    while (!waiting.empty() && (left.empty() || waiting.size() > most)) {
      out[waiting.front().first].push_back(outcome_of(waiting.front().second));
      waiting.pop_front();
    }
    if (left.empty()) return out;
    std::vector<Operation> batch;
    std::vector<size_t> owners;
    for (uint64_t k = 0; k < 1 + key_of(seed, turn + 1000000) % 5; ++k) {
      const size_t who = left[key_of(key_of(seed, turn), k) % left.size()];
      if (lives[who].empty()) continue;
      batch.push_back(std::move(lives[who].front()));
      owners.push_back(who);
      lives[who].pop_front();
    }
    auto futures = engine.submit(std::move(batch));
    for (size_t k = 0; k < futures.size(); ++k) {
      if (meddle && key_of(seed, turn + k) % 4 == 0) meddle(engine, owners[k], futures[k]);
      waiting.emplace_back(owners[k], std::move(futures[k]));
    }
  }
}

std::vector<std::deque<Operation>> sixteen(size_t width = kTinyWidth) {
  std::vector<std::deque<Operation>> out;
  for (uint64_t i = 0; i < 16; ++i) out.push_back(life_of(person(i, width)));
  return out;
}

class Exactness : public testing::TestWithParam<std::string> {};

// Sizes of whole tiles, which some of the processor's products take by a loop of their own.
JsonObject in_whole_tiles() {
  JsonObject c = model::tiny_config();
  c["hidden_size"] = static_cast<int64_t>(kInWholeTiles);
  c["head_dim"] = 16;
  c["intermediate_size"] = 96;
  return c;
}

TEST_P(Exactness, ATenantAmongFifteenOthersHasTheBitsThatItHasAlone) {
  const model::TinyModel model(in_whole_tiles());
  const auto crowd = together({model.path(), GetParam(), 2, 64}, sixteen(kInWholeTiles), 1);
  for (uint64_t i = 0; i < 16; ++i) {
    for (const int threads : {1, 2}) {
      // Everything at once, a sequence at a time, and between.
      const int64_t budget =
          std::vector<int64_t>{4096, 1, 29}[(i + static_cast<uint64_t>(threads)) % 3];
      EXPECT_EQ(alone({model.path(), GetParam(), threads, budget}, person(i, kInWholeTiles)),
                crowd[i])
          << i << " on " << threads << " threads, " << budget << " tokens at a time";
    }
  }
}

TEST_P(Exactness, TheOrderOfArrivalTheBudgetAndTheThreadsChangeNoBit) {
  const model::TinyModel model;
  const auto first = together({model.path(), GetParam(), 2, 300}, sixteen(), 2);
  EXPECT_EQ(together({model.path(), GetParam(), 1, 23}, sixteen(), 3), first);
}

// Makes every third forward_backward fail: a derivative or a weight that is not a number, a loss
// that does not exist, a step without gradients.
std::deque<Operation> with_faults(std::deque<Operation> life) {
  std::deque<Operation> out;
  int turn = 0;
  for (Operation& op : life) {
    auto* backward = std::get_if<ForwardBackward>(&op);
    if (backward && ++turn % 3 == 0) {
      ForwardBackward bad = *backward;
      for (Example& each : bad.sequences) each.logits_grad.clear();
      Example& s = bad.sequences[0];
      s.labels.assign(s.input_ids.size(), 5);
      if (turn % 2 == 0) bad.loss = "NoSuchLoss";
      if (bad.loss == "LinearLoss")
        s.extras["grad"].assign(s.input_ids.size(), std::nanf(""));
      else
        s.weights.assign(s.input_ids.size(), HUGE_VALF);
      out.push_back(bad);
    }
    const bool step = std::holds_alternative<Step>(op);
    out.push_back(op);
    if (step) out.push_back(op);
  }
  return out;
}

TEST_P(Exactness, NeighboursWhoseOperationsFailChangeNoBit) {
  const model::TinyModel model;
  const auto calm = together({model.path(), GetParam(), 2, 200}, sixteen(), 4);
  auto lives = sixteen();
  for (size_t i = 1; i < 16; i += 2) lives[i] = with_faults(lives[i]);
  const auto restless = together({model.path(), GetParam(), 2, 200}, lives, 5);
  int failed = 0;
  for (size_t i = 0; i < 16; ++i) {
    if (i % 2 == 0) {
      EXPECT_EQ(restless[i], calm[i]) << i;
      continue;
    }
    // Who failed goes on as if it had not.
    EXPECT_EQ(restless[i].back(), calm[i].back()) << i;
    for (const std::string& text : restless[i]) failed += text.starts_with("engine: ") ? 1 : 0;
  }
  EXPECT_GT(failed, 8 * kSteps);
}

// After a step that throws its weights to infinity, whatever the neighbour does is NaN, through
// every layer, beside the others.
std::deque<Operation> diverged(std::deque<Operation> life) {
  const auto& tenant = tenant_of(life.front());
  const std::vector<Operation> ruin{
      ForwardBackward{.tenant = tenant, .sequences = {drawn(1, 9)}},
      Step{.tenant = tenant, .optimizer = "SGD", .options = R"({"lr": 1e30, "weight_decay": 0})"}};
  for (int turn = 0; turn < 2; ++turn) life.insert(life.begin() + 1, ruin.begin(), ruin.end());
  return life;
}

TEST_P(Exactness, NeighboursWhoseWeightsDivergedChangeNoBit) {
  const model::TinyModel model;
  const auto calm = together({model.path(), GetParam(), 2, 200}, sixteen(), 6);
  auto lives = sixteen();
  for (size_t i = 1; i < 16; i += 2) lives[i] = diverged(lives[i]);
  const auto restless = together({model.path(), GetParam(), 2, 200}, lives, 7);
  int64_t refused = 0;
  for (size_t i = 0; i < 16; ++i) {
    if (i % 2 == 0) {
      EXPECT_EQ(restless[i], calm[i]) << i;
    } else {
      refused += std::ranges::count_if(
          restless[i], [](const std::string& outcome) { return outcome.starts_with("engine: "); });
    }
  }
  EXPECT_GT(refused, 8 * kSteps);
}

TEST_P(Exactness, NeighboursThatCancelChangeNoBit) {
  const model::TinyModel model;
  const Setting run{model.path(), GetParam(), 2, 200};
  const auto calm = together(run, sixteen(), 6);
  int cancelled = 0;
  const auto cancels = [&](Engine& engine, size_t who, const Future& future) {
    if (who % 2 == 1 && engine.cancel(future.id)) ++cancelled;
  };
  const auto restless = together(run, sixteen(), 7, cancels);
  for (size_t i = 0; i < 16; i += 2) EXPECT_EQ(restless[i], calm[i]) << i;
  EXPECT_GT(cancelled, 0);
}

// Memory for tensors ends for a while in the middle of what sixteen do at once: passes, optimizer
// steps, sampling. Whose operation fails submits it once more.
TEST_P(Exactness, NeighboursThatRunOutOfMemoryChangeNoBit) {
  const model::TinyModel model;
  const Setting run{model.path(), GetParam(), 2, 200};
  const auto calm = together(run, sixteen(), 8);
  const Threads threads(run.threads);
  Engine engine(setting_options(run), in_letters);
  auto lives = sixteen();
  std::vector<Lines> scarce(lives.size());
  std::map<size_t, int> failed;  // by kind of operation
  int spared = 0;                // who went on while another failed
  for (uint64_t turn = 0;; ++turn) {
    std::vector<Operation> batch;
    std::vector<size_t> owners;
    for (size_t i = 0; i < lives.size(); ++i) {
      if (lives[i].empty()) continue;
      batch.push_back(std::move(lives[i].front()));
      lives[i].pop_front();
      owners.push_back(i);
    }
    if (batch.empty()) break;
    std::vector<std::string> got;
    {
      const uint64_t key = key_of(12, turn);
      const Shortage shortage(key % (1 << key % 12), 1 << key / 12 % 11);
      for (Future& future : engine.submit(batch)) got.push_back(outcome_of(future));
    }
    const auto num_failed = std::ranges::count(got, "no memory");
    if (num_failed > 0) spared += static_cast<int>(std::ssize(got) - num_failed);
    for (size_t k = 0; k < batch.size(); ++k) {
      if (got[k] == "no memory") {
        ++failed[batch[k].index()];
        auto future = engine.submit(batch[k]);
        got[k] = outcome_of(future);
      }
      scarce[owners[k]].push_back(got[k]);
    }
  }
  for (size_t i = 0; i < lives.size(); ++i) EXPECT_EQ(scarce[i], calm[i]) << i;
  for (const Operation& kind :
       {Operation(ForwardBackward{}), Operation(Step{}), Operation(Sample{}), Operation(Forward{})})
    EXPECT_GT(failed[kind.index()], 0) << kind.index();
  EXPECT_GT(spared, 100);
}

INSTANTIATE_TEST_SUITE_P(Precisions, Exactness, testing::Values("bf16", "no"));

TEST(Exactness, FullTrainingHasTheSameBitsWithOneThreadAndTwoAndAnyBudget) {
  const model::TinyModel model(in_whole_tiles());
  for (const uint64_t who : {4, 5}) {
    for (const std::string precision : {"bf16", "no"}) {
      Person p = person(who, kInWholeTiles);
      p.lora.clear();
      const Lines first = alone({model.path(), precision, 1, 4096}, p);
      EXPECT_EQ(alone({model.path(), precision, 2, 16}, p), first) << precision << who;
    }
  }
}

// Sums over so many tokens are what a library cuts for its threads.
TEST(Exactness, FullTrainingOfLongSequencesHasTheSameBitsWithOneThreadAndTwo) {
  JsonObject config = smallest_config();
  config["max_position_embeddings"] = 4096;
  const model::TinyModel model(config);
  for (const std::string precision : {"bf16", "no"}) {
    std::vector<std::vector<std::string>> got;
    for (const int threads : {1, 2}) {
      const Threads set(threads);
      Engine engine(setting_options({model.path(), precision, threads, 4096}), in_letters);
      auto& out = got.emplace_back();
      for (const Operation& op : std::vector<Operation>{
               Create{.tenant = "full"},
               ForwardBackward{.tenant = "full", .sequences = {drawn(1, 2500, 41)}},
               Inspect{"full", true}, Step{.tenant = "full"}, Inspect{"full", true}}) {
        auto future = engine.submit(op);
        out.push_back(outcome_of(future));
      }
    }
    EXPECT_EQ(got[0], got[1]) << precision;
    EXPECT_TRUE(got[0][1].starts_with("forward")) << got[0][1];
  }
}

TEST(Exactness, AnEngineThatIsNotDeterministicTrainsToo) {
  const model::TinyModel model;
  Engine engine(
      {.model = {.path = model.path(), .mixed_precision = "bf16", .deterministic = false}},
      in_letters);
  engine.run<Done>(
      Create{.tenant = "a", .lora_json = R"({"r": 4, "target_modules": "all-linear"})"});
  const double first = engine.run<ForwardResult>(work("a")).loss;
  for (int i = 0; i < 4; ++i) {
    engine.run<StepResult>(Step{.tenant = "a", .options = R"({"lr": 0.02})"});
    engine.run<ForwardResult>(work("a"));
  }
  EXPECT_LT(engine.run<ForwardResult>(work("a")).loss, first);
  const auto sampled = engine.run<SampleResult>(
      Sample{.tenant = "a", .prompts = {{1, 2, 3}}, .params = {{.max_tokens = 4}}});
  EXPECT_EQ(sampled.completions[0][0].tokens.size(), 4u);
}

}  // namespace
}  // namespace twinkle::engine
