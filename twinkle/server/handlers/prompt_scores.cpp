#include "twinkle/server/handlers/prompt_scores.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "twinkle/base/error.h"

namespace twinkle::server {
namespace {

using tinker::Tensor;

constexpr const char* kTargets = "target_prompt_logprobs";
constexpr int64_t kNoTarget = -1;

std::vector<int64_t> integers(const Json& object, const char* name) {
  const Json* list = find(object, name);
  require(list && list->is_array(), Code::kInvalid, "server: ", kTargets, ".", name,
          " must be an array of integers");
  std::vector<int64_t> out;
  for (const Json& item : list->get_array()) {
    require(item.is_int64(), Code::kInvalid, "server: ", kTargets, ".", name, " has ",
            boost::json::serialize(item), ", it must hold integers");
    out.push_back(item.get_int64());
  }
  return out;
}

void check_ids(const std::vector<int64_t>& ids, int64_t vocabulary) {
  for (const int64_t id : ids)
    require(id >= kNoTarget && id < vocabulary, Code::kInvalid, "server: ", kTargets, ".data has ",
            id, ", it must be -1, for no token, or below the vocabulary's ", vocabulary);
  require(std::ranges::any_of(ids, [](int64_t id) { return id != kNoTarget; }), Code::kInvalid,
          "server: ", kTargets, " names no token; leave it out");
}

// The JSON of the SDK's TensorData, [P - 1, K].
Tensor read_targets(const Json& given, const PromptSizes& sizes) {
  require(given.is_object(), Code::kInvalid, "server: ", kTargets,
          " must be an object of data, dtype and shape");
  const auto dtype = get_or<std::string>(given, "dtype", "");
  require(dtype == "int64", Code::kInvalid, "server: ", kTargets, ".dtype is '", dtype,
          "', it must be 'int64'");
  std::vector<int64_t> ids = integers(given, "data");
  const int64_t num_values = std::ssize(ids), rows = std::max<int64_t>(0, sizes.tokens - 1);
  Tensor out{.shape = integers(given, "shape"), .values = std::move(ids)};
  require(out.shape.size() == 2 && out.shape[0] == rows && out.shape[1] >= 1, Code::kInvalid,
          "server: ", kTargets, ".shape must be [", rows,
          ", K], a row for each token of the prompt but the first");
  const int64_t k = out.shape[1];
  if (find(given, "sparse_crow_indices") || find(given, "sparse_col_indices")) {
    out.sparse = {integers(given, "sparse_crow_indices"), integers(given, "sparse_col_indices")};
    require(num_values == std::ssize(out.sparse->col), Code::kInvalid, "server: ", kTargets,
            ".data has ", num_values, " values, its sparse_col_indices ", out.sparse->col.size());
    require_rows(out, std::string("server: ") + kTargets + ".sparse_");
  } else {
    require(rows > 0 && num_values % rows == 0 && num_values / rows == k, Code::kInvalid,
            "server: ", kTargets, ".data has ", num_values, " values, its shape is [", rows, ", ",
            k, "]");
  }
  check_ids(std::get<std::vector<int64_t>>(out.values), sizes.vocabulary);
  return out;
}

// Calls f(row, id) for each value, in their order.
template <class F>
void for_each_value(const Tensor& targets, const F& f) {
  const auto& ids = std::get<std::vector<int64_t>>(targets.values);
  int64_t row = 0;
  for (int64_t i = 0; i < std::ssize(ids); ++i) {
    if (targets.sparse)
      while (i >= targets.sparse->crow[row + 1]) ++row;
    else
      row = i / targets.shape[1];
    f(row, ids[i]);
  }
}

int64_t read_last_n(const Json& body, int64_t num_tokens, bool logprobs) {
  constexpr const char* kName = "prompt_logprobs_last_n";
  if (!find(body, kName)) return 0;
  const auto out = get<int64_t>(body, kName);
  require(logprobs, Code::kInvalid, "server: ", kName, " is ", out,
          " without prompt_logprobs; ask for these, or leave it out");
  require(out >= 1 && out < num_tokens, Code::kInvalid, "server: ", kName, " is ", out,
          ", it must be from 1 to ", num_tokens - 1, ", one less than the prompt's tokens");
  return out;
}

}  // namespace

int64_t read_top(const Json& body, const char* name) {
  const auto out = get_or<int64_t>(body, name, 0);
  require(out >= 0 && out <= sampler::kMaxTopLogprobs, Code::kInvalid, "server: ", name, " is ",
          out, ", it must be from 0 to ", sampler::kMaxTopLogprobs);
  return out;
}

tinker::TopTokens top_of(const std::vector<sampler::TopLogprobs>& rows, int64_t k,
                         int64_t num_tokens) {
  tinker::TopTokens out{.k = k};
  out.rows.resize(static_cast<size_t>(num_tokens) - rows.size());
  for (const auto& row : rows) {
    auto& to = out.rows.emplace_back();
    for (const auto& [id, logprob] : row) to.emplace_back(id, logprob);
  }
  return out;
}

PromptScoring::PromptScoring(const Json& body, const PromptSizes& sizes,
                             engine::SamplingParams& params)
    : num_tokens_(sizes.tokens),
      top_(read_top(body, "topk_prompt_logprobs")),
      alternatives_(read_top(body, "prompt_alt_tokens_k")),
      logprobs_(get_or(body, "prompt_logprobs", false)) {
  params.prompt_logprobs = logprobs_;
  params.top_prompt_logprobs = top_;
  params.prompt_alt_tokens = alternatives_;
  params.prompt_logprobs_last_n = read_last_n(body, sizes.tokens, logprobs_);
  if (const Json* targets = find(body, kTargets)) {
    targets_ = read_targets(*targets, sizes);
    for_each_value(*targets_, [&](int64_t row, int64_t id) {
      if (id == kNoTarget) return;
      params.prompt_targets.push_back({static_cast<int32_t>(row + 1), static_cast<int32_t>(id)});
    });
  }
}

int64_t PromptScoring::num_bytes() const {
  int64_t out = num_tokens_ * ((logprobs_ ? 4 : 0) + 8 * top_ + 12 * alternatives_);
  if (targets_) out += 4 * targets_->num_values();
  if (targets_ && targets_->sparse)
    out += 8 * (std::ssize(targets_->sparse->crow) + std::ssize(targets_->sparse->col));
  return out;
}

void PromptScoring::answer(const sampler::PromptScores& scores, tinker::SampleResponse& out) const {
  if (logprobs_) {
    const size_t unscored = static_cast<size_t>(num_tokens_) - scores.logprobs.size();
    auto& all = out.prompt_logprobs.emplace(unscored, std::numeric_limits<float>::quiet_NaN());
    all.insert(all.end(), scores.logprobs.begin(), scores.logprobs.end());
  }
  if (top_ > 0) out.prompt_top = top_of(scores.top_logprobs, top_, num_tokens_);
  if (targets_) {
    std::vector<float> logprobs;
    auto next = scores.target_logprobs.begin();
    for_each_value(*targets_, [&](int64_t, int64_t id) {
      logprobs.push_back(id == kNoTarget ? 0.0f : *next++);
    });
    out.prompt_targets = {targets_->shape, std::move(logprobs), targets_->sparse};
  }
  if (alternatives_ > 0) {
    std::vector<int64_t> ids;
    std::vector<float> logprobs;
    for (const auto& [id, logprob] : scores.alt_tokens) {
      ids.push_back(id);
      logprobs.push_back(logprob);
    }
    const std::vector<int64_t> shape{num_tokens_ - 1, alternatives_};
    out.prompt_alt_tokens = {{shape, std::move(ids)}, {shape, std::move(logprobs)}};
  }
}

}  // namespace twinkle::server
