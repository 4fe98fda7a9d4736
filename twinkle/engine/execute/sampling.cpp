#include "twinkle/engine/execute/sampling.h"

#include "twinkle/base/error.h"

namespace twinkle::engine {

void Sampling::start(int64_t id, const Sample& sample, Share share, Weights weights,
                     sampler::Decode decode) {
  if (!sampler_) sampler_ = std::make_unique<sampler::Sampler>(decoder_, options_);
  std::vector<sampler::Request> requests;
  for (size_t i = 0; i < sample.prompts.size(); ++i) {
    requests.push_back({sample.prompts[i], sample.params[sample.params.size() == 1 ? 0 : i],
                        weights.adapter.slot(), weights.version});
    requests.back().owner = sample.tenant;
    requests.back().weight = share.weight;
    requests.back().priority = share.priority;
    sampler_->check(requests.back(), static_cast<bool>(decode));
  }
  SampleResult result;
  result.completions.resize(requests.size());
  result.prompts.resize(requests.size());
  const size_t num_left = requests.size();
  begun_.emplace(id, Begun{std::move(requests), std::move(weights), std::move(decode),
                           std::move(result), num_left});
}

void Sampling::admit(const Admitted& request) {
  Begun& sample = begun_.at(request.id);
  const int64_t ticket = sampler_->add(std::move(sample.requests[request.index]), sample.decode);
  sample.tickets.push_back(ticket);
  requests_[ticket] = request;
}

StepOutcome Sampling::step() {
  sampler_->step();
  StepOutcome out;
  for (sampler::Outcome& outcome : sampler_->take_outcomes()) settle(outcome, out);
  return out;
}

void Sampling::settle(sampler::Outcome& outcome, StepOutcome& out) {
  const auto it = requests_.find(outcome.ticket);
  if (it == requests_.end()) return;  // its Sample has failed meanwhile
  const Admitted request = it->second;
  requests_.erase(it);
  if (!outcome.error.empty()) {
    out.samples.push_back(
        {request.id, std::make_exception_ptr(Error(Code::kInvalid, outcome.error))});
    undo(request.id);
    return;
  }
  Begun& sample = begun_.at(request.id);
  sample.result.completions[request.index] = std::move(outcome.completions);
  sample.result.prompts[request.index] = std::move(outcome.prompt);
  out.requests.push_back(request);
  if (--sample.num_left == 0) out.samples.push_back({request.id, nullptr});
}

SampleResult Sampling::commit(int64_t id) { return std::move(begun_.extract(id).mapped().result); }

bool Sampling::undo(int64_t id) {
  const auto it = begun_.find(id);
  if (it == begun_.end()) return false;
  for (const int64_t ticket : it->second.tickets) {
    if (requests_.erase(ticket)) sampler_->cancel(ticket);
  }
  begun_.erase(it);
  return true;
}

}  // namespace twinkle::engine
