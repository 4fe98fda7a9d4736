#include "twinkle/lora/merge/merge.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>

#include "twinkle/base/error.h"
#include "twinkle/lora/saved_adapter.h"
#include "twinkle/model/weights/tensors.h"

namespace twinkle::lora {
namespace {

constexpr const char* kEmbeddingWeight = "model.embed_tokens.weight";
constexpr const char* kHeadPath = "lm_head";
constexpr std::string_view kDotWeight = ".weight";

// Every matrix but the embedding, and the head, tied or not.
std::vector<LinearShape> linears_of(const Checkpoint& base) {
  std::vector<LinearShape> out;
  for (const std::string& name : base.names()) {
    const StoredTensor& stored = base.at(name);
    if (!name.ends_with(kDotWeight) || stored.shape.size() != 2 || name == kEmbeddingWeight)
      continue;
    out.push_back(
        {name.substr(0, name.size() - kDotWeight.size()), stored.shape[1], stored.shape[0]});
  }
  if (!base.contains(std::string(kHeadPath).append(kDotWeight))) {
    const StoredTensor& embedding = base.at(kEmbeddingWeight);
    out.push_back({kHeadPath, embedding.shape.at(1), embedding.shape.at(0)});
  }
  return out;
}

struct Pieces {
  StoredTensor base;
  at::Tensor a, b;       // [r, in], [out, r], b with the scale
  at::Tensor magnitude;  // [out] of DoRA's, else undefined
  MergedType type;
};

// Rows [begin, end) in the type that a reader of them gets.
at::Tensor rows_of(const Pieces& of, int64_t begin, int64_t end) {
  const at::Tensor base = model::read_tensor(of.base, {.dim = 0, .begin = begin, .end = end});
  at::Tensor sum = base.to(at::kFloat) + at::mm(of.b.slice(0, begin, end), of.a);
  if (of.magnitude.defined()) {
    const at::Tensor gain = of.magnitude.slice(0, begin, end) / at::linalg_vector_norm(sum, 2, {1});
    sum = sum * gain.unsqueeze(1);
  }
  const at::Tensor out =
      of.type == MergedType::kFloat32 ? sum : sum.to(model::scalar_type_of(of.base));
  require(at::isfinite(out).all().item<bool>(), Code::kInvalid, "lora: the merged ", of.base.name,
          " holds a number that is not finite in ",
          name_of(of.type == MergedType::kFloat32 ? Dtype::kF32 : of.base.dtype),
          ": is the adapter damaged, or were its weights trained too far?");
  return out.contiguous();
}

StoredTensor merged_tensor(Pieces pieces, std::string name) {
  StoredTensor out = pieces.base;
  out.name = std::move(name);
  if (pieces.type == MergedType::kFloat32) out.dtype = Dtype::kF32;
  const int64_t row_bytes = size_of(out.dtype) * out.shape.at(1);
  out.reader = [of = std::make_shared<const Pieces>(std::move(pieces)), row_bytes](
                   int64_t offset, std::span<std::byte> bytes) {
    const c10::InferenceMode no_grad;
    const int64_t first = offset / row_bytes;
    const int64_t last = (offset + std::ssize(bytes) + row_bytes - 1) / row_bytes;
    const at::Tensor rows = rows_of(*of, first, last);
    std::memcpy(bytes.data(),
                static_cast<const std::byte*>(rows.const_data_ptr()) + (offset - first * row_bytes),
                bytes.size());
  };
  return out;
}

}  // namespace

std::vector<StoredTensor> merged(const Checkpoint& base, const std::filesystem::path& adapter,
                                 MergedType type) {
  const auto weight_of = [&base](const std::string& path) -> const StoredTensor& {
    const std::string name = path + std::string(kDotWeight);
    return base.at(base.contains(name) ? name : kEmbeddingWeight);
  };
  const auto is_base_weight = [&](const std::string& name, const StoredTensor& copy) {
    return model::is_copy(copy, base.at(base.contains(name) ? name : kEmbeddingWeight));
  };
  const SavedAdapter saved = read_adapter(adapter, linears_of(base), {}, nullptr, is_base_weight);
  require(!saved.score.defined(), Code::kInvalid, "lora: ", adapter.string(),
          " has a head of labels (task_type SEQ_CLS), for which a causal model has no place; load "
          "it with peft over AutoModelForSequenceClassification, and merge it there");
  const Sizes sizes(saved.config);
  std::map<std::string, StoredTensor> made;
  for (const SavedAdapter::Module& module : saved.modules) {
    const std::string name = module.path + std::string(kDotWeight);
    const bool both = is_pissa(saved.config);
    const at::Tensor b = both ? at::cat({module.b, -module.more[kInitialB]}, 1) : module.b;
    made.emplace(
        name,
        merged_tensor({.base = weight_of(module.path),
                       .a = both ? at::cat({module.a, module.more[kInitialA]}) : module.a,
                       .b = b * sizes.scale(module.path),
                       .magnitude = saved.config.use_dora ? module.more[kMagnitude] : at::Tensor(),
                       .type = type},
                      name));
  }
  std::vector<StoredTensor> out;
  for (const std::string& name : base.names()) {
    const auto found = made.find(name);
    out.push_back(found == made.end() ? base.at(name) : found->second);
    if (found != made.end()) made.erase(found);
  }
  for (auto& [name, head] : made) out.push_back(std::move(head));
  return out;
}

}  // namespace twinkle::lora
