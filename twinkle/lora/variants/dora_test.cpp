#include "twinkle/lora/variants/dora.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"
#include "twinkle/lora/pool.h"
#include "twinkle/lora/saved_adapter.h"
#include "twinkle/model/family.h"
#include "twinkle/model/tiny_model.h"
#include "twinkle/nn/rows_for_test.h"

namespace twinkle::lora {
namespace {

double largest_difference(const at::Tensor& x, const at::Tensor& y) {
  return (x - y).abs().max().item<double>();
}

class DoraTest : public testing::TestWithParam<at::ScalarType> {
 protected:
  DoraTest()
      : decoder_(model::read_spec(model::tiny_config()), Checkpoint::open(directory_.path()),
                 GetParam()) {
    at::manual_seed(6);
  }

  static PeftConfig config() {
    return {.rank = 3,
            .alpha = 5,
            .target_modules = std::vector<std::string>{"q_proj", "down_proj"},
            .use_dora = true};
  }

  std::unique_ptr<Adapter> adapter(PeftConfig of = config()) {
    auto out = std::make_unique<Adapter>(of, decoder_.linears(), 1);
    for (const size_t i : out->learned()) {
      at::Tensor& value = out->value(i);
      value += 0.3 * at::randn_like(value);
    }
    out->weights_changed();
    return out;
  }

  nn::Linear& q() { return *decoder_.linears()[0].linear; }
  at::Tensor input(int64_t tokens) { return at::randn({tokens, 48}, decoder_.dtype()); }

