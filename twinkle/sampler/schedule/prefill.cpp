// Whose prompts a forward computes: the part of Schedule that knows owners.
#include <algorithm>
#include <functional>
#include <tuple>

#include "twinkle/sampler/schedule/schedule.h"

namespace twinkle::sampler {
namespace {

// How far a sequence that waits for `leader` takes over what that one computes.
int64_t common_end(const Sequence& s, const Sequence& leader) {
  if (leader.tokens == s.tokens) return leader.size();
  const auto [mine, its] = std::ranges::mismatch(s.tokens, leader.tokens);
  return (mine - s.tokens.begin()) / kPageTokens * kPageTokens;
}

}  // namespace

// The owners of this plan, what they hold, and who of theirs waits.
void Schedule::meet() {
  std::map<std::string, Owner> owners;
  for (const auto& s : sequences_) {
    attach(*s);
    s->next = s->computed;
    s->may_run = s->running;
    const Request& request = s->job->request;
    auto it = owners.find(request.owner);
    if (it == owners.end()) {
      it = owners.try_emplace(request.owner).first;
      const auto known = owners_.find(request.owner);
      if (known != owners_.end()) it->second.account = known->second.account;
    }
    Owner& owner = it->second;
    owner.account.weight = request.weight;
    owner.priority = request.priority;
    if (s->running)
      owner.held += std::ssize(s->blocks);
    else
      owner.newcomers.push_back(s.get());
  }
  owners_ = std::move(owners);
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

// Newcomers begin as long as there are pages for the whole of them and one more for each that runs.
// The first that has no room lets nobody pass: who holds less, and needs more, gets what comes
// free.
void Schedule::let_begin() {
  std::vector<Sequence*> computing;
  int64_t num_running = 0, num_free = pool_.num_free();
  for (const auto& s : sequences_) {
    num_running += s->running;
    if (s->running && s->left() > 1) add_prompt(owners_.at(s->job->request.owner), *s, computing);
  }
  const auto order = [](const auto& entry) {
    const Owner& o = entry.second;
    const Job* oldest = o.newcomers.empty() ? nullptr : o.newcomers.front()->job;
    return std::tuple(!oldest, -o.priority, static_cast<double>(o.held) / o.account.weight,
                      oldest ? oldest->ticket : 0);
  };
  for (int64_t begun = 0; begun < options_.max_batch;) {
    const auto it = std::ranges::min_element(owners_, {}, order);
    if (it == owners_.end() || it->second.newcomers.empty()) return;
    Owner& owner = it->second;
    Sequence& s = *owner.newcomers.front();
    const int64_t grown = pages_for(s.size()) - std::ssize(s.blocks);
    s.may_run = num_running == 0 || num_free >= grown + num_running;
    const bool waits = leader_of(s, computing) != nullptr;
    if (!s.may_run && !waits) break;
    owner.newcomers.pop_front();
    if (!add_prompt(owner, s, computing)) continue;
    ++begun;
    ++num_running;
    num_free -= grown;
    owner.held += grown;
  }
  for (auto& [name, owner] : owners_) {
    for (Sequence* s : owner.newcomers) s->release();  // of pages that only they keep
  }
}

void Schedule::prefill(Work& work) {
  std::map<int32_t, std::vector<Owner*>, std::greater<>> levels;
  for (auto& [name, owner] : owners_) levels[owner.priority].push_back(&owner);
  int64_t budget = options_.prefill_tokens;
  for (const auto& [priority, owners] : levels) share_out(owners, budget, work);
}

// Owners of one priority take turns of a page's tokens each.
void Schedule::share_out(const std::vector<Owner*>& owners, int64_t& budget, Work& work) {
  std::vector<Account*> accounts;
  for (Owner* owner : owners) {
    owner->account.most = owner->prompts.empty() ? 0 : static_cast<double>(options_.prefill_tokens);
    accounts.push_back(&owner->account);
  }
  balance(accounts);
  while (budget > 0) {
    std::vector<Claim> claims;
    std::vector<Owner*> claimants;
    for (Owner* owner : owners) {
      std::erase_if(owner->prompts, [](const Prompt& p) { return p.sequence->next >= p.end; });
      if (owner->prompts.empty()) continue;
      const Prompt& p = owner->prompts.front();
      const int64_t n = std::min({kPageTokens, p.end - p.sequence->next, budget});
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
    charge(accounts, *claims[first].account, claims[first].cost);
  }
}

}  // namespace twinkle::sampler
