#include "twinkle/optim/optimizer.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <limits>

#include "twinkle/base/error_for_test.h"

namespace twinkle::optim {
namespace {

struct Kind {
  const char* name;
  const char* options;
};

constexpr Kind kKinds[] = {{"AdamW", R"({"lr":0.01})"},
                           {"Adam", R"({"lr":0.01})"},
                           {"SGD", R"({"lr":0.01,"momentum":0.9,"dampening":0.3})"},
                           {"SGD", R"({"lr":0.01})"}};

std::unique_ptr<Optimizer> make_named(const Kind& kind) {
  return optim::make(kind.name, parse_json(kind.options, "options"));
}

// Parameters of odd sizes, one larger than a task's chunk; the gradients are a function of `seed`.
std::vector<Param> example() {
  at::manual_seed(9);
  return {{"a", at::randn({40001}), at::Tensor()}, {"b", at::randn({3, 7}), at::Tensor(), false}};
}

void set_gradients(std::vector<Param>& params, uint64_t seed) {
  at::manual_seed(seed);
  for (Param& param : params) param.grad = at::randn(param.value.sizes());
}

void train(Optimizer& optimizer, std::vector<Param>& params, int begin, int end) {
  for (int step = begin; step < end; ++step) {
    set_gradients(params, static_cast<uint64_t>(step));
    optimizer.step(params, optimizer.lr() / (1 + step), 0.5);
  }
}

TEST(Optimizer, StepsHaveTheSameBitsOnOneThreadAndTwo) {
  const int before = at::get_num_threads();
  for (const Kind& kind : kKinds) {
    std::vector<Param> results[2];
    for (const int threads : {1, 2}) {
      at::set_num_threads(threads);
      results[threads - 1] = example();
      train(*make_named(kind), results[threads - 1], 0, 5);
    }
    for (size_t i = 0; i < 2; ++i)
      EXPECT_TRUE(at::equal(results[0][i].value, results[1][i].value)) << kind.name;
  }
  at::set_num_threads(before);
}

TEST(Optimizer, AParameterAloneGetsTheBitsThatItGetsAmongOthers) {
  for (const Kind& kind : kKinds) {
    std::vector<Param> together = example();
    std::vector<Param> apart = example();
    const auto one = make_named(kind), other = make_named(kind);
    for (uint64_t step = 0; step < 3; ++step) {
      set_gradients(together, step);
      set_gradients(apart, step);
      one->step(together, 0.01);
      for (const Param& param : apart) other->step({&param, 1}, 0.01);
    }
    for (size_t i = 0; i < 2; ++i)
      EXPECT_TRUE(at::equal(together[i].value, apart[i].value)) << kind.name;
  }
}

TEST(Optimizer, AnElementsBitsDoNotDependOnItsPlace) {
  for (const Kind& kind : kKinds) {
    Param param{"p", at::full({21}, 0.7F), at::full({21}, 0.3F)};
    const auto optimizer = make_named(kind);
    for (int step = 0; step < 3; ++step) optimizer->step({&param, 1}, 0.01, 0.37);
    EXPECT_TRUE(at::equal(param.value, param.value[0].expand({21}).contiguous())) << kind.name;
  }
}

TEST(Optimizer, ARunCutInTwoEqualsOneThatWasNotBitForBit) {
  for (const Kind& kind : kKinds) {
    std::vector<Param> whole = example();
    const auto uncut = make_named(kind);
    train(*uncut, whole, 0, 8);

    std::vector<Param> cut = example();
    State saved;
    {
      const auto first = make_named(kind);
      train(*first, cut, 0, 4);
      saved = first->state();
      saved.fields = parse_json(pretty(saved.fields), "state");
      for (auto& [name, tensor] : saved.tensors) tensor = tensor.clone();
    }
    const auto second = make_named(kind);
    second->load(saved);
    EXPECT_EQ(second->num_steps(), 4);
    train(*second, cut, 4, 8);
    for (size_t i = 0; i < 2; ++i)
      EXPECT_TRUE(at::equal(whole[i].value, cut[i].value)) << kind.name;
    ASSERT_EQ(uncut->state().tensors.size(), second->state().tensors.size());
    for (size_t i = 0; i < saved.tensors.size(); ++i)
      EXPECT_TRUE(at::equal(uncut->state().tensors[i].second, second->state().tensors[i].second));
  }
}

TEST(Optimizer, StateNamesTheParameterAndTheBuffer) {
  const auto optimizer = make_named(kKinds[0]);
  std::vector<Param> params = example();
  train(*optimizer, params, 0, 2);
  const State state = optimizer->state();
  EXPECT_EQ(boost::json::serialize(state.fields), R"({"optimizer":"AdamW","steps":{"a":2,"b":2}})");
  ASSERT_EQ(state.tensors.size(), 4U);
  EXPECT_EQ(state.tensors[0].first, "a.exp_avg");
  EXPECT_EQ(state.tensors[3].first, "b.exp_avg_sq");
}

TEST(Optimizer, AParameterWithoutGradientIsLeftAlone) {
  const auto optimizer = make_named(kKinds[0]);
  std::vector<Param> params = example();
  params[1].grad = at::ones({3, 7});
  const at::Tensor before = params[0].value.clone();
  optimizer->step(params, 0.1);
  EXPECT_TRUE(at::equal(params[0].value, before));
  EXPECT_EQ(optimizer->state().tensors.size(), 2U);
}

TEST(Optimizer, NewOptionsKeepTheState) {
  const auto optimizer = make_named(kKinds[0]);
  std::vector<Param> params = example();
  train(*optimizer, params, 0, 2);
  optimizer->configure(JsonObject{{"lr", 0.5}});
  EXPECT_EQ(optimizer->lr(), 0.5);
  EXPECT_EQ(optimizer->num_steps(), 2);
  EXPECT_THROW(optimizer->configure(JsonObject{{"lr", 0.7}, {"eps", -1}}), Error);
  EXPECT_EQ(optimizer->lr(), 0.5);
}

// With the decay, which "decays" alone has, 1e37 * 100 is too much.
TEST(Optimizer, AStepThatOneParameterCannotTakeChangesNone) {
  const auto optimizer = optim::make("AdamW", JsonObject{{"weight_decay", 100}});
  std::vector<Param> params{{"plain", at::ones({2}), at::ones({2}), false},
                            {"decays", at::ones({2}), at::ones({2})}};
  EXPECT_EQ(invalid_of([&] { optimizer->step(params, 1e37); }),
            "optim: lr * weight_decay of AdamW is 1e+39, it must be finite in float32, at most "
            "3.40282e+38");
  for (const Param& p : params) EXPECT_TRUE(at::equal(p.value, at::ones({2}))) << p.name;
  EXPECT_EQ(optimizer->num_steps(), 0);
}

TEST(Optimizer, MomentumSwitchedOnLaterStartsWithTheGradient) {
  const auto optimizer = make_named(kKinds[3]);
  Param param{"p", at::zeros({4}), at::ones({4})};
  optimizer->configure(JsonObject{{"weight_decay", 0}});
  optimizer->step({&param, 1}, 1.0);
  optimizer->configure(JsonObject{{"weight_decay", 0}, {"momentum", 0.5}, {"dampening", 0.5}});
  optimizer->step({&param, 1}, 1.0);
  EXPECT_TRUE(at::equal(param.value, at::full({4}, -2.0F)));
  optimizer->configure(JsonObject{{"weight_decay", 0}});
  EXPECT_TRUE(optimizer->state().tensors.empty());
}

// A refused step: the text is as expected, and neither values nor state change.
void expect_refused(const std::vector<Param>& bad, double lr, double scale, const char* text) {
  const auto optimizer = make_named(kKinds[0]);
  std::vector<Param> good = {{"good", at::ones({2}), at::ones({2})}};
  optimizer->step(good, 0.1);
  const at::Tensor value = good[0].value.clone();
  const at::Tensor mean = optimizer->state().tensors[0].second.clone();
  std::vector<Param> params = good;
  params.insert(params.end(), bad.begin(), bad.end());
  EXPECT_EQ(invalid_of([&] { optimizer->step(params, lr, scale); }), text);
  EXPECT_TRUE(at::equal(good[0].value, value));
  EXPECT_TRUE(at::equal(optimizer->state().tensors[0].second, mean));
  EXPECT_EQ(optimizer->state().tensors.size(), 2U);
  EXPECT_EQ(optimizer->num_steps(), 1);
}

TEST(Optimizer, ARefusedStepChangesNothing) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_refused({}, -1, 1, "optim: lr is -1, it must be at least 0 and finite");
  expect_refused({}, nan, 1, "optim: lr is nan, it must be at least 0 and finite");
  expect_refused({}, 1, nan, "optim: grad_scale is nan, it must be finite");
  expect_refused({}, 1e39, 1,
                 "optim: lr of AdamW is 1e+39, it must be finite in float32, at most 3.40282e+38");
  expect_refused({}, 1, 1e39,
                 "optim: grad_scale of AdamW is 1e+39, it must be finite in float32, at most "
                 "3.40282e+38");
  expect_refused({{"h", at::ones({2}, at::kBFloat16), at::ones({2})}}, 1, 1,
                 "optim: value of h is CPUBFloat16Type with shape [2], it must be contiguous "
                 "float32 on the CPU");
  expect_refused({{"h", at::Tensor(), at::ones({2})}}, 1, 1,
                 "optim: value of h is missing with shape [], it must be contiguous float32 on the "
                 "CPU");
  expect_refused({{"h", at::ones({2, 3}).t(), at::ones({3, 2})}}, 1, 1,
                 "optim: value of h is CPUFloatType with strides [1, 3], it must be contiguous "
                 "float32 on the CPU");
  expect_refused({{"h", at::ones({2}), at::ones({2}, at::kDouble)}}, 1, 1,
                 "optim: gradient of h is CPUDoubleType with shape [2], it must be contiguous "
                 "float32 on the CPU");
  expect_refused({{"h", at::ones({2}), at::ones({3})}}, 1, 1,
                 "optim: gradient of h has shape [3], the parameter has [2]");
  expect_refused({{"good", at::ones({2}), at::ones({2})}}, 1, 1,
                 "optim: two parameters are named good");
}

TEST(Optimizer, AStepThatLeavesTheFiniteNumbersIsRefusedAndChangesNothing) {
  expect_refused({{"h", at::full({2}, 3e38F), at::full({2}, -1.0F)}}, 2e37, 1,
                 "optim: this step of AdamW with lr 2e+37 would leave NaN or infinity in h or in "
                 "its state; nothing was changed: lower the lr, or clip the gradients");
  Param param{"p", at::ones({40001}), at::full({40001}, 3e38F)};
  const auto sgd = optim::make("SGD", JsonObject{{"momentum", 0.5}});
  const std::string refusal = invalid_of([&] { sgd->step({&param, 1}, 1e30); });
  EXPECT_NE(refusal.find("would leave NaN or infinity in p"), refusal.npos) << refusal;
  EXPECT_TRUE(at::equal(param.value, at::ones({40001})));
  EXPECT_EQ(sgd->num_steps(), 0);
}

// Norms of ordinary size: the largest gradient shows it.
TEST(Optimizer, TryingAStepFirstChangesNoBit) {
  for (const Kind& kind : kKinds) {
    std::vector<Param> tried = example(), untried = example();
    const auto one = make_named(kind), other = make_named(kind);
    for (uint64_t step = 0; step < 3; ++step) {
      set_gradients(tried, step);
      set_gradients(untried, step);
      one->step(tried, 0.01, 0.5);
      other->step(untried, 0.01, 0.5, 10);
    }
    for (size_t i = 0; i < 2; ++i)
      EXPECT_TRUE(at::equal(tried[i].value, untried[i].value)) << kind.name;
  }
}

// On a device the table of a launch may find no memory.
TEST(Optimizer, AnUpdateThatThrowsIsNoStep) {
  class Failing : public Optimizer {
   public:
    std::string_view name() const override { return "Failing"; }
    std::vector<std::string> buffers() const override { return {"sum"}; }
    void configure(const Json&) override {}

   protected:
    void check_terms(const Terms&) const override {}
    bool is_ordinary(const Terms&, double) const override { return true; }
    void update(const Run&) const override { throw std::bad_alloc(); }
    void update(std::span<const Whole>) const override { throw std::bad_alloc(); }
  } failing;
  const Param param{"p", at::ones({2}), at::ones({2})};
  EXPECT_THROW(failing.step({&param, 1}, 0.1), std::bad_alloc);
  EXPECT_EQ(failing.num_steps(), 0);
  EXPECT_TRUE(failing.state().tensors.empty());
}

TEST(Optimizer, StateOfAnotherShapeIsRefusedAtTheStep) {
  const auto optimizer = make_named(kKinds[0]);
  const Param before{"p", at::ones({2}), at::ones({2})}, after{"p", at::ones({3}), at::ones({3})};
  optimizer->step({&before, 1}, 0.1);
  EXPECT_EQ(invalid_of([&] { optimizer->step({&after, 1}, 0.1); }),
            "optim: state of p has shape [2], the parameter has [3]");
}

TEST(Optimizer, ARefusedStateChangesNothing) {
  const auto optimizer = make_named(kKinds[0]);
  std::vector<Param> params = example();
  train(*optimizer, params, 0, 1);
  State state = optimizer->state();
  const auto refused = [&](const State& bad) {
    const std::string text = invalid_of([&] { optimizer->load(bad); });
    EXPECT_EQ(optimizer->num_steps(), 1);
    EXPECT_EQ(optimizer->state().tensors.size(), 4U);
    return text;
  };
  State bad = state;
  bad.fields.get_object()["optimizer"] = "SGD";
  EXPECT_EQ(refused(bad),
            "optim: the state is of SGD, this optimizer is AdamW, load it into a SGD");
  bad = state;
  bad.fields.get_object().erase("steps");
  EXPECT_EQ(refused(bad), "optim: the state has no field 'steps' with the steps of each parameter");
  bad = state;
  bad.fields.get_object()["steps"].get_object()["a"] = 0;
  EXPECT_EQ(refused(bad),
            "optim: the state's steps of a is 0, it must be from 1 to 9007199254740992");
  bad = state;
  bad.tensors.pop_back();
  EXPECT_EQ(refused(bad), "optim: the state has no tensor b.exp_avg_sq");
  bad = state;
  bad.tensors.emplace_back("c.exp_avg", at::ones({1}));
  EXPECT_EQ(refused(bad), "optim: the state's tensor c.exp_avg belongs to no parameter of 'steps'");
  bad = state;
  bad.tensors[1].second = bad.tensors[1].second.clone();
  bad.tensors[1].second[7] = -1e-12F;
  EXPECT_EQ(refused(bad),
            "optim: the state's a.exp_avg_sq holds -1e-12, it must be finite and at least 0");
  bad.tensors[1].second[7] = std::nan("");
  EXPECT_EQ(refused(bad),
            "optim: the state's a.exp_avg_sq holds nan, it must be finite and at least 0");
  bad = state;
  bad.fields.get_object()["steps"].get_object()["a"] = int64_t{1} << 62;
  EXPECT_EQ(refused(bad),
            "optim: the state's steps of a is 4611686018427387904, it must be from 1 to "
            "9007199254740992");
  bad = state;
  bad.tensors[0].second = at::ones({2}, at::kHalf);
  EXPECT_EQ(refused(bad), "optim: the state's a.exp_avg is Half, it must be Float");
}

TEST(Optimizer, AnUnknownNameIsRefusedWithTheKnownOnes) {
  EXPECT_EQ(invalid_of([] { optim::make("Lamb"); }),
            "optim: unknown optimizer 'Lamb', known are AdamW, Adam, SGD, Muon, Lion");
}

}  // namespace
}  // namespace twinkle::optim
