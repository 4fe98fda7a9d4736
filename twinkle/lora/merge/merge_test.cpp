#include "twinkle/lora/merge/merge.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "twinkle/base/error_for_test.h"
#include "twinkle/io/peft/peft.h"
#include "twinkle/model/tiny_model.h"
#include "twinkle/model/weights/tensors.h"

namespace twinkle::lora {
namespace {

class Merge : public testing::Test {
 protected:
  // Rank 3, scale 2, on q_proj of both layers and on what `more` names.
  void write_adapter(const std::vector<std::string>& more = {}) {
    PeftConfig config{.rank = 3, .alpha = 6, .target_modules = std::vector<std::string>{"q_proj"}};
    auto& modules = std::get<std::vector<std::string>>(config.target_modules);
    modules.insert(modules.end(), more.begin(), more.end());
    std::vector<PeftEntry> entries;
    const auto add = [&](const std::string& path, int64_t outputs, int64_t inputs) {
      a_[path] = at::randn({3, inputs});
      b_[path] = at::randn({outputs, 3});
      entries.push_back({path, model::view_of("", a_[path]), model::view_of("", b_[path])});
    };
    for (const char* layer : {"0", "1"})
      add(std::string("model.layers.") + layer + ".self_attn.q_proj", 48, 48);
    for (const std::string& path : more) add(path, 131, 48);
    write_peft(adapter_.path(), config, entries);
  }

  at::Tensor sum(const std::string& path, const std::string& weight) {
    const at::Tensor base = model::to_float32(Checkpoint::open(base_.path()).at(weight));
    return base + 2 * at::mm(b_[path], a_[path]);
  }

  static std::map<std::string, StoredTensor> by_name(const std::vector<StoredTensor>& tensors) {
    std::map<std::string, StoredTensor> out;
    for (const StoredTensor& tensor : tensors) out.emplace(tensor.name, tensor);
    return out;
  }

  const model::TinyModel base_;
  const ScratchDir adapter_;
  std::map<std::string, at::Tensor> a_, b_;
};

TEST_F(Merge, AddsTheScaledProductToWhatIsTargetedAndLeavesTheBase) {
  write_adapter();
  const Checkpoint base = Checkpoint::open(base_.path());
  const auto tensors = by_name(merged(base, adapter_.path(), MergedType::kStored));
  ASSERT_EQ(tensors.size(), base.names().size());
  for (const auto& [name, tensor] : tensors) {
    if (name.find("q_proj") == name.npos) {
      EXPECT_TRUE(equal_bytes(tensor, base.at(name))) << name;
      continue;
    }
    const at::Tensor expected = sum(name.substr(0, name.rfind('.')), name);
    EXPECT_TRUE(at::allclose(model::to_float32(tensor), expected, 1e-5, 1e-5)) << name;
    EXPECT_FALSE(equal_bytes(tensor, base.at(name))) << name;
  }
}

TEST_F(Merge, AnyPartOfAMergedTensorIsReadAsTheWholeIs) {
  write_adapter();
  const std::string name = "model.layers.1.self_attn.q_proj.weight";
  const auto tensors =
      by_name(merged(Checkpoint::open(base_.path()), adapter_.path(), MergedType::kFloat32));
  const at::Tensor whole = model::to_float32(tensors.at(name)).flatten();
  for (const auto& [begin, count] : {std::pair{0, 5}, {47, 2}, {48, 48}, {100, 333}}) {
    const at::Tensor part = at::empty({count});
    tensors.at(name).read({static_cast<std::byte*>(part.data_ptr()), part.nbytes()}, begin * 4);
    EXPECT_TRUE(at::allclose(part, whole.slice(0, begin, begin + count), 1e-6, 1e-6)) << begin;
  }
}

TEST_F(Merge, RoundsOnceToTheTypeOfTheBase) {
  std::map<std::string, at::Tensor> weights = model::tiny_weights(model::tiny_config());
  for (auto& [name, weight] : weights) weight = weight.to(at::kBFloat16);
  const ScratchDir half;
  model::write_tiny(half.path(), model::tiny_config(), weights);
  write_adapter();
  const Checkpoint base = Checkpoint::open(half.path());
  const std::string path = "model.layers.0.self_attn.q_proj", name = path + ".weight";
  const StoredTensor got = by_name(merged(base, adapter_.path(), MergedType::kStored)).at(name);
  EXPECT_EQ(got.dtype, Dtype::kBF16);
  const at::Tensor exact = weights.at(name).to(at::kFloat) + 2 * at::mm(b_[path], a_[path]);
  const at::Tensor error = (model::to_float32(got) - exact).abs() / exact.abs();
  EXPECT_LE(error.max().item<float>(), 0x1p-8);
}

TEST_F(Merge, ATiedHeadThatIsTargetedBecomesATensorOfItsOwn) {
  write_adapter({"lm_head"});
  const Checkpoint base = Checkpoint::open(base_.path());
  const auto tensors = by_name(merged(base, adapter_.path(), MergedType::kStored));
  const at::Tensor expected = sum("lm_head", "model.embed_tokens.weight");
  EXPECT_TRUE(at::allclose(model::to_float32(tensors.at("lm_head.weight")), expected, 1e-5, 1e-5));
  EXPECT_TRUE(
      equal_bytes(tensors.at("model.embed_tokens.weight"), base.at("model.embed_tokens.weight")));
}

TEST_F(Merge, AnAdapterOfAnotherBaseIsNamed) {
  write_adapter();
  JsonObject config = model::tiny_config();
  config["hidden_size"] = 64;
  const model::TinyModel other(config);
  expect_error(
      ": lora_A of model.layers.0.self_attn.q_proj has shape [3, 48], this model's is "
      "[3, 64]",
      [&] { merged(Checkpoint::open(other.path()), adapter_.path(), MergedType::kStored); });
}

TEST_F(Merge, AMergedWeightBeyondItsTypeIsNamed) {
  write_adapter();
  a_.begin()->second.fill_(1e30);
  b_.begin()->second.fill_(1e30);
  const PeftConfig config{
      .rank = 3, .alpha = 6, .target_modules = std::vector<std::string>{"q_proj"}};
  std::vector<PeftEntry> entries;
  for (const auto& [path, a] : a_)
    entries.push_back({path, model::view_of("", a), model::view_of("", b_[path])});
  write_peft(adapter_.path(), config, entries);
  const auto tensors =
      by_name(merged(Checkpoint::open(base_.path()), adapter_.path(), MergedType::kStored));
  expect_error(
      "lora: the merged model.layers.0.self_attn.q_proj.weight holds a number that is not "
      "finite in F32",
      [&] { tensors.at("model.layers.0.self_attn.q_proj.weight").load(); });
}

}  // namespace
}  // namespace twinkle::lora
