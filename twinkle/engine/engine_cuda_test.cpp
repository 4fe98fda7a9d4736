// The whole engine on a device against the engine on the CPU: on a GPU in engine_test, skipped
// where there is none, and on the emulated device in cuda_emulation_test, whose memory the host
// cannot touch unseen.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include "twinkle/base/error_for_test.h"
#include "twinkle/engine/exactness/outcomes_for_test.h"
#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/model/tiny_families.h"

namespace twinkle::engine {
namespace {

// The results of a run, number by number, each with what it is.
struct Numbers {
  std::vector<std::pair<std::string, double>> all;

  void add(const std::string& name, double x) { all.emplace_back(name, x); }
  void add(const std::string& name, const std::vector<float>& values) {
    for (const float x : values) add(name, static_cast<double>(x));
  }
  void add(const std::string& name, const std::vector<std::vector<float>>& rows) {
    for (const auto& row : rows) add(name, row);
  }
  void add(const std::string& name, const ForwardResult& r) {
    add(name + " loss", r.loss);
    add(name + " logps", r.logps);
    add(name + " entropies", r.entropies);
    add(name + " logits", r.logits);
    add(name + " embeddings", r.embeddings);
  }
  void add(const std::string& name, const InspectResult& r) {
    for (const NamedTensor& t : r.tensors) add(name + " " + t.name, t.values);
  }
};

// Relative to the largest number of one name; counts that differ, too.
void expect_numbers_near(const Numbers& got, const Numbers& want, double tolerance) {
  ASSERT_EQ(got.all.size(), want.all.size());
  std::map<std::string, double> largest;
  for (const auto& [name, x] : want.all) largest[name] = std::max(largest[name], std::abs(x));
  int failures = 0;
  for (size_t i = 0; i < want.all.size() && failures < 5; ++i) {
    const auto& [name, x] = want.all[i];
    ASSERT_EQ(got.all[i].first, name);
    if (std::abs(got.all[i].second - x) <= tolerance * (1e-2 + largest[name])) continue;
    ADD_FAILURE() << name << " number " << i << ": " << got.all[i].second << " for " << x;
    ++failures;
  }
}

// By name, the root of the sum of squares.
std::map<std::string, double> norms_of(const Numbers& x, const Numbers& less) {
  std::map<std::string, double> squares;
  for (size_t i = 0; i < x.all.size(); ++i) {
    const double d = x.all[i].second - (i < less.all.size() ? less.all[i].second : 0);
    squares[x.all[i].first] += d * d;
  }
  for (auto& [name, square] : squares) square = std::sqrt(square);
  return squares;
}

// In bfloat16 a device may be as far from float32 as twice the CPU's bfloat16 is, by each name.
void expect_as_near_to(const Numbers& truth, const Numbers& got, const Numbers& cpu) {
  ASSERT_EQ(got.all.size(), truth.all.size());
  ASSERT_EQ(cpu.all.size(), truth.all.size());
  const auto size = norms_of(truth, {}), of_cpu = norms_of(cpu, truth);
  for (const auto& [name, error] : norms_of(got, truth)) {
    EXPECT_LE(error, 2 * of_cpu.at(name) + 1e-2 * (1e-2 + size.at(name)))
        << name << ", of " << size.at(name) << ", on the CPU " << of_cpu.at(name);
  }
}

class EngineOnDevice : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!kernels::cuda::available()) GTEST_SKIP() << "this build or machine has no CUDA device";
  }
  EngineOptions on(const std::string& device) const { return on(device, GetParam()); }
  EngineOptions on(const std::string& device, const std::string& precision) const {
    return {.model = {.path = model_.path(), .mixed_precision = precision, .device = device},
            .sampler = {.kv_tokens = 512}};
  }
  // That numbers of engines with these options are the device's and the CPU's.
  void expect_like_the_cpu(const std::function<Numbers(Engine&)>& numbers_of) const {
    Engine cpu(on("cpu")), device(on_device());
    const Numbers got = numbers_of(device), want = numbers_of(cpu);
    if (GetParam() == "no") return expect_numbers_near(got, want, 1e-4);
    Engine exact(on("cpu", "no"));
    expect_as_near_to(numbers_of(exact), got, want);
  }
  EngineOptions on_device() const {
    return on("cuda");  // or what stands for it in tests/cuda_emulation
  }
  double tolerance() const { return GetParam() == "no" ? 1e-4 : 4e-2; }

  const model::TinyModel model_{smallest_config()};
};

INSTANTIATE_TEST_SUITE_P(Precisions, EngineOnDevice, testing::Values("no", "bf16"));

