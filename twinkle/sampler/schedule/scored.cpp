#include "twinkle/sampler/schedule/scored.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace twinkle::sampler {
namespace {

// The first token of the prompt that gets its log-probability; the prompt's size: none does.
int64_t first_logprob(const Request& request) {
  const SamplingParams& params = request.params;
  const int64_t size = std::ssize(request.prompt);
  if (!params.prompt_logprobs && params.top_prompt_logprobs == 0) return size;
  return params.prompt_logprobs_last_n > 0 ? size - params.prompt_logprobs_last_n : 1;
}

// Moves the scores behind the others, all of them or none. `skipped`: the first log-probabilities,
// for which nobody has asked.
void append(PromptScores& to, PromptScores& from, int64_t skipped) {
  const auto each = [&](const auto& f) {
    f(to.logprobs, from.logprobs, skipped);
    f(to.top_logprobs, from.top_logprobs, skipped);
    f(to.alt_tokens, from.alt_tokens, 0);
    f(to.target_logprobs, from.target_logprobs, 0);
  };
  each([](auto& out, const auto& in, int64_t) { out.reserve(out.size() + in.size()); });
  each([](auto& out, auto& in, int64_t skip) {
    const auto first = in.begin() + std::min<int64_t>(skip, std::ssize(in));
    std::move(first, in.end(), std::back_inserter(out));
  });
}

}  // namespace

int64_t first_scored(const Request& request) {
  const SamplingParams& params = request.params;
  const int64_t size = std::ssize(request.prompt), first = first_logprob(request);
  if (params.prompt_alt_tokens > 0) return std::min<int64_t>(1, size);
  if (params.prompt_targets.empty()) return first;
  return std::min<int64_t>(first, params.prompt_targets.front().position);
}

Scored Scored::of(const Sequence& s) {
  Job& job = *s.job;
  const int64_t begin = std::max(s.computed, job.num_scored - 1);
  return {&job, begin, std::min(s.next, job.prompt_size() - 1) - begin};
}

int64_t Scored::keep() {
  const int64_t first = begin + 1;
  const std::vector<float>& all = found.logprobs;
  const auto bad = std::ranges::find_if(all, [](float x) { return std::isnan(x); });
  if (bad != all.end()) return first + (bad - all.begin());
  append(job->prompt, found, std::max<int64_t>(0, first_logprob(job->request) - first));
  job->num_scored = first + count;
  return -1;
}

}  // namespace twinkle::sampler
