// For tests of the sampler's schedule: requests driven to their end without a model.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "twinkle/sampler/schedule/schedule.h"

namespace twinkle::sampler {

inline std::vector<int32_t> count_from(int32_t first, int64_t length) {
  std::vector<int32_t> out(static_cast<size_t>(length));
  std::iota(out.begin(), out.end(), first);
  return out;
}

// A sampler without a model: the next token is the last one plus 1.
class Driver {
 public:
  explicit Driver(const SamplerOptions& options, const StateLayout& states = {})
      : schedule(options, states) {}

  Job* add(std::vector<int32_t> prompt, int64_t max_tokens, uint64_t version,
           int64_t num_samples = 1) {
    auto job = std::make_unique<Job>();
    job->ticket = std::ssize(jobs_);
    job->limit = max_tokens;
    job->num_scored = std::ssize(prompt);
    job->num_left = num_samples;
    job->completions.resize(static_cast<size_t>(num_samples));
    job->request.prompt = std::move(prompt);
    job->request.version = version;
    job->request.params.num_samples = num_samples;
    schedule.add(std::make_unique<Sequence>(job.get(), 0));
    jobs_.push_back(std::move(job));
    return jobs_.back().get();
  }

  // One forward: tokens computed by ticket.
  std::map<int64_t, int64_t> step() {
    std::map<int64_t, int64_t> computed;
    prompt_tokens.clear();
    const Schedule::Work work = schedule.plan();
    for (Sequence* s : work.batch) {
      computed[s->job->ticket] += s->next - s->computed;
      num_computed += s->next - s->computed;
      if (s->next - s->computed > 1) prompt_tokens[s->job->request.owner] += s->next - s->computed;
      if (compute) compute(*s);
    }
    schedule.advance(work.batch);
    for (Sequence* s : work.batch) {
      if (!s->finishes()) continue;
      for (Sequence* chosen : schedule.fork(*s)) accept(*chosen);
    }
    schedule.sweep();
    return computed;
  }

  int64_t run() {
    while (!schedule.empty()) step();
    return num_computed;
  }

  Schedule schedule;
  int64_t num_computed = 0;
  std::function<void(Sequence&)> compute;  // tokens [computed, next)
  std::map<std::string, int64_t>
      prompt_tokens;  // the last step's, by owner; pieces of one token are not seen

 private:
  void accept(Sequence& s) {
    s.tokens.push_back(s.tokens.back() + 1);
    Completion& out = s.job->completions[static_cast<size_t>(s.sample)];
    out.tokens.push_back(s.tokens.back());
    if (std::ssize(out.tokens) < s.job->limit) return;
    s.done = true;
    --s.job->num_left;
  }

  std::vector<std::unique_ptr<Job>> jobs_;
};

}  // namespace twinkle::sampler