constexpr const char* kDropped =
    R"({"r": 3, "lora_alpha": 9, "lora_dropout": 0.2, "target_modules": "all-linear"})";
constexpr const char* kPlain =
    R"({"r": 8, "lora_alpha": 8, "target_modules": ["q_proj", "up_proj"]})";

Example of(uint64_t seed, size_t num_tokens) { return drawn(seed, num_tokens, 41); }

void create_tenant(Engine& engine, const std::string& name, const char* config) {
  engine.run<Done>(Create{.tenant = name, .lora_json = config, .seed = 5});
}

// Gradients before a step, so that they are not zero where B is: a first step, then the rest.
void step_both(Engine& engine, Numbers& out) {
  const auto a = engine.run<StepResult>(
      Step{"a", "AdamW", R"({"lr": 0.02, "eps": 0.001})", /*max_grad_norm=*/0.5});
  const auto b = engine.run<StepResult>(Step{"b", "SGD", R"({"lr": 0.5, "momentum": 0.9})", 0.1,
                                             std::numeric_limits<double>::infinity()});
  out.add("norm a", a.grad_norm);
  out.add("norm b", b.grad_norm);
}

Numbers train_on_device(Engine& engine) {
  Numbers out;
  create_tenant(engine, "a", kDropped);
  create_tenant(engine, "b", kPlain);
  for (uint64_t i = 0; i < 2; ++i) {
    auto futures = engine.submit(std::vector<Operation>{
        ForwardBackward{.tenant = "a", .sequences = {of(i, 9), of(i + 10, 3)}},
        ForwardBackward{.tenant = "b", .sequences = {of(i + 20, 6)}, .temperature = 0.7}});
    ForwardBackward embedded{.tenant = "b", .sequences = {of(i, 5)}, .loss = "LinearLoss"};
    embedded.sequences[0].labels.clear();
    embedded.sequences[0].embedding_grad.assign(16, 0.5f);
    out.add("embedded", engine.run<ForwardResult>(embedded));
    embedded.sequences[0].embedding_grad.clear();
    embedded.sequences[0].logits_grad.assign(5 * 41, -0.01f);
    embedded.temperature = 0.7;
    out.add("through logits", engine.run<ForwardResult>(embedded));
    for (Future& f : futures) out.add("backward", std::get<ForwardResult>(f.get()));
    out.add("a", engine.run<InspectResult>(Inspect{"a", true}));
    out.add("b", engine.run<InspectResult>(Inspect{"b", true}));
    step_both(engine, out);
  }
  out.add("forward", engine.run<ForwardResult>(Forward{.tenant = "a",
                                                       .sequences = {of(3, 7)},
                                                       .entropy = true,
                                                       .logits = true,
                                                       .embedding = true}));
  out.add("base", engine.run<ForwardResult>(
                      Forward{.tenant = "a", .sequences = {of(3, 7)}, .disable_lora = true}));
  return out;
}

TEST_P(EngineOnDevice, TrainsManyTenantsAsTheCpuDoes) { expect_like_the_cpu(train_on_device); }

Numbers train_all(Engine& engine, const std::string& directory) {
  Numbers out;
  engine.run<Done>(Create{.tenant = "full", .seed = 5});
  const ForwardBackward work{.tenant = "full", .sequences = {of(1, 9), of(2, 4)}};
  out.add("backward", engine.run<ForwardResult>(work));
  out.add("first", engine.run<InspectResult>(Inspect{"full", true}));
  engine.run<StepResult>(Step{"full", "SGD", R"({"lr": 0.5, "momentum": 0.9})", 1.0});
  engine.run<ForwardResult>(work);
  engine.run<SaveResult>(Save{"full", directory, /*optimizer=*/true});
  engine.run<StepResult>(Step{"full", "SGD", R"({"lr": 0.5, "momentum": 0.9})"});
  out.add("second", engine.run<InspectResult>(Inspect{"full", true}));
  engine.run<LoadResult>(Load{"full", directory, /*optimizer=*/true});
  engine.run<StepResult>(Step{"full", "SGD", R"({"lr": 0.5, "momentum": 0.9})"});
  out.add("second", engine.run<InspectResult>(Inspect{"full", true}));
  engine.run<Done>(Delete{"full"});
  engine.run<Done>(Create{.tenant = "base", .frozen = true});
  out.add("base", engine.run<InspectResult>(Inspect{"base", true}));
  return out;
}

TEST_P(EngineOnDevice, TrainsAllWeightsSavesLoadsAndPutsTheBaseBackAsTheCpuDoes) {
  const ScratchDir scratch;
  int number = 0;
  expect_like_the_cpu([&](Engine& engine) {
    return train_all(engine, (scratch / std::to_string(number++)).string());
  });
}

