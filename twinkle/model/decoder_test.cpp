#include "twinkle/model/decoder.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "twinkle/base/random.h"
#include "twinkle/model/family.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::model {
namespace {

using Weights = std::map<std::string, at::Tensor>;
using Ids = std::vector<std::vector<int64_t>>;

Ids draw(std::initializer_list<int64_t> lengths) {
  Ids out;
  for (const int64_t n : lengths) {
    out.emplace_back();
    for (int64_t t = 0; t < n; ++t)
      out.back().push_back(
          static_cast<int64_t>(key_of(out.size() * 1000, static_cast<uint64_t>(t)) % 131));
  }
  return out;
}

Batch pack_ids(const Ids& ids, bool learn = true) {
  std::vector<int64_t> all, lengths;
  for (const auto& sequence : ids) {
    all.insert(all.end(), sequence.begin(), sequence.end());
    lengths.push_back(std::ssize(sequence));
  }
  Batch batch{.input_ids = at::tensor(all, at::kLong), .rows = nn::pack(lengths)};
  for (nn::Segment& segment : batch.rows.segments) segment.learn = learn;
  return batch;
}

// The textbook's decoder in plain ATen, one sequence at a time. T tokens.
class Textbook {
 public:
  Textbook(const DecoderSpec& spec, const Weights& weights) : spec_(spec), w_(weights) {}

  at::Tensor hidden(const std::vector<int64_t>& ids) const {
    at::Tensor x = at::embedding(w_.at("model.embed_tokens.weight"), at::tensor(ids, at::kLong));
    for (int64_t i = 0; i < spec_.num_layers(); ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      x = x + attend(norm(x, layer + "input_layernorm"), layer + "self_attn.", i);
      const at::Tensor y = norm(x, layer + "post_attention_layernorm");
      const at::Tensor gate = linear(y, layer + "mlp.gate_proj");
      x = x +
          linear(gate * gate.sigmoid() * linear(y, layer + "mlp.up_proj"), layer + "mlp.down_proj");
    }
    return norm(x, "model.norm");
  }

 private:
  at::Tensor norm(const at::Tensor& x, const std::string& path) const {
    return x / (x.square().mean(-1, true) + spec_.norm.eps).sqrt() * w_.at(path + ".weight");
  }

  at::Tensor linear(const at::Tensor& x, const std::string& path) const {
    const at::Tensor y = x.matmul(w_.at(path + ".weight").t());
    return w_.contains(path + ".bias") ? y + w_.at(path + ".bias") : y;
  }

  at::Tensor turn(const at::Tensor& x) const {  // [T, H, d]
    const auto table = nn::make_rope_table(spec_.rope, x.size(2), x.size(0));
    const auto wide = [](const at::Tensor& half) {
      return at::cat({half, half}, 1).to(at::kDouble).unsqueeze(1);
    };
    const auto halves = x.chunk(2, -1);
    return x * wide(table.cos) + at::cat({-halves[1], halves[0]}, -1) * wide(table.sin);
  }

  at::Tensor attend(const at::Tensor& x, const std::string& path, int64_t layer) const {
    const AttentionSpec& a = spec_.layers[static_cast<size_t>(layer)].attention();
    const auto heads = [&](const char* name) {
      return linear(x, path + name).view({x.size(0), -1, a.head_dim});
    };
    at::Tensor q = heads("q_proj"), k = heads("k_proj"), v = heads("v_proj");
    if (a.qk_norm) {
      q = norm(q, path + "q_norm");
      k = norm(k, path + "k_norm");
    }
    const int64_t group = a.num_heads / a.num_kv_heads, n = x.size(0);
    q = turn(q).transpose(0, 1);
    k = turn(k).transpose(0, 1).repeat_interleave(group, 0);
    v = v.transpose(0, 1).repeat_interleave(group, 0);
    const at::Tensor scores = q.matmul(k.transpose(1, 2)) / std::sqrt(double(a.head_dim));
    at::Tensor seen = at::ones({n, n}, at::kBool).tril();
    if (a.window > 0) seen = seen & at::ones({n, n}, at::kBool).triu(1 - a.window);
    const at::Tensor p = scores.masked_fill(seen.logical_not(), -INFINITY).softmax(-1);
    return linear(p.matmul(v).transpose(0, 1).reshape({n, -1}), path + "o_proj");
  }

