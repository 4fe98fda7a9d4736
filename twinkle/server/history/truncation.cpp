#include "twinkle/server/history/truncation.h"

#include <algorithm>
#include <utility>

namespace twinkle::server {
namespace {

constexpr std::chrono::seconds kPause{1};

}  // namespace

Truncation::Truncation(Loop& loop, History& history, Snapshots& snapshots, Runs& runs,
                       TruncationOptions options, std::function<std::optional<State>()> take)
    : loop_(loop),
      history_(history),
      snapshots_(snapshots),
      runs_(runs),
      options_(options),
      take_(std::move(take)) {
  history_.on_done([this] { go_on(); });
  snapshots_.on_change([this] { wait_for_saves(); });
}

// Behind each record.
void Truncation::go_on() {
  if (!history_.keeps()) return;
  if (stage_ == Stage::kGrowing) begin_segment();
  if (stage_ == Stage::kSegment) take();
}

void Truncation::begin_segment() {
  if (history_.bytes() - bytes_in_state_ < options_.journal_bytes) return;
  segment_ = history_.last_segment();
  history_.begin_segment();
  stage_ = Stage::kSegment;
}

void Truncation::take() {
  const uint64_t segment = history_.last_segment();
  if (segment == segment_ || history_.sequence() + 1 < segment) return;
  state_ = take_();
  if (!state_) return;  // behind the next record, perhaps
  bytes_ = history_.bytes();
  needed_.clear();
  stage_ = Stage::kSaving;
  if (!std::ranges::all_of(state_->runs, [this](const RunState& run) { return save(run); }))
    return end(false);
  wait_for_saves();
}

// What the state says of a run needs a snapshot behind all that has ended of it. False: there will
// be none now.
bool Truncation::save(const RunState& run) {
  if (!run.is_made) return true;
  const Run& now = *runs_.find(run.id);
  const int64_t number = std::min(now.given, run.next - 1);
  if (snapshots_.last(run.id) >= number) return true;
  needed_[run.id] = number;
  return snapshots_.saving(run.id) >= number || snapshots_.take(now);
}

void Truncation::wait_for_saves() {
  if (stage_ != Stage::kSaving || !history_.keeps()) return;
  for (const auto& [run, number] : needed_) {
    if (snapshots_.last(run) >= number) continue;
    if (snapshots_.saving(run) < number && !snapshots_.is_put_off(run)) return end(false);
  }
  const bool are_there = std::ranges::all_of(
      needed_, [this](const auto& n) { return snapshots_.last(n.first) >= n.second; });
  if (are_there) write();
}

void Truncation::write() {
  stage_ = Stage::kWriting;
  history_.replace_by(*std::exchange(state_, {}),
                      [this](const std::exception_ptr& error) { end(!error); });
}

void Truncation::end(bool is_taken) {
  ++(is_taken ? num_taken_ : num_given_up_);
  state_.reset();
  if (is_taken) bytes_in_state_ = bytes_;
  stage_ = is_taken ? Stage::kGrowing : Stage::kPause;
  if (!is_taken) loop_.after(kPause, [this] { stage_ = Stage::kGrowing; });
}

}  // namespace twinkle::server
