#include "twinkle/server/tenants/usage.h"

#include <algorithm>
#include <variant>

namespace twinkle::server {
namespace {

int64_t num_tokens(const std::vector<engine::Example>& sequences) {
  int64_t out = 0;
  for (const engine::Example& e : sequences) out += std::ssize(e.input_ids);
  return out;
}

// RUN:NUMBER, RUN:sample:NUMBER:NUMBER or SESSION:sample:NUMBER:NUMBER.
std::string run_of(const std::string& request_id) {
  const size_t sampler = request_id.find(":sample:");
  return request_id.substr(0, sampler != std::string::npos ? sampler : request_id.rfind(':'));
}

void add_to(UsageLine& line, int64_t requests, const Used& used) {
  line.requests += requests;
  line.used.trained += used.trained;
  line.used.prompt += used.prompt;
  line.used.generated += used.generated;
  line.used.seconds += used.seconds;
}

}  // namespace

Used used_by(const engine::Operation& operation) {
  if (const auto* op = std::get_if<engine::ForwardBackward>(&operation))
    return {.trained = num_tokens(op->sequences)};
  if (const auto* op = std::get_if<engine::Forward>(&operation))
    return {.trained = num_tokens(op->sequences)};
  Used out;
  if (const auto* op = std::get_if<engine::Sample>(&operation))
    for (const auto& prompt : op->prompts) out.prompt += std::ssize(prompt);
  return out;
}

int64_t generated_in(const engine::Result& result) {
  int64_t out = 0;
  if (const auto* sampled = std::get_if<engine::SampleResult>(&result))
    for (const auto& samples : sampled->completions)
      for (const engine::Completion& c : samples) out += std::ssize(c.tokens);
  return out;
}

void Usage::add(const std::string& tenant, const std::string& key, const std::string& request_id,
                const Used& used) {
  const std::string run = run_of(request_id);
  UsageLine& line = lines_[{tenant, key, run}];
  line.tenant = tenant;
  line.key = key;
  line.run = run;
  add_to(line, 1, used);
}

std::vector<UsageLine> Usage::lines() const {
  std::vector<UsageLine> out;
  for (const auto& [key, line] : lines_) out.push_back(line);
  return out;
}

void Usage::restore(const std::vector<UsageLine>& lines) {
  lines_.clear();
  for (const UsageLine& line : lines) lines_[{line.tenant, line.key, line.run}] = line;
}

std::vector<UsageLine> Usage::by_tenant(size_t most) const {
  std::vector<UsageLine> out;
  for (const auto& [key, line] : lines_) {  // in the order of tenants
    if (out.empty() || out.back().tenant != line.tenant) out.push_back({.tenant = line.tenant});
    add_to(out.back(), line.requests, line.used);
  }
  if (out.size() <= most) return out;
  std::ranges::stable_sort(out, std::greater{}, &UsageLine::requests);
  UsageLine other{.tenant = "(others)"};
  for (size_t i = most; i < out.size(); ++i) add_to(other, out[i].requests, out[i].used);
  out.resize(most);
  out.push_back(other);
  return out;
}

}  // namespace twinkle::server