  const model::TinyModel directory_;
  const ScratchDir scratch_;
  model::Decoder decoder_;
};

class DoraInDouble : public DoraTest {};

TEST_P(DoraInDouble, HasTheFormulasValuesAndGradientsWithTheNormDetached) {
  q().bias = at::randn({q().weight.size(0)}, at::kDouble);
  Pool pool(decoder_);
  const AdapterRef pin = pool.add(adapter());
  const Factors& f = *pool.at(0).at(0);
  const at::Tensor x = input(9), weight = q().weight;
  const nn::Rows rows = nn::rows_of({4, 2, 3}, {0, -1, 0}, {0, 0, 0}, {1, 0, 0});
  const at::Tensor a = f.f.a.clone().requires_grad_(), b = f.f.b.clone().requires_grad_(),
                   m = f.more[kMagnitude].clone().requires_grad_(), in = x.clone().requires_grad_(),
                   given = x.clone().requires_grad_();
  const auto dense = [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& m) {
    const at::Tensor sum = weight + 5.0 / 3 * b.mm(a);
    return sum * (m / sum.detach().square().sum(1).sqrt()).unsqueeze(1);
  };
  const at::Tensor want =
      at::cat({in.narrow(0, 0, 4).mm(dense(a, b, m).t()), in.narrow(0, 4, 2).mm(weight.t()),
               in.narrow(0, 6, 3).mm(dense(a, b, m).detach().t())}) +
      q().bias;
  const at::Tensor slope = at::randn_like(want), got = nn::linear(given, q(), rows);
  (want * slope).sum().backward();
  (got * slope).sum().backward();
  EXPECT_LT(largest_difference(got, want), 1e-11);
  EXPECT_LT(largest_difference(given.grad(), in.grad()), 1e-11);
  EXPECT_LT(largest_difference(f.grads[0], a.grad()), 1e-10);
  EXPECT_LT(largest_difference(f.grads[1], b.grad()), 1e-10);
  EXPECT_LT(largest_difference(f.grads[2], m.grad()), 1e-10);
}

TEST_P(DoraInDouble, BeginsAsTheBaseAndFollowsItsWeights) {
  Pool pool(decoder_);
  const AdapterRef pin = pool.add(std::make_unique<Adapter>(config(), decoder_.linears(), 1));
  const at::Tensor x = input(5);
  const nn::Rows rows = nn::rows_of({5}, {0}, {0}, {0});
  EXPECT_LT(largest_difference(nn::linear(x, q(), rows), x.mm(q().weight.t())), 1e-12);
  const at::Tensor before = nn::linear(x, q(), rows);
  q().weight.mul_(2);
  pool.base_changed();
  EXPECT_LT(largest_difference(nn::linear(x, q(), rows), before), 1e-12) << "the magnitude stays";
}

INSTANTIATE_TEST_SUITE_P(Double, DoraInDouble, testing::Values(at::kDouble));

// Magnitudes of one tenant, plain factors of another, and a sequence of the base.
TEST_P(DoraTest, SequencesHaveTheSameBitsAloneAndAmongOthers) {
  Pool pool(decoder_);
  PeftConfig plain = config();
  plain.use_dora = false;
  const AdapterRef pin0 = pool.add(adapter()), pin1 = pool.add(adapter(plain));
  const at::Tensor x = input(40), slope = at::randn({40, q().weight.size(0)}, decoder_.dtype());
  struct Outcome {
    at::Tensor y, dx, a, b, m;
  };
  const auto run = [&](int64_t begin, int64_t end, const nn::Rows& rows) {
    pool.at(0).zero_grads();
    const at::Tensor in = x.slice(0, begin, end).clone().requires_grad_();
    const at::Tensor y = nn::linear(in, q(), rows);
    (y * slope.slice(0, begin, end)).sum().backward();
    const Factors& f = *pool.at(0).at(0);
    return Outcome{y.detach(), in.grad(), f.grads[0], f.grads[1], f.grads[2]};
  };
  const Outcome all = run(0, 40, nn::rows_of({11, 19, 10}, {1, 0, -1}, {0, 0, 0}, {1, 1, 0}));
  const Outcome alone = run(11, 30, nn::rows_of({19}, {0}, {0}, {1}));
  EXPECT_TRUE(at::equal(all.y.slice(0, 11, 30), alone.y));
  EXPECT_TRUE(at::equal(all.dx.slice(0, 11, 30), alone.dx));
  EXPECT_TRUE(at::equal(all.a, alone.a) && at::equal(all.b, alone.b) && at::equal(all.m, alone.m));
  const Outcome theirs = run(0, 11, nn::rows_of({11}, {1}, {0}, {1}));
  EXPECT_TRUE(at::equal(all.y.slice(0, 0, 11), theirs.y));
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(nn::linear(x.slice(0, 11, 12), q(), nn::rows_of({1}, {0}, {0}, {0})),
                        alone.y.slice(0, 0, 1)))
      << "as when sampling";
}

TEST_P(DoraTest, TheBytesKeptForBackwardAreCountedWithoutRunning) {
  Pool pool(decoder_);
  const AdapterRef pin = pool.add(adapter());
  const nn::Rows rows = nn::rows_of({4, 2, 3}, {0, -1, 0}, {0, 0, 0}, {1, 0, 1});
  at::Tensor y = at::zeros({9, q().weight.size(0)}, decoder_.dtype());
  size_t bytes = 0;
  for (const at::Tensor& t : q().delta->forward(input(9), rows, y)) bytes += t.nbytes();
  EXPECT_EQ(q().delta->saved_bytes(rows), static_cast<int64_t>(bytes));
  EXPECT_FALSE(pool.at(0).at(0)->grads[2].defined());
}

TEST_P(DoraTest, IsSavedAsPeftsTensorsAndComesBack) {
  const auto made = adapter();
  EXPECT_EQ(made->name(2), "model.layers.0.self_attn.q_proj.lora_magnitude_vector");
  EXPECT_EQ(made->learned(), made->held());
  write_peft(scratch_.path(), made->config(), made->entries());
  const SavedAdapter back = read_adapter(scratch_.path(), shapes_of(decoder_.linears()));
  Adapter loaded(back.config, decoder_.linears(), std::nullopt);
  loaded.load(back);
  for (const size_t i : made->held())
    EXPECT_TRUE(at::equal(loaded.value(i), made->value(i))) << made->name(i);
  const PeftAdapter file = read_peft(scratch_.path());
  ASSERT_TRUE(file.entries[0].magnitude);
  EXPECT_EQ(file.entries[0].magnitude->name,
            "base_model.model." + file.entries[0].module + ".lora_magnitude_vector");
  PeftConfig plain = config();
  plain.use_dora = false;
  EXPECT_EQ(error_of([&] { adapter(plain)->check(back); }),
            "lora: the saved adapter has use_dora true, this one has A and B only: create it from "
            "the saved one's directory");
}

TEST_P(DoraTest, RefusesDropoutTheHeadAndPissa) {
  const auto error = [&](auto change) {
    PeftConfig other = config();
    change(other);
    return error_of([&] { adapter(other); });
  };
  EXPECT_EQ(error([](PeftConfig& c) { c.dropout = 0.5; }),
            "lora: with use_dora true lora_dropout is 0.5, and what it adds to A and B has none: "
            "set it to 0");
  EXPECT_EQ(
      error([](PeftConfig& c) { c.target_modules = std::vector<std::string>{"lm_head"}; }),
      "lora: with use_dora true lm_head is targeted, whose rows are not scaled here: leave it "
      "out of target_modules");
  EXPECT_EQ(error([](PeftConfig& c) { c.init = "pissa"; }),
            "lora: with init_lora_weights 'pissa' use_dora is true, and the two are not there "
            "together: take one of them");
}

INSTANTIATE_TEST_SUITE_P(Types, DoraTest, testing::Values(at::kFloat, at::kBFloat16));

}  // namespace
}  // namespace twinkle::lora
