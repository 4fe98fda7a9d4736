#include "twinkle/cli/train/rollouts.h"

#include <algorithm>
#include <cmath>

#include "twinkle/data/encode.h"
#include "twinkle/rl/advantages.h"

namespace twinkle::cli {
namespace {

constexpr std::chrono::seconds kStarts{60};

// Groups whose rewards are equal, which teach nothing, as a share of all.
double equal_groups(const std::vector<double>& advantages, int64_t num_generations) {
  int64_t equal = 0, groups = 0;
  for (auto at = advantages.begin(); at != advantages.end(); at += num_generations, ++groups)
    equal += std::all_of(at, at + num_generations, [](double a) { return a == 0; }) ? 1 : 0;
  return static_cast<double>(equal) / static_cast<double>(groups);
}

// The row with the reply as a message, without its tokens.
JsonObject trajectory_of(const data::Row& row, const std::string& reply) {
  JsonObject out = row;
  for (const char* name : {"input_ids", "labels", "attention_mask", "position_ids", "length"})
    out.erase(name);
  out["messages"].as_array().push_back(JsonObject{{"role", "assistant"}, {"content", reply}});
  return out;
}

engine::Example example_of(const text::InputFeature& prompt, const sampler::Completion& reply,
                           const text::Template& tmpl) {
  const std::vector<int64_t> tokens(reply.tokens.begin(), reply.tokens.end());
  const text::InputFeature all = tmpl.concat_input_feature(prompt, tokens);
  engine::Example out{.input_ids = {all.input_ids.begin(), all.input_ids.end()},
                      .labels = {all.labels.begin(), all.labels.end()}};
  std::vector<float> old(out.input_ids.size());
  std::ranges::copy(reply.logprobs, old.begin() + prompt.length() - 1);
  out.extras["old_logps"] = std::move(old);
  return out;
}

}  // namespace

RewardWorker::RewardWorker(const std::string& name, double seconds)
    : name_(name), limit_(std::llround(seconds * 1000)), worker_({"reward.worker", name}) {
  const auto answer = worker_.receive(kStarts);
  require(answer.has_value(), Code::kInvalid, "cli: --reward ", name,
          ": python -m twinkle.reward.worker has ended");
  require(*answer == "ok", Code::kInvalid, "cli: --reward ", name, ": ", *answer);
}

std::vector<double> RewardWorker::rewards(const JsonArray& trajectories, const data::Dataset& data,
                                          const std::vector<int64_t>& rows) {
  const std::string what = "cli: --reward " + name_;
  std::optional<std::string> line;
  if (worker_.send(boost::json::serialize(trajectories) + '\n', limit_))
    line = worker_.receive(limit_);
  require(line.has_value(), Code::kInvalid, what, " has not answered for ", data.where(rows[0]),
          " and ", trajectories.size() - 1,
          " more replies: it ended, or took over --reward-seconds");
  const Json answer = parse_json(*line, "the answer of --reward");
  if (const Json* error = find(answer, "error")) {
    const auto index = get_or<int64_t>(answer, "index", 0);
    fail(Code::kInvalid, what, ": ", data.where(rows.at(static_cast<size_t>(index))), ": ",
         std::string_view(error->as_string()));
  }
  std::vector<double> out;
  for (const Json& value : answer.at("rewards").as_array())
    out.push_back(value.to_number<double>());
  return out;
}

Rollouts::Rollouts(const Goal& goal, const text::Template& tmpl, uint64_t seed)
    : goal_(goal), tmpl_(tmpl), seed_(seed), worker_(goal.reward, goal.reward_seconds) {}

std::vector<engine::Example> Rollouts::sample(engine::Engine& engine, const data::Dataset& rows,
                                              const std::vector<int64_t>& batch, int64_t consumed,
                                              JsonObject& noted) {
  engine::Sample request{.tenant = kTenant};
  std::vector<text::InputFeature> prompts;
  for (size_t i = 0; i < batch.size(); ++i) {
    const data::Row& row = rows.row(batch[i]);
    const auto ids = data::integers(row, "input_ids"), labels = data::integers(row, "labels");
    prompts.push_back({{ids.begin(), ids.end()}, {labels.begin(), labels.end()}});
    request.prompts.push_back(ids);
    request.params.push_back({.max_tokens = goal_.max_tokens,
                              .seed = seed_ + static_cast<uint64_t>(consumed) + i,
                              .temperature = goal_.temperature,
                              .num_samples = goal_.num_generations});
  }
  const auto sampled = engine.run<engine::SampleResult>(request);
  std::vector<engine::Example> out;
  JsonArray trajectories;
  std::vector<int64_t> of_row;
  double num_tokens = 0;
  for (size_t i = 0; i < batch.size(); ++i) {
    for (const sampler::Completion& reply : sampled.completions[i]) {
      out.push_back(example_of(prompts[i], reply, tmpl_));
      const std::vector<int64_t> ids(reply.tokens.begin(), reply.tokens.end());
      trajectories.push_back(trajectory_of(rows.row(batch[i]), tmpl_.decode(ids, true)));
      of_row.push_back(batch[i]);
      num_tokens += static_cast<double>(ids.size());
    }
  }
  const std::vector<double> rewards = worker_.rewards(trajectories, rows, of_row);
  const std::vector<double> advantages =
      rl::group_advantages(rewards, {.num_generations = goal_.num_generations});
  for (size_t s = 0; s < out.size(); ++s)
    out[s].extras["advantages"].assign(out[s].input_ids.size(), static_cast<float>(advantages[s]));
  noted["reward"] = rl::mean_of(rewards);
  noted["reward_std"] = rl::deviation_of(rewards);
  noted["frac_reward_zero_std"] = equal_groups(advantages, goal_.num_generations);
  noted["reply_tokens"] = num_tokens / static_cast<double>(out.size());
  return out;
}

}  // namespace twinkle::cli