  DecoderSpec spec_;
  const Weights& w_;
};

JsonObject drawn(const std::string& family) {
  JsonObject config = tiny_config(family);
  if (family == "qwen2") {
    config["use_sliding_window"] = true;
    config["sliding_window"] = 4;
    config["max_window_layers"] = 1;
  }
  if (family == "qwen3") config["tie_word_embeddings"] = false;
  return config;
}

struct Model {
  explicit Model(const JsonObject& config, at::ScalarType dtype = at::kDouble)
      : directory(config),
        weights(tiny_weights(config)),
        decoder(read_spec(config), Checkpoint::open(directory.path()), dtype) {}
  TinyModel directory;
  Weights weights;
  Decoder decoder;
};

class Families : public testing::TestWithParam<std::string> {};

TEST_P(Families, HiddenStatesAndEveryGradientAreTheTextbooks) {
  Model m(drawn(GetParam()));
  m.decoder.train_all();
  const Ids ids = draw({7, 1, 12});
  Weights leaves;
  for (const auto& [name, w] : m.weights) leaves[name] = w.to(at::kDouble).requires_grad_();
  const Textbook book(m.decoder.spec(), leaves);
  std::vector<at::Tensor> rows;
  for (const auto& sequence : ids) rows.push_back(book.hidden(sequence));
  const at::Tensor want = at::cat(rows);
  const at::Tensor weights = at::randn(want.sizes(), at::kDouble);
  (want * weights).sum().backward();

  Tape tape{.batch = pack_ids(ids), .segments = {}};
  const at::Tensor got = m.decoder.forward_train(tape);
  EXPECT_LT((got - want).abs().max().item<double>(), 1e-10);
  m.decoder.backward(tape, weights);
  EXPECT_TRUE(tape.segments.empty());

  const auto named = m.decoder.weights();
  const auto grads = m.decoder.grads();
  ASSERT_EQ(grads.size(), named.size());
  ASSERT_EQ(named.size(), leaves.size()) << "weights() names every tensor of the checkpoint";
  for (size_t i = 0; i < named.size(); ++i) {
    const at::Tensor& leaf = leaves.at(named[i].name);
    EXPECT_TRUE(at::equal(*named[i].value, leaf)) << named[i].name;
    EXPECT_EQ(named[i].decay, leaf.dim() == 2) << named[i].name;
    if (named[i].name == "lm_head.weight") {
      EXPECT_FALSE(grads[i].defined()) << "the head is not the decoder's to run";
      continue;
    }
    const at::Tensor slope = leaf.grad();
    EXPECT_LT((grads[i] - slope).abs().max().item<double>(),
              1e-9 * (1 + slope.abs().max().item<double>()))
        << named[i].name;
  }
}

TEST_P(Families, TheForwardWithoutATapeHasTheSameBits) {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    Model m(drawn(GetParam()), dtype);
    Tape tape{.batch = pack_ids(draw({7, 1, 12})), .segments = {}};
    const at::Tensor plain = m.decoder.forward(tape.batch);
    EXPECT_EQ(plain.scalar_type(), dtype);
    EXPECT_TRUE(at::equal(m.decoder.forward_train(tape), plain));
  }
}

TEST_P(Families, ASequenceHasTheSameBitsPackedAndAlone) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    Model m(drawn(GetParam()), dtype);
    const Ids ids = draw({7, 1, 30, 2});
    const at::Tensor together = m.decoder.forward(pack_ids(ids));
    int64_t begin = 0;
    for (const auto& sequence : ids) {
      const int64_t n = std::ssize(sequence);
      EXPECT_TRUE(
          at::equal(m.decoder.forward(pack_ids({sequence})), together.slice(0, begin, begin + n)))
          << n << " tokens";
      begin += n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Families, testing::Values("llama", "qwen2", "qwen3"));

std::vector<at::Tensor> grads_of(Decoder& decoder, Batch batch) {
  Tape tape{.batch = std::move(batch), .segments = {}};
  const at::Tensor hidden = decoder.forward_train(tape);
  decoder.backward(tape, at::ones_like(hidden));
  return decoder.grads();
}

TEST(Decoder, GradientsAddUpUntilTheyAreZeroed) {
  Model m(tiny_config());
  m.decoder.train_all();
  std::vector<at::Tensor> kept;
  for (const at::Tensor& g : grads_of(m.decoder, pack_ids(draw({5, 3})))) kept.push_back(g.clone());
  const auto twice = grads_of(m.decoder, pack_ids(draw({5, 3})));
  for (size_t i = 0; i < kept.size(); ++i)
    EXPECT_TRUE(at::allclose(twice[i], 2 * kept[i], 1e-12, 1e-12)) << i;
  m.decoder.zero_grads();
  for (const at::Tensor& g : m.decoder.grads()) EXPECT_FALSE(g.defined());
}

// A norm does not ask whose rows they are: the engine passes zeros in the rows of those that do not
// learn.
TEST(Decoder, MatricesLearnFromLearningSequencesAlone) {
  Model m(tiny_config());
  m.decoder.train_all();
  Batch second = pack_ids(draw({5, 3}));
  second.rows.segments[1].learn = 0;
  std::vector<at::Tensor> kept;
  for (const at::Tensor& g : grads_of(m.decoder, second)) kept.push_back(g.clone());
  m.decoder.zero_grads();
  const auto alone = grads_of(m.decoder, pack_ids(draw({5})));
  const auto named = m.decoder.weights();
  for (size_t i = 0; i < kept.size(); ++i) {
    if (!named[i].decay) continue;
    EXPECT_TRUE(at::equal(kept[i], alone[i])) << named[i].name;
  }
}