Sample greedy() {
  return {.tenant = "a",
          .prompts = {{5, 9, 11, 3}, {5, 9, 11, 4, 17, 2, 30}},
          .params = {{.max_tokens = 5,
                      .temperature = 0,
                      .ignore_eos = true,
                      .top_logprobs = 2,
                      .prompt_logprobs = true,
                      .top_prompt_logprobs = 2,
                      .prompt_alt_tokens = 1,
                      .prompt_targets = {{1, 7}, {3, 9}}}}};
}

void add(Numbers& out, const SampleResult& result) {
  const auto add_top = [&](const std::vector<sampler::TopLogprobs>& tops) {
    for (const auto& top : tops) {
      for (const auto& t : top) out.add("top", static_cast<double>(t.logprob));
    }
  };
  for (const auto& prompt : result.prompts) {
    out.add("prompt", prompt.logprobs);
    add_top(prompt.top_logprobs);
    add_top({prompt.alt_tokens});
    out.add("targets", prompt.target_logprobs);
  }
  for (const auto& completions : result.completions) {
    for (const Completion& c : completions) {
      out.add("sampled", c.logprobs);
      add_top(c.top_logprobs);
    }
  }
}

// In bfloat16 two tokens may be equally likely: there the first step is compared alone.
Numbers sample_on_device(Engine& engine, bool all) {
  Numbers out;
  create_tenant(engine, "a", kDropped);
  engine.run<ForwardResult>(ForwardBackward{.tenant = "a", .sequences = {of(1, 9)}});
  engine.run<StepResult>(Step{"a", "AdamW", R"({"lr": 0.05, "eps": 0.001})"});
  Sample operation = greedy();
  if (!all) operation.params[0].max_tokens = 1;
  add(out, engine.run<SampleResult>(operation));
  return out;
}

TEST_P(EngineOnDevice, SamplesAsTheCpuDoes) {
  Engine cpu(on("cpu")), device(on_device());
  const bool all = GetParam() == "no";
  expect_numbers_near(sample_on_device(device, all), sample_on_device(cpu, all), tolerance());
}

// Features that llama lacks: biases, norms of heads and sandwiches, windows, interleaved and
// partial rope, fused and grouped projections.
class FamilyOnDevice : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Families, FamilyOnDevice,
                         testing::Values("qwen2", "qwen3", "mistral", "glm", "glm4", "chatglm",
                                         "internlm2", "internlm3", "phi3"),
                         [](const auto& info) { return info.param; });

JsonObject config_on_device(const std::string& family) {
  JsonObject c = smallest_config(family);
  if (family == "mistral") c["sliding_window"] = 4;
  if (family == "internlm3") model::set_fields(c, {{"bias", true}, {"qkv_bias", true}});
  if (family == "phi3") {  // some sequences are on one side of the line, some on the other
    const JsonArray near(4, 1.0), far(4, 3.0);
    c["original_max_position_embeddings"] = 8;
    c["rope_scaling"] =
        JsonObject{{"type", "longrope"}, {"short_factor", near}, {"long_factor", far}};
  }
  if (family != "chatglm") return c;
  const std::pair<const char*, const char*> fields[] = {
      {"padded_vocab_size", "vocab_size"},
      {"num_layers", "num_hidden_layers"},
      {"kv_channels", "head_dim"},
      {"ffn_hidden_size", "intermediate_size"},
      {"layernorm_epsilon", "rms_norm_eps"},
      {"seq_length", "max_position_embeddings"},
      {"multi_query_group_num", "num_key_value_heads"}};
  model::set_fields(c, {{"multi_query_attention", true}, {"add_qkv_bias", true}});
  for (const auto& [theirs, ours] : fields) c.emplace(theirs, Json(c.at(ours)));
  return c;
}

TEST_P(FamilyOnDevice, TrainsAndSamplesAsTheCpuDoes) {
  if (!kernels::cuda::available()) GTEST_SKIP() << "this build or machine has no CUDA device";
  const model::TinyModel model(config_on_device(GetParam()));
  const auto numbers = [&](const std::string& device) {
    Engine engine({.model = {.path = model.path(), .mixed_precision = "no", .device = device},
                   .sampler = {.kv_tokens = 512}});
    Numbers out = sample_on_device(engine, true);
    out.add("backward", engine.run<ForwardResult>(
                            ForwardBackward{.tenant = "a", .sequences = {of(2, 9), of(12, 3)}}));
    out.add("a", engine.run<InspectResult>(Inspect{"a", true}));
    return out;
  };
  expect_numbers_near(numbers("cuda"), numbers("cpu"), 1e-4);
}

