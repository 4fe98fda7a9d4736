// Places and pages that one owner's sequences give to another's: the part of Schedule that keeps a
// tenant with many samples from holding up the others.
#include <algorithm>
#include <set>
#include <tuple>

#include "twinkle/sampler/schedule/schedule.h"

namespace twinkle::sampler {
namespace {

// Pages that nobody has without it.
int64_t num_own_pages(const Sequence& s) {
  return std::ranges::count_if(s.blocks, [](const Block& b) { return !b.shared(); });
}

}  // namespace

// Priorities are strict. Among equals an owner without a place gets one of any that has several,
// and takes turns with those that have one each; an owner that has some gets more of who has more
// for its weight, in places and in pages, as long as it does not come to have more itself.
bool Schedule::may_give(const Sequence& s, const Owner& to) const {
  const Owner& from = owners_.at(s.job->request.owner);
  if (&from == &to || s.just_came_back()) return false;
  if (from.priority != to.priority) return from.priority < to.priority;
  if (to.places == 0)
    return from.places > 1 || to.gave_way < 0 || num_steps_ - to.gave_way >= kTurnTokens;
  const auto share = [](int64_t of, const Owner& owner) {
    return static_cast<double>(of) / owner.account.weight;
  };
  return share(to.places + 1, to) <= share(from.places - 1, from) &&
         share(to.held, to) < share(from.held, from);
}

// The newest of the owner that has most; of equals, of the one whose turn has been longest. Null:
// nobody gives way.
Sequence* Schedule::giver_to(const Owner& owner, const Round& round) {
  Sequence* out = nullptr;
  std::tuple<int32_t, double, int64_t> most;
  std::set<const Owner*> seen;
  for (auto it = sequences_.rbegin(); it != sequences_.rend(); ++it) {
    Sequence& s = **it;
    if (!s.has_place() || !may_give(s, owner)) continue;
    if (std::ranges::find(round.giving, &s) != round.giving.end()) continue;
    const Owner& from = owners_.at(s.job->request.owner);
    if (!seen.insert(&from).second) continue;
    const std::tuple has(-from.priority, static_cast<double>(from.places) / from.account.weight,
                         s.size() - s.placed_size);
    if (out && has <= most) continue;
    out = &s;
    most = has;
  }
  return out;
}

// sign 1: of what the round and the owner count; -1: back.
void Schedule::take_from(Sequence& giver, Round& round, int64_t sign) {
  Owner& owner = owners_.at(giver.job->request.owner);
  owner.places -= sign * giver.width();
  owner.held -= sign * std::ssize(giver.blocks);
  round.placed -= sign;
  round.width -= sign * giver.width();
  round.freed += sign * num_own_pages(giver);
}

void Schedule::give_way(Sequence& giver, Round& round) {
  Owner& owner = owners_.at(giver.job->request.owner);
  giver.release();
  giver.may_run = false;
  giver.gave_way = num_steps_;
  if (owner.places == 0) owner.gave_way = num_steps_;
  std::erase(round.computing, &giver);
  for (auto& [name, o] : owners_)
    std::erase_if(o.prompts, [&](const Prompt& p) { return p.sequence == &giver; });
  const auto order = [](const Sequence* s) { return std::tuple(s->job->ticket, s->sample); };
  owner.again.insert(std::ranges::upper_bound(owner.again, order(&giver), {}, order), &giver);
}

// False: the newcomer waits, and nobody has given way.
bool Schedule::make_room(Owner& owner, Sequence& s, Round& round) {
  // A prompt of many samples leaves places until it has them.
  const bool has_claim = round.width < options_.max_sequences || giver_to(owner, round);
  if (!has_claim) return false;
  if (!s.running) attach(s);
  s.next = s.computed;
  const int64_t grown = pages_for(s.size()) - std::ssize(s.blocks);
  const bool follows = leader_of(s, round.computing) != nullptr;
  const auto fits = [&] {
    return round.placed < options_.max_sequences &&
           (round.placed == 0 || follows ||
            pool_.num_free() + round.freed - round.reserved >= grown + round.placed);
  };
  while (!fits()) {
    Sequence* const giver = giver_to(owner, round);
    if (!giver) break;
    take_from(*giver, round, 1);
    round.giving.push_back(giver);
  }
  const bool has_room = fits();
  for (Sequence* giver : round.giving) {
    if (has_room)
      give_way(*giver, round);
    else
      take_from(*giver, round, -1);
  }
  round.giving.clear();
  round.freed = 0;
  if (!has_room && !s.running) s.release();
  return has_room;
}

// The sequence that gives its pages and state to `to` when none are free. It is not in the plan,
// and has no place or is younger, so that the oldest always goes on. One without a place comes
// first, then one of the owner that has most, then the youngest. Null: there is none.
Sequence* Schedule::giver_of_pages(const Sequence& to) {
  Sequence* out = nullptr;
  std::tuple<bool, bool, int32_t, double> most;
  bool is_younger = true;
  for (auto it = sequences_.rbegin(); it != sequences_.rend(); ++it) {
    Sequence& s = **it;
    if (&s == &to) {
      is_younger = false;
      continue;
    }
    if (s.planned() || (s.blocks.empty() && !s.state) || (s.has_place() && !is_younger)) continue;
    const Owner& from = owners_.at(s.job->request.owner);
    const std::tuple has(!s.has_place(), !s.just_came_back(), -from.priority,
                         static_cast<double>(from.held) / from.account.weight);
    if (out && has <= most) continue;
    out = &s;
    most = has;
  }
  return out;
}

}  // namespace twinkle::sampler
