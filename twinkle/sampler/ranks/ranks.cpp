#include "twinkle/sampler/ranks/ranks.h"

#include <algorithm>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/base/fields/codec.h"

namespace twinkle::sampler {
namespace {

// The parts of all ranks, in the order of the jobs. Error kInternal: a rank has found more or fewer
// than the jobs that all believe it to have, so that their schedules have parted.
template <class T>
std::vector<T> in_order(std::span<const Job* const> jobs, std::vector<std::vector<T>> parts) {
  std::vector<size_t> wanted(parts.size(), 0);
  for (const Job* job : jobs) ++wanted[static_cast<size_t>(job->rank)];
  for (size_t r = 0; r < parts.size(); ++r)
    require(parts[r].size() == wanted[r], Code::kInternal, "sampler: rank ", r, " has computed ",
            parts[r].size(), " tokens of a step where the others expect ", wanted[r],
            ": the ranks no longer have the same requests");
  std::vector<T> out;
  std::vector<size_t> next(parts.size(), 0);
  for (const Job* job : jobs) {
    const auto rank = static_cast<size_t>(job->rank);
    out.push_back(std::move(parts[rank][next[rank]++]));
  }
  return out;
}

}  // namespace

void Ranks::place(Job& job, const std::map<int64_t, std::unique_ptr<Job>>& others) const {
  if (alone()) return;
  std::vector<int64_t> tokens(static_cast<size_t>(comm_.size()), 0);
  for (const auto& [ticket, other] : others)
    tokens[static_cast<size_t>(other->rank)] +=
        other->prompt_size() + other->limit * other->num_left;
  job.rank = static_cast<int>(std::ranges::min_element(tokens) - tokens.begin());
  uint64_t& version = job.request.version;
  if (version != 0)
    version = version * static_cast<uint64_t>(comm_.size()) + static_cast<uint64_t>(job.rank);
}

Ranks::Found Ranks::gather(const Found& mine, std::span<const Job* const> prompts,
                           std::span<const Job* const> tokens) const {
  ByteWriter writer;
  writer.sized(mine);
  std::vector<std::vector<PromptScores>> of_prompts;
  std::vector<std::vector<Picked>> of_tokens;
  for (const std::string& bytes : comm_.all_gather(writer.take())) {
    ByteReader reader(bytes, "sampler: what a rank has found", uint64_t{16} << 30);
    Found theirs;
    reader.item(theirs);
    reader.require_end();
    of_prompts.push_back(std::move(theirs.prompts));
    of_tokens.push_back(std::move(theirs.tokens));
  }
  return {in_order(prompts, std::move(of_prompts)), in_order(tokens, std::move(of_tokens))};
}

}  // namespace twinkle::sampler