TEST(Decoder, AFrozenOneKeepsNoGradientsAndStillDifferentiatesItsInput) {
  Model m(tiny_config());
  m.decoder.train_all();
  grads_of(m.decoder, pack_ids(draw({5})));
  m.decoder.freeze();
  EXPECT_TRUE(m.decoder.grads().empty());
  EXPECT_TRUE(grads_of(m.decoder, pack_ids(draw({5}))).empty());
  for (const NamedLinear& l : m.decoder.linears()) EXPECT_EQ(l.linear->weight_grad, nullptr);
}

TEST(Decoder, BuffersArePutBackAndATiedHeadHasItsOwn) {
  Model m(tiny_config());
  m.decoder.train_all();
  grads_of(m.decoder, pack_ids(draw({5})));
  EXPECT_EQ(m.decoder.buffers().size(), m.decoder.weights().size() + 1);
  std::vector<at::Tensor> kept;
  for (const at::Tensor& b : m.decoder.buffers()) kept.push_back(b.defined() ? b.clone() : b);
  grads_of(m.decoder, pack_ids(draw({9})));
  m.decoder.set_buffers(kept);
  const auto back = m.decoder.buffers();
  for (size_t i = 0; i < kept.size(); ++i)
    EXPECT_TRUE(kept[i].defined() ? at::equal(back[i], kept[i]) : !back[i].defined());
  EXPECT_EQ(error_of([&] { m.decoder.set_buffers({}); }), "model: 0 gradient buffers for 21");
}

TEST(Decoder, LinearsAreNamedAsPeftNamesThem) {
  Model m(tiny_config());
  std::vector<std::string> paths;
  for (const NamedLinear& l : m.decoder.linears()) paths.push_back(l.path);
  ASSERT_EQ(paths.size(), 15u);
  EXPECT_EQ(paths[0], "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(paths[3], "model.layers.0.self_attn.o_proj");
  EXPECT_EQ(paths[13], "model.layers.1.mlp.down_proj");
  EXPECT_EQ(paths[14], "lm_head");
}

TEST(Decoder, MissingAndMisshapenTensorsAreNamed) {
  const JsonObject config = tiny_config();
  const auto error_with = [&](const std::function<void(Weights&)>& change) {
    Weights weights = tiny_weights(config);
    change(weights);
    const ScratchDir dir;
    write_tiny(dir.path(), config, weights);
    std::string text =
        error_of([&] { Decoder(read_spec(config), Checkpoint::open(dir.path()), at::kFloat); });
    const auto at = text.find(dir.path().string());
    return at == text.npos ? text : text.replace(at, dir.path().string().size(), "DIR");
  };
  EXPECT_EQ(
      error_with([](Weights& w) { w.erase("model.norm.weight"); }),
      "model: DIR has no tensor model.norm.weight, which config.json asks for; they are not of "
      "one model: fetch both again");
  EXPECT_EQ(
      error_with([](Weights& w) { w["model.layers.1.mlp.up_proj.weight"] = at::zeros({80, 47}); }),
      "model: tensor model.layers.1.mlp.up_proj.weight of DIR has shape [80, 47], config.json "
      "asks for [80, 48]; they are not of one model: fetch both again");
  EXPECT_EQ(error_with([](Weights& w) { w["model.layers.1.mlp.up_proj.bias"] = at::zeros({80}); }),
            "model: DIR has tensor model.layers.1.mlp.up_proj.bias, which config.json does not "
            "ask for; they are not of one model: fetch both again");
  // A save would lose it.
  EXPECT_EQ(error_with([](Weights& w) { w["projector.weight"] = at::zeros({80}); }),
            "model: DIR has tensor projector.weight, which config.json does not ask for; "
            "they are not of one model: fetch both again");
  EXPECT_EQ(error_with([](Weights& w) { w["lm_head.weight"] = w["model.embed_tokens.weight"]; }),
            "no error")
      << "a copy of the embedding";
  EXPECT_EQ(error_with([](Weights& w) {
              w["model.layers.1.self_attn.rotary_emb.inv_freq"] = at::zeros({6});
            }),
            "no error")
      << "config.json says it, too";
}

TEST(Decoder, PositionsGrowTheRopeTableUpToTheModelsLimit) {
  JsonObject config = tiny_config();
  config["max_position_embeddings"] = 6000;
  Model m(config, at::kFloat);
  const auto last = [&](int64_t position) {
    Batch batch = pack_ids({{1, 2}});
    batch.rows.position_ids = at::tensor({position - 1, position}, at::kLong);
    return m.decoder.forward(batch);
  };
  const at::Tensor low = last(100), high = last(5999);
  EXPECT_TRUE(at::allclose(low, high, 1e-2, 1e-2)) << "only differences of positions count";
  EXPECT_EQ(error_of([&] { last(6000); }),
            "model: position 6000 is beyond the model's max_position_embeddings, 6000");
}

}  // namespace
}  // namespace twinkle::model