// The log-probability of every generated token, by the trainer's forward over the whole text.
TEST_P(EngineOnDevice, ItsSamplersLogProbabilitiesAreItsTrainers) {
  Engine engine(on_device());
  create_tenant(engine, "a", kDropped);
  Sample operation = greedy();
  operation.params[0] = {.max_tokens = 6, .ignore_eos = true};
  const auto result = engine.run<SampleResult>(operation);
  for (size_t p = 0; p < operation.prompts.size(); ++p) {
    const Completion& c = result.completions[p][0];
    Example whole{.input_ids = operation.prompts[p]};
    whole.input_ids.insert(whole.input_ids.end(), c.tokens.begin(), c.tokens.end() - 1);
    whole.labels.assign(operation.prompts[p].size() - 1, -100);
    whole.labels.insert(whole.labels.end(), c.tokens.begin(), c.tokens.end());
    const auto scored = engine.run<ForwardResult>(Forward{.tenant = "a", .sequences = {whole}});
    for (size_t i = 0; i < c.tokens.size(); ++i) {
      EXPECT_NEAR(c.logprobs[i], scored.logps[0][operation.prompts[p].size() - 1 + i],
                  GetParam() == "no" ? 1e-5 : 2e-2);
    }
  }
}

TEST_P(EngineOnDevice, ATenantHasTheSameBitsAloneAndAmongOthers) {
  const auto state_of_a = [&](bool among) {
    Engine engine(on_device());
    create_tenant(engine, "a", kDropped);
    if (among) create_tenant(engine, "b", kPlain);
    std::vector<Operation> work;
    if (among) work.push_back(ForwardBackward{.tenant = "b", .sequences = {of(7, 5), of(8, 11)}});
    work.push_back(ForwardBackward{.tenant = "a", .sequences = {of(1, 9), of(2, 3)}});
    for (Future& f : engine.submit(work)) f.get();
    engine.run<StepResult>(Step{"a"});
    engine.run<ForwardResult>(ForwardBackward{.tenant = "a", .sequences = {of(4, 6)}});
    return state_of(engine, "a");
  };
  EXPECT_EQ(state_of_a(false), state_of_a(true));
}

TEST_P(EngineOnDevice, AParkedTenantComesBackWithItsBits) {
  const ScratchDir scratch;
  EngineOptions options = on_device();
  options.parking.resident_bytes = 1;
  options.parking.directory = scratch.path().string();
  Engine engine(options);
  create_tenant(engine, "a", kDropped);
  engine.run<ForwardResult>(ForwardBackward{.tenant = "a", .sequences = {of(1, 5)}});
  engine.run<StepResult>(Step{"a"});
  const State before = state_of(engine, "a");
  create_tenant(engine, "b", kPlain);
  EXPECT_EQ(engine.parking().num_parked, 1);
  EXPECT_EQ(state_of(engine, "a"), before);
}

TEST_P(EngineOnDevice, ASavedAdapterIsOneForTheCpu) {
  const ScratchDir scratch;
  const std::string directory = (scratch / "saved").string();
  Numbers scored[2];
  {
    Engine engine(on_device());
    create_tenant(engine, "a", kDropped);
    engine.run<ForwardResult>(ForwardBackward{.tenant = "a", .sequences = {of(1, 5)}});
    engine.run<StepResult>(Step{"a", "AdamW", R"({"lr": 0.05})"});
    engine.run<SaveResult>(Save{"a", directory, /*optimizer=*/true});
    scored[0].add("scored",
                  engine.run<ForwardResult>(Forward{.tenant = "a", .sequences = {of(3, 7)}}));
  }
  Engine engine(on("cpu"));
  create_tenant(engine, "a", kDropped);
  engine.run<LoadResult>(Load{"a", directory, /*optimizer=*/true});
  scored[1].add("scored",
                engine.run<ForwardResult>(Forward{.tenant = "a", .sequences = {of(3, 7)}}));
  expect_numbers_near(scored[0], scored[1], tolerance());
}

TEST(EngineDevice, OneThatIsNotHereIsNamedBeforeTheModelIsRead) {
  const model::TinyModel model(smallest_config());
  const auto error = [&](const std::string& device) {
    return error_of([&] { Engine({.model = {.path = model.path(), .device = device}}); });
  };
  for (const std::string name : {"gpu", "cuda:x", "cuda:-1", "cudax"})
    EXPECT_TRUE(error(name).starts_with("engine: device is '" + name + "', ")) << error(name);
  EXPECT_TRUE(error("cuda:99").starts_with("kernels: device is 'cuda:99', ")) << error("cuda:99");
}

}  // namespace
}  // namespace twinkle::engine
