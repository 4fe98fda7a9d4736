// Prompts of a forward, shared between owners: the part of Schedule that knows owners.
#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "twinkle/sampler/schedule/schedule.h"

namespace twinkle::sampler {
namespace {

// The tokens of `leader` that a sequence which waits for it takes over.
int64_t common_end(const Sequence& s, const Sequence& leader) {
  if (leader.tokens == s.tokens) return leader.size();
  const auto [mine, its] = std::ranges::mismatch(s.tokens, leader.tokens);
  return (mine - s.tokens.begin()) / kPageTokens * kPageTokens;
}

}  // namespace

// The owners of this plan, what they hold, and who of theirs waits.
void Schedule::admit() {
  while (!arrived_.empty()) {
    Job& job = *arrived_.front()->job;
    const Request& request = job.request;
    Owner& owner = owners_[request.owner];
    // A version of an adapter is only its tenant's.
    if (request.version != 0 && request.slot < 0 && !options_.share_prefixes)
      job.sharer = sharers_.try_emplace(request.owner, sharers_.size() + 1).first->second;
    arrived_.front()->linked_id = arrived_.front()->root();
    owner.waiting.push_back(std::move(arrived_.front()));
    arrived_.pop_front();
    owner.account.weight = request.weight;
    owner.priority = request.priority;
  }
  for (auto& [name, owner] : owners_) {
    owner.here = !owner.waiting.empty();
    owner.held = owner.places = 0;
    owner.again.clear();
    owner.prompts.clear();
  }
  for (const auto& s : sequences_) {
    Owner& owner = owners_.at(s->job->request.owner);
    owner.here = true;
    if (s->running) {
      attach(*s);
      owner.held += std::ssize(s->blocks);
    }
    s->next = s->computed;
    s->may_run = s->has_place();
    if (s->may_run)
      owner.places += s->width();
    else
      owner.again.push_back(s.get());
  }
  std::erase_if(owners_, [](const auto& entry) { return !entry.second.here; });
}

// False: others compute what it needs next, and it waits for them.
bool Schedule::add_prompt(Owner& owner, Sequence& s, std::vector<Sequence*>& computing) {
  if (Sequence* leader = leader_of(s, computing)) {
    s.may_run = false;
    owner.prompts.push_back({leader, common_end(s, *leader)});
    return false;
  }
  computing.push_back(&s);
  if (s.left() > 1) owner.prompts.push_back({&s, s.size()});
  return true;
}

// The owner's newcomer is among those that began.
void Schedule::enter(Owner& owner) {
  owner.entered = ++num_entered_;
  if (!owner.again.empty()) {
    Sequence& s = *owner.again.front();
    if (std::exchange(s.beyond, false)) s.placed_size = s.size();
    return owner.again.pop_front();
  }
  const int64_t ticket = owner.waiting.front()->job->ticket;
  const auto at = std::ranges::upper_bound(sequences_, ticket, {},
                                           [](const auto& s) { return s->job->ticket; });
  sequences_.insert(at, std::move(owner.waiting.front()));
  owner.waiting.pop_front();
  --num_waiting_;
}

// Newcomers begin as long as there are places, and pages for the whole of them and one more for
// each that has a place (make_room). None passes the first that has no room: an owner that holds
// less, and needs more, gets the pages that come free. When all that ran has ended at once nobody
// holds anything: then owners take turns, or one whose requests are older would have all of them.
void Schedule::begin_round() {
  Round round;
  for (const auto& s : sequences_) {
    if (!s->may_run) continue;
    ++round.placed;
    round.width += s->width();
    if (s->left() > 1) add_prompt(owners_.at(s->job->request.owner), *s, round.computing);
  }
  const auto order = [](const auto& entry) {
    const Owner& o = entry.second;
    const Sequence* oldest = o.newcomer();
    return std::tuple(!oldest, -o.priority, static_cast<double>(o.held) / o.account.weight,
                      o.entered, oldest ? oldest->job->ticket : 0);
  };
  for (;;) {
    const auto it = std::ranges::min_element(owners_, {}, order);
    if (it == owners_.end() || !it->second.newcomer()) break;
    Owner& owner = it->second;
    Sequence& s = *owner.newcomer();
    if (!make_room(owner, s, round)) break;
    const int64_t grown = pages_for(s.size()) - std::ssize(s.blocks);
    enter(owner);
    s.may_run = true;
    round.width += s.width();
    owner.places += s.width();
    if (!add_prompt(owner, s, round.computing)) continue;
    ++round.placed;
    round.reserved += grown;
    owner.held += grown;
  }
  for (auto& [name, owner] : owners_) {
    for (Sequence* s : owner.again)
      if (!s->running) s->release();  // frees pages that only they keep
  }
}

void Schedule::prefill(Work& work) {
  std::map<int32_t, std::vector<Owner*>, std::greater<>> levels;
  for (auto& [name, owner] : owners_) levels[owner.priority].push_back(&owner);
  int64_t budget = options_.prefill_tokens;
  for (const auto& [priority, owners] : levels) distribute(owners, budget, work);
}

// Owners of one priority take turns of a page's tokens each.
void Schedule::distribute(const std::vector<Owner*>& owners, int64_t& budget, Work& work) {
  for (Owner* owner : owners) {
    if (owner->prompts.empty()) owner->account.credit = 0;
  }
  while (budget > 0) {
    std::vector<Claim> claims;
    std::vector<Owner*> claimants;
    for (Owner* owner : owners) {
      std::erase_if(owner->prompts, [](const Prompt& p) { return p.sequence->next >= end_of(p); });
      if (owner->prompts.empty()) continue;
      const Prompt& p = owner->prompts.front();
      const int64_t n = std::min({kPageTokens, end_of(p) - p.sequence->next, budget});
      claims.push_back({&owner->account, static_cast<double>(n)});
      claimants.push_back(owner);
    }
    if (claims.empty()) return;
    const size_t first = next_of(claims);
    Sequence& s = *claimants[first]->prompts.front().sequence;
    const auto n = static_cast<int64_t>(claims[first].cost);
    if (!extend(s, s.next + n, work)) {
      for (Owner* o : owners) std::erase_if(o->prompts, [&](auto& p) { return p.sequence == &s; });
      continue;
    }
    budget -= n;
    claims[first].account->last_turn = ++turn_;
    charge(claims, first);
  }
}

}  // namespace twinkle::sampler
