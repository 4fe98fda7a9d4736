#include "twinkle/engine/execute/sampling.h"

#include <algorithm>
#include <string>

#include "twinkle/base/error.h"

namespace twinkle::engine {

void Sampling::start(int64_t id, const Sample& sample, Share share, Weights weights,
                     Listening listening) {
  if (!sampler_) sampler_ = std::make_unique<sampler::Sampler>(decoder_, options_, eos_ids_, comm_);
  forget_if_asked();
  const size_t n = sample.prompts.size();
  Begun begun{std::move(weights), std::move(listening)};
  begun.result.completions.resize(n);
  begun.result.prompts.resize(n);
  begun.tickets.reserve(n);
  begun.num_left = n;
  try {
    for (size_t i = 0; i < n; ++i) {
      sampler::Request request{sample.prompts[i], sample.params[sample.params.size() == 1 ? 0 : i],
                               begun.weights.adapter.slot(),
                               options_.prefix_cache ? begun.weights.version : 0,
                               static_cast<bool>(begun.listening.hooks.on_tokens)};
      request.owner = sample.tenant;
      request.weight = share.weight;
      request.priority = share.priority;
      begun.tickets.push_back(sampler_->add(std::move(request), begun.listening.decode));
      requests_[begun.tickets.back()] = {id, i};
    }
    begun_.emplace(id, std::move(begun));
  } catch (...) {
    forget(begun.tickets);
    throw;
  }
  report();
}

std::vector<Ended> Sampling::step() {
  if (comm_.size() == 1) forget_if_asked();
  if (next_event_ == events_.size() && next_outcome_ == outcomes_.size()) {
    sampler_->step();
    events_ = sampler_->take_events();
    outcomes_ = sampler_->take_outcomes();
    next_event_ = next_outcome_ = 0;
  }
  for (; next_event_ < events_.size(); ++next_event_) on_event(events_[next_event_]);
  for (; next_outcome_ < outcomes_.size(); ++next_outcome_) finish(outcomes_[next_outcome_]);
  notify();
  report();
  return std::exchange(out_, {});
}

int64_t Sampling::newest() const {
  const auto it = requests_.find(sampler_->newest());
  return it == requests_.end() ? 0 : it->second.id;
}

int64_t Sampling::num_generated(int64_t id) const {
  int64_t out = 0;
  const auto it = begun_.find(id);
  if (it == begun_.end()) return out;
  for (const int64_t ticket : it->second.tickets) out += sampler_->num_generated(ticket);
  for (const auto& samples : it->second.result.completions)  // their requests have ended
    for (const auto& completion : samples) out += std::ssize(completion.tokens);
  return out;
}

// A listener that throws fails its own Sample.
void Sampling::notify() {
  std::vector<std::pair<int64_t, std::exception_ptr>> failed;
  failed.reserve(begun_.size());
  for (auto& [id, sample] : begun_) {
    if (sample.pending_events.empty()) continue;
    try {
      sample.listening.hooks.on_tokens(sample.pending_events);
      sample.pending_events.clear();
    } catch (...) {
      failed.emplace_back(id, std::current_exception());
    }
  }
  for (auto& [id, error] : failed) fail(id, std::move(error));
}

void Sampling::fail(int64_t id, std::exception_ptr error) {
  out_.reserve(out_.size() + 1);
  undo(id);
  out_.push_back({id, std::move(error)});
}

// Nothing has changed when it throws.
void Sampling::on_event(const sampler::Event& event) {
  const auto it = requests_.find(event.ticket);
  if (it == requests_.end()) return;  // its Sample has failed meanwhile
  begun_.at(it->second.id)
      .pending_events.push_back({it->second.index, static_cast<size_t>(event.sample), event.token,
                                 event.logprob, event.stop_reason, event.top_logprobs});
}

void Sampling::forget_if_asked() {
  int64_t asked = num_asked_;
  if (comm_.size() > 1) {
    for (const std::string& theirs : comm_.all_gather(std::to_string(asked)))
      asked = std::min<int64_t>(asked, std::stoll(theirs));
  }
  if (std::exchange(num_forgotten_, asked) < asked) sampler_->reset_prefix_cache();
}

void Sampling::report() {
  const Lock lock(mutex_);
  reported_ = {.num_samples = std::ssize(begun_),
               .num_sequences = sampler_->num_running(),
               .num_computed_tokens = sampler_->num_computed_tokens(),
               .num_shared_tokens = sampler_->num_shared_tokens(),
               .num_pages = sampler_->num_pages(),
               .num_free_pages = sampler_->num_free_pages(),
               .page_tokens = sampler::kPageTokens,
               .graph_failure = sampler_->graph_failure()};
}

SamplingStats Sampling::stats() const {
  const Lock lock(mutex_);
  return reported_;
}

// All that may throw comes first, so that the outcome can be handled once more. When requests fail,
// the Sample fails with the error of the first of them in its order, not in time: those behind it
// are cancelled, those before it go on.
void Sampling::finish(sampler::Outcome& outcome) {
  const auto it = requests_.find(outcome.ticket);
  if (it == requests_.end()) return;  // its Sample has failed meanwhile
  const auto [id, index] = it->second;
  Begun& sample = begun_.at(id);
  out_.reserve(out_.size() + 1);
  if (!outcome.error.empty()) {
    sample.error = outcome.error;
    const std::span behind = std::span(sample.tickets).subspan(index + 1);
    for (const int64_t ticket : behind) sample.num_left -= requests_.contains(ticket);
    forget(behind);
  } else {
    sample.result.completions[index] = std::move(outcome.completions);
    sample.result.prompts[index] = std::move(outcome.prompt);
  }
  if (sample.num_left == 1 && !sample.error.empty())
    return fail(id, std::make_exception_ptr(Error(Code::kInvalid, sample.error)));
  requests_.erase(it);
  if (--sample.num_left == 0) out_.push_back({id, nullptr});
}

void Sampling::forget(std::span<const int64_t> tickets) {
  for (const int64_t ticket : tickets) requests_.erase(ticket);
  sampler_->cancel(tickets);
}

SampleResult Sampling::commit(int64_t id) {
  auto ended = begun_.extract(id);
  report();
  return std::move(ended.mapped().result);
}

bool Sampling::undo(int64_t id) {
  const auto it = begun_.find(id);
  if (it == begun_.end()) return false;
  forget(it->second.tickets);
  begun_.erase(it);
  std::erase_if(out_, [id](const Ended& ended) { return ended.id == id; });
  report();
  return true;
}

}  // namespace twinkle::engine
