#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"
#include "twinkle/io/safetensors.h"
#include "twinkle/lora/pool.h"
#include "twinkle/lora/saved_adapter.h"
#include "twinkle/model/family.h"
#include "twinkle/model/tiny_model.h"
#include "twinkle/nn/rows_for_test.h"

namespace twinkle::lora {
namespace {

class Pissa : public testing::Test {
 protected:
  Pissa()
      : decoder_(model::read_spec(model::tiny_config()), Checkpoint::open(directory_.path()),
                 at::kDouble) {}

  static PeftConfig config() {
    return {.rank = 3,
            .alpha = 5,
            .target_modules = std::vector<std::string>{"q_proj", "down_proj"},
            .init = "pissa"};
  }

  std::unique_ptr<Adapter> adapter() {
    return std::make_unique<Adapter>(config(), decoder_.linears(), 1);
  }

  static void train(Adapter& adapter) {
    for (const size_t i : adapter.learned()) adapter.value(i) += at::randn_like(adapter.value(i));
    adapter.weights_changed();
  }

  SavedAdapter saved(const Adapter& adapter, bool with_own = true) {
    write_peft(scratch_.path(), config_of_file(adapter.config()), adapter.entries(),
               with_own ? &adapter.config() : nullptr);
    return read_adapter(scratch_.path(), shapes_of(decoder_.linears()));
  }

  const nn::Linear& q() { return *decoder_.linears()[0].linear; }

  const model::TinyModel directory_;
  const ScratchDir scratch_;
  model::Decoder decoder_;
};

TEST_F(Pissa, BeginsAsTheBaseAndLearnsFromItsPrincipalPart) {
  at::manual_seed(4);
  Pool pool(decoder_);
  const AdapterRef pin = pool.add(adapter());
  const at::Tensor x = at::randn({7, 48}, at::kDouble), weight = q().weight;
  const nn::Rows rows = nn::rows_of({4, 3}, {0, -1}, {0, 0}, {1, 0});
  EXPECT_LT((nn::linear(x, q(), rows) - x.mm(weight.t())).abs().max().item<double>(), 1e-12);
  const Factors& f = *pool.at(0).at(0);
  const at::Tensor a0 = f.f.a.clone(), b0 = f.f.b.clone();
  train(pool.at(0));
  EXPECT_TRUE(at::equal(f.more[kInitialA], a0) && at::equal(f.more[kInitialB], b0));
  const at::Tensor a = f.f.a.clone().requires_grad_(), b = f.f.b.clone().requires_grad_();
  const at::Tensor in = x.clone().requires_grad_(), given = x.clone().requires_grad_();
  const at::Tensor learned = weight + 5.0 / 3 * (b.mm(a) - b0.mm(a0));
  const at::Tensor want =
      at::cat({in.narrow(0, 0, 4).mm(learned.t()), in.narrow(0, 4, 3).mm(weight.t())});
  const at::Tensor slope = at::randn_like(want), got = nn::linear(given, q(), rows);
  (want * slope).sum().backward();
  (got * slope).sum().backward();
  const auto apart = [](const at::Tensor& x, const at::Tensor& y) {
    return (x - y).abs().max().item<double>();
  };
  EXPECT_LT(apart(got, want), 1e-11);
  EXPECT_LT(apart(given.grad(), in.grad()), 1e-11);
  EXPECT_LT(apart(f.grads[0], a.grad()), 1e-10);
  EXPECT_LT(apart(f.grads[1], b.grad()), 1e-10);
  EXPECT_FALSE(f.grads[2].defined() || f.grads[3].defined());
}

TEST_F(Pissa, CountsWhatLearnsAndTheBytesOfAll) {
  const auto made = adapter();
  PeftConfig plain = config();
  plain.init.clear();
  const Adapter other(plain, decoder_.linears(), 1);
  EXPECT_EQ(made->num_parameters(), other.num_parameters());
  EXPECT_EQ(made->num_bytes(), 2 * other.num_bytes());
  EXPECT_EQ(made->learned().size() * 2, made->held().size());
  EXPECT_EQ(made->name(2), "model.layers.0.self_attn.q_proj.initial_A.weight");
}

TEST_F(Pissa, IsSavedAsALoraOfTwiceTheRankAndComesBackAsItWas) {
  at::manual_seed(5);
  auto made = adapter();
  for (const size_t i : made->held()) made->value(i) = made->value(i).to(at::kFloat);
  train(*made);
  const SavedAdapter back = saved(*made);
  EXPECT_EQ(back.config.init, "pissa");
  Adapter loaded(back.config, decoder_.linears(), std::nullopt);
  loaded.load(back);
  for (const size_t i : made->held())
    EXPECT_TRUE(at::equal(loaded.value(i).to(at::kFloat), made->value(i))) << made->name(i);

  const SavedAdapter plain = saved(*made, false);
  EXPECT_EQ(plain.config.rank, 6);
  EXPECT_EQ(plain.config.alpha, 10);
  const Factors& f = made->factors()[0];
  EXPECT_TRUE(at::allclose(plain.modules[0].b.mm(plain.modules[0].a),
                           f.f.b.mm(f.f.a) - f.more[kInitialB].mm(f.more[kInitialA]), 1e-4, 1e-4));
  EXPECT_EQ(error_of([&] { made->check(plain); }),
            "lora: the saved adapter has A and B only, this one has init_lora_weights 'pissa': "
            "create it from the saved one's directory");
}

TEST_F(Pissa, RefusesDropoutAndReadsNoFileWhoseBaseHasChanged) {
  PeftConfig drops = config();
  drops.dropout = 0.1;
  EXPECT_EQ(error_of([&] { Adapter(drops, decoder_.linears(), 1); }),
            "lora: with init_lora_weights 'pissa' lora_dropout is 0.1, and what it adds to A and B "
            "has none: set it to 0");
  write_text(scratch_ / "adapter_config.json",
             R"({"peft_type": "LORA", "r": 2, "target_modules": ["q"],
                 "init_lora_weights": "pissa"})");
  EXPECT_EQ(error_of([&] { read_peft_config(scratch_.path()); }),
            "io: " + (scratch_ / "adapter_config.json").string() +
                ": field 'init_lora_weights' is \"pissa\": the adapter works on weights that are "
                "not the base's any more; save it with peft's "
                "path_initial_model_for_weight_conversion, which makes a LoRA of it");
}

}  // namespace
}  // namespace twinkle::lora
