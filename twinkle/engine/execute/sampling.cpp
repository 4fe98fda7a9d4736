#include "twinkle/engine/execute/sampling.h"

#include "twinkle/base/error.h"

namespace twinkle::engine {

void Sampling::start(int64_t id, const Sample& sample, Share share, Weights weights,
                     SampleHooks hooks) {
  if (!sampler_) sampler_ = std::make_unique<sampler::Sampler>(decoder_, options_);
  std::vector<sampler::Request> requests;
  for (size_t i = 0; i < sample.prompts.size(); ++i) {
    requests.push_back({sample.prompts[i], sample.params[sample.params.size() == 1 ? 0 : i],
                        weights.adapter.slot(), weights.version,
                        static_cast<bool>(hooks.on_tokens)});
    requests.back().owner = sample.tenant;
    requests.back().weight = share.weight;
    requests.back().priority = share.priority;
    sampler_->check(requests.back(), static_cast<bool>(hooks.decode));
  }
  SampleResult result;
  result.completions.resize(requests.size());
  result.prompts.resize(requests.size());
  const size_t num_left = requests.size();
  begun_.emplace(id, Begun{std::move(requests), std::move(weights), std::move(hooks),
                           std::move(result), num_left});
  report();
}

void Sampling::admit(const Admitted& request) {
  forget_if_asked();
  Begun& sample = begun_.at(request.id);
  const int64_t ticket =
      sampler_->add(std::move(sample.requests[request.index]), sample.hooks.decode);
  sample.tickets.push_back(ticket);
  requests_[ticket] = request;
}

StepOutcome Sampling::step() {
  forget_if_asked();
  if (next_event_ == events_.size() && next_outcome_ == outcomes_.size()) {
    sampler_->step();
    events_ = sampler_->take_events();
    outcomes_ = sampler_->take_outcomes();
    next_event_ = next_outcome_ = 0;
  }
  for (; next_event_ < events_.size(); ++next_event_) hear(events_[next_event_]);
  for (; next_outcome_ < outcomes_.size(); ++next_outcome_) settle(outcomes_[next_outcome_]);
  tell();
  report();
  return std::exchange(out_, {});
}

// A listener that throws fails its own Sample.
void Sampling::tell() {
  std::vector<std::pair<int64_t, std::exception_ptr>> failed;
  failed.reserve(begun_.size());
  for (auto& [id, sample] : begun_) {
    if (sample.heard.empty()) continue;
    try {
      sample.hooks.on_tokens(sample.heard);
      sample.heard.clear();
    } catch (...) {
      failed.emplace_back(id, std::current_exception());
    }
  }
  for (auto& [id, error] : failed) fail(id, std::move(error));
}

void Sampling::fail(int64_t id, std::exception_ptr error) {
  out_.samples.reserve(out_.samples.size() + 1);
  undo(id);
  out_.samples.push_back({id, std::move(error)});
}

// Nothing has changed when it throws.
void Sampling::hear(const sampler::Event& event) {
  const auto it = requests_.find(event.ticket);
  if (it == requests_.end()) return;  // its Sample has failed meanwhile
  begun_.at(it->second.id)
      .heard.push_back({it->second.index, static_cast<size_t>(event.sample), event.token,
                        event.logprob, event.stop_reason});
}

void Sampling::forget_if_asked() {
  if (forget_.exchange(false)) sampler_->reset_prefix_cache();
}

void Sampling::report() {
  const Lock lock(mutex_);
  reported_ = {.num_samples = std::ssize(begun_),
               .num_sequences = sampler_->num_sequences(),
               .num_computed_tokens = sampler_->num_computed_tokens(),
               .num_shared_tokens = sampler_->num_shared_tokens(),
               .num_pages = sampler_->num_pages(),
               .num_free_pages = sampler_->num_free_pages(),
               .page_tokens = sampler::kPageTokens};
}

SamplingStats Sampling::stats() const {
  const Lock lock(mutex_);
  return reported_;
}

// All that may throw comes first, so that the outcome can be settled once more.
void Sampling::settle(sampler::Outcome& outcome) {
  const auto it = requests_.find(outcome.ticket);
  if (it == requests_.end()) return;  // its Sample has failed meanwhile
  const Admitted request = it->second;
  if (!outcome.error.empty())
    return fail(request.id, std::make_exception_ptr(Error(Code::kInvalid, outcome.error)));
  Begun& sample = begun_.at(request.id);
  out_.requests.reserve(out_.requests.size() + 1);
  out_.samples.reserve(out_.samples.size() + 1);
  requests_.erase(it);
  sample.result.completions[request.index] = std::move(outcome.completions);
  sample.result.prompts[request.index] = std::move(outcome.prompt);
  out_.requests.push_back(request);
  if (--sample.num_left == 0) out_.samples.push_back({request.id, nullptr});
}

SampleResult Sampling::commit(int64_t id) {
  auto ended = begun_.extract(id);
  report();
  return std::move(ended.mapped().result);
}

bool Sampling::undo(int64_t id) {
  const auto it = begun_.find(id);
  if (it == begun_.end()) return false;
  for (const int64_t ticket : it->second.tickets) {
    if (requests_.erase(ticket)) sampler_->cancel(ticket);
  }
  begun_.erase(it);
  std::erase_if(out_.requests, [id](const Admitted& request) { return request.id == id; });
  std::erase_if(out_.samples, [id](const Ended& ended) { return ended.id == id; });
  report();
  return true;
}

}  // namespace twinkle::engine
