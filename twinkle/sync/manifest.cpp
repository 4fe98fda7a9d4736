#include "twinkle/sync/manifest.h"

#include <map>
#include <string_view>

#include "twinkle/base/error.h"

namespace twinkle::sync {
namespace {

std::string text_of(const Entry& entry) {
  std::string out = entry.dtype + " [";
  for (size_t i = 0; i < entry.shape.size(); ++i)
    out += (i > 0 ? ", " : "") + std::to_string(entry.shape[i]);
  return out + "]";
}

using ByName = std::map<std::string_view, const Entry*>;

// The manifests of all ranks of a side; they are alike where they have the same tensor.
ByName by_name(const std::vector<Manifest>& ranks, size_t first, size_t last) {
  ByName out;
  for (size_t r = first; r < last; ++r) {
    for (const Entry& entry : ranks[r]) {
      const auto [it, is_new] = out.try_emplace(entry.name, &entry);
      require(it->second->shape == entry.shape && it->second->dtype == entry.dtype, Code::kInvalid,
              "sync: tensor '", entry.name, "' is ", text_of(entry), " on rank ", r,
              ", on another rank of its group it is ", text_of(*it->second));
    }
  }
  return out;
}

}  // namespace

int64_t Entry::num_elements() const {
  int64_t out = 0;
  for (const Slice& slice : slices) out += slice.last - slice.first;
  return out;
}

void require_same_tensors(const std::vector<Manifest>& ranks, int num_senders) {
  const auto senders = static_cast<size_t>(num_senders);
  const ByName model = by_name(ranks, 0, senders), all = by_name(ranks, senders, ranks.size());
  ByName sampler = all;
  for (size_t r = 0; r < senders; ++r) {
    for (const Entry& entry : ranks[r]) {
      const auto theirs = all.find(entry.name);
      require(theirs != all.end(), Code::kInvalid, "sync: the model's tensor '", entry.name,
              "' is not among the sampler's: both must be of one model");
      require(theirs->second->shape == entry.shape && theirs->second->dtype == entry.dtype,
              Code::kInvalid, "sync: tensor '", entry.name, "' is ", text_of(entry),
              " in the model, ", text_of(*theirs->second),
              " in the sampler: both must be of one model and one dtype");
      sampler.erase(entry.name);
    }
  }
  require(sampler.empty(), Code::kInvalid, "sync: the sampler's tensor '",
          sampler.empty() ? "" : sampler.begin()->first,
          "' is not among the model's: both must be of one model");
}

}  // namespace twinkle::sync
