#include "twinkle/server/tenants/put_off.h"

namespace twinkle::server {

void PutOff::note(const std::string& run_id, int64_t seq_id, GiveUp give_up) {
  const Run* const run = runs_.find(run_id);
  if (!run || seq_id < 1 || run->came(seq_id) || seq_id - run->first_missing > Runs::kMaxAhead)
    return;
  const Number number{run_id, seq_id};
  const auto [it, is_new] = told_.try_emplace(number);
  it->second = {loop_.now(), std::move(give_up)};
  if (is_new) wait(number, kGivenUpAfter);
}

void PutOff::wait(const Number& number, std::chrono::milliseconds time) {
  loop_.after(time, [this, number] { check(number); });
}

void PutOff::check(const Number& number) {
  const auto& [run_id, seq_id] = number;
  const Run& run = *runs_.find(run_id);
  if (run.came(seq_id) || run.finished) {
    told_.erase(number);
    return;
  }
  const Told& told = told_.at(number);
  const auto rest = told.last + kGivenUpAfter - loop_.now();
  if (rest.count() > 0) return wait(number, rest);
  wait(number, kAgain);
  if (run.waiting.upper_bound(seq_id) != run.waiting.end()) told.give_up(run);
}

}  // namespace twinkle::server
