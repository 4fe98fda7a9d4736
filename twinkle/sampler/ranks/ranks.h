// Sampling on several ranks: each computes some of the requests and sends the others the results.
// All have all requests and one schedule, so that nothing has to be agreed. Keys and values of a
// request are on its rank only. Knows no model.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "twinkle/base/fields.h"
#include "twinkle/mesh/comm.h"
#include "twinkle/sampler/params.h"
#include "twinkle/sampler/sequence.h"

namespace twinkle::sampler {

class Ranks {
 public:
  // `comm` connects the ranks and outlives this. A single rank has all requests.
  explicit Ranks(mesh::Comm& comm) : comm_(comm) {}

  bool alone() const { return comm_.size() == 1; }
  bool has(const Job& job) const { return job.rank == comm_.rank(); }

  // Gives a new job to the rank with the fewest tokens to come of `others`. Its version becomes one
  // of the rank, whose pages others do not have.
  void place(Job& job, const std::map<int64_t, std::unique_ptr<Job>>& others) const;

  struct Picked {  // a token
    int32_t token;
    float logprob;
    TopLogprobs top;
    std::vector<int32_t> routes;  // those that the others do not know yet
    static constexpr auto fields() {
      return std::tuple{field(1, "token", &Picked::token), field(2, "logprob", &Picked::logprob),
                        field(3, "top", &Picked::top), field(4, "routes", &Picked::routes)};
    }
  };
  // Results of a step.
  struct Found {
    std::vector<PromptScores> prompts;
    std::vector<Picked> tokens;
    static constexpr auto fields() {
      return std::tuple{field(1, "prompts", &Found::prompts), field(2, "tokens", &Found::tokens)};
    }
  };
  // The results of all ranks for these jobs; `mine` are those of this rank's jobs, in their order.
  // Only for several ranks, all of which call it.
  Found gather(const Found& mine, std::span<const Job* const> prompts,
               std::span<const Job* const> tokens) const;

 private:
  mesh::Comm& comm_;
};

}  // namespace twinkle::sampler
