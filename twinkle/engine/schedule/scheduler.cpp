#include "twinkle/engine/schedule/scheduler.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace twinkle::engine {

void Scheduler::set_share(const std::string& tenant, Share share) {
  Tenant& to = tenants_[tenant];
  to.share = share;
  to.account.weight = share.weight;
  to.known = true;
}

void Scheduler::forget(const std::string& tenant) {
  const auto it = tenants_.find(tenant);
  if (it == tenants_.end()) return;
  it->second.share = {};
  it->second.account = {};
  it->second.saved = 0;
  it->second.was_here = false;
  it->second.num_tokens = 0;
  it->second.window.clear();
  it->second.known = false;
  if (it->second.entries.empty()) tenants_.erase(it);
}

Share Scheduler::share(const std::string& tenant) const {
  const auto it = tenants_.find(tenant);
  return it == tenants_.end() ? Share{} : it->second.share;
}

void Scheduler::push(const std::string& tenant, int64_t id, std::vector<int64_t> tokens,
                     bool joins) {
  Tenant& to = tenants_[tenant];
  if (to.entries.empty()) {
    to.account.last_turn = ++turn_;
    to.saved = 0;
  }
  const int64_t total = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  to.entries.push_back({id, std::move(tokens), total, joins});
  tenant_of_.emplace(id, tenant);
}

bool Scheduler::remove(int64_t id) {
  const auto it = tenant_of_.find(id);
  if (it == tenant_of_.end()) return false;
  const std::string name = std::move(it->second);
  Tenant& tenant = tenants_.at(name);
  tenant_of_.erase(it);
  std::erase_if(tenant.entries, [id](const Entry& e) { return e.id == id; });
  if (tenant.entries.empty() && !tenant.known) tenants_.erase(name);
  return true;
}

Scheduler::Entry* Scheduler::find(int64_t id) {
  const auto it = tenant_of_.find(id);
  if (it == tenant_of_.end()) return nullptr;
  for (Entry& entry : tenants_.at(it->second).entries) {
    if (entry.id == id) return &entry;
  }
  return nullptr;
}

void Scheduler::rewind(int64_t id, bool alone) {
  if (Entry* entry = find(id)) {
    entry->next = 0;
    entry->alone = entry->alone || alone;
  }
}

void Scheduler::take_back(std::span<const Slice> slices) {
  for (const Slice& slice : slices) {
    if (Entry* entry = find(slice.id)) entry->next = slice.first;
  }
}

std::vector<int64_t> Scheduler::heads() const {
  std::vector<int64_t> out;
  for (const auto& [name, tenant] : tenants_) {
    if (!tenant.entries.empty() && tenant.entries.front().tokens.empty())
      out.push_back(tenant.entries.front().id);
  }
  std::sort(out.begin(), out.end());
  return out;
}

bool Scheduler::can_run(const Tenant& tenant, bool begin) {
  if (tenant.entries.empty()) return false;
  const Entry& entry = tenant.entries.front();
  return entry.next < entry.tokens.size() && (begin || entry.begun);
}

bool Scheduler::has_batch(bool begin) const {
  return std::any_of(tenants_.begin(), tenants_.end(),
                     [&](const auto& t) { return can_run(t.second, begin); });
}

bool Scheduler::others_have_begun(const std::string& tenant) const {
  return std::any_of(tenants_.begin(), tenants_.end(), [&](const auto& t) {
    return t.first != tenant && !t.second.entries.empty() && t.second.entries.front().begun;
  });
}

// Tokens of what the tenant would run next: one sequence, or all of an operation that joins.
int64_t Scheduler::unit(const Tenant& tenant) {
  const Entry& entry = tenant.entries[tenant.at];
  return tenant.at == 0 ? entry.tokens[entry.next] : entry.total;
}

// Tokens of the operations that it can run before something else has to come.
int64_t Scheduler::at_once(const Tenant& tenant) {
  int64_t out = 0;
  for (const Entry& entry : tenant.entries) {
    if (entry.tokens.empty() || (out > 0 && !entry.joins)) break;
    out += entry.total;
    if (!entry.joins) break;
  }
  return out;
}

bool Scheduler::fits(const Tenant& tenant, const Filling& batch) {
  const Entry& entry = tenant.entries[tenant.at];
  if (batch.slices.empty()) return true;  // even one that is longer than the budget
  const bool mine = batch.slices.front().id == entry.id;
  if ((batch.closed || entry.alone) && !mine) return false;
  return unit(tenant) <= batch.room;
}

// Whether the tenant has more to run in this batch.
bool Scheduler::goes_on(Tenant& tenant, const Filling& batch) {
  const Entry& entry = tenant.entries[tenant.at];
  if (entry.next < entry.tokens.size()) return true;
  if (!batch.begin || tenant.at + 1 == tenant.entries.size()) return false;
  const Entry& after = tenant.entries[tenant.at + 1];
  if (!entry.joins || !after.joins || entry.alone || after.alone || after.tokens.empty())
    return false;
  ++tenant.at;
  return true;
}

void Scheduler::take(Tenant& tenant, Filling& batch) {
  Entry& entry = tenant.entries[tenant.at];
  const int64_t n = unit(tenant);
  auto slice = std::find_if(batch.slices.begin(), batch.slices.end(),
                            [&](const Slice& s) { return s.id == entry.id; });
  if (slice == batch.slices.end())
    slice = batch.slices.insert(slice, Slice{entry.id, entry.next, entry.next});
  entry.next = tenant.at == 0 ? entry.next + 1 : entry.tokens.size();
  slice->last = entry.next;
  slice->num_tokens += n;
  entry.begun = true;
  batch.room -= n;
  batch.closed = batch.closed || entry.alone;
  tenant.spent += std::max<int64_t>(0, n - tenant.saved);
  tenant.saved = 0;
  tenant.num_tokens += n;
  tenant.account.last_turn = ++turn_;
}

// Operations that join come whole: they may begin when they leave no more to be paid than one of
// their sequences would, or a tenant would be served for many batches at once, and then not at all.
Claim Scheduler::claim(Tenant& tenant, double share) {
  const Entry& entry = tenant.entries[tenant.at];
  const int64_t n = unit(tenant);
  const int64_t longest = *std::ranges::max_element(entry.tokens);
  const int64_t from = tenant.at == 0 ? 0 : n - longest;
  return {
      &tenant.account, static_cast<double>(std::max<int64_t>(0, n - tenant.saved)),
      static_cast<double>(from),
      tenant.window.spare(share, static_cast<double>(tenant.spent), static_cast<double>(longest))};
}

// Whether somebody who is owed something is there whose next sequence needs the next batch.
bool Scheduler::waits_for_room(const std::vector<Tenant*>& tenants, const Filling& batch) {
  return std::ranges::any_of(
      tenants, [&](const Tenant* t) { return t->account.credit > 0 && !fits(*t, batch); });
}

// Whether somebody else than `other` is owed something.
bool Scheduler::is_owed(const std::vector<Tenant*>& tenants, const Tenant& other) {
  return std::ranges::any_of(tenants,
                             [&](const Tenant* t) { return t != &other && t->account.credit > 0; });
}

// Tenants of one priority as a batch is formed.
struct Scheduler::Round {
  std::vector<Account*> accounts;  // of all
  std::vector<Tenant*> runnable;
  std::set<Tenant*> saving;  // of those, whose sequence is too long for what others leave
  double weight = 0;         // of all that earn

  double share(const Tenant& t, int64_t tokens) const {
    return t.account.weight / weight * static_cast<double>(tokens);
  }
};

Scheduler::Round Scheduler::meet(const std::vector<Tenant*>& tenants, const Filling& batch) const {
  Round out;
  std::vector<Tenant*> missing;  // this one batch
  for (Tenant* t : tenants) {
    out.accounts.push_back(&t->account);
    t->account.most = 0;
    const bool here = can_run(*t, batch.begin), was_here = std::exchange(t->was_here, here);
    if (!here && !was_here) continue;
    out.weight += t->account.weight;
    (here ? out.runnable : missing).push_back(t);
  }
  const auto whole = static_cast<double>(budget_);
  for (Tenant* t : missing) {
    Account& a = t->account;
    a.most = std::min(whole, std::max(0.0, a.credit) + a.weight / out.weight * whole);
  }
  for (Tenant* t : out.runnable) {
    t->spent = 0;
    t->account.most = static_cast<double>(std::max(std::min(budget_, at_once(*t)), unit(*t)));
    if (batch.left_over && !fits(*t, batch)) out.saving.insert(t);
  }
  balance(out.accounts);
  return out;
}

void Scheduler::fill(const std::vector<Tenant*>& tenants, Filling& batch) {
  Round round = meet(tenants, batch);
  if (batch.closed) return;
  const std::vector<Tenant*> runnable = round.runnable;
  const int64_t room = batch.room;
  choose(round, batch);
  for (Tenant* t : runnable) {
    t->window.add(round.share(*t, room - batch.room), static_cast<double>(t->spent));
  }
}

void Scheduler::choose(Round& round, Filling& batch) {
  const bool first_to_choose = !batch.left_over;
  batch.left_over = batch.left_over || !round.runnable.empty();
  while (true) {
    std::vector<Tenant*> able;
    std::vector<Claim> claims;
    for (Tenant* t : round.runnable) {
      const bool saves = round.saving.contains(t) && batch.room > 0 && t->saved < unit(*t);
      if (!saves && !fits(*t, batch)) continue;
      able.push_back(t);
      claims.push_back(claim(*t, round.share(*t, budget_)));
    }
    if (claims.empty()) return;
    const size_t first = next_of(claims);
    Tenant& next = *able[first];
    if (round.saving.contains(&next)) {
      const int64_t n = std::min(batch.room, unit(next) - next.saved);
      next.saved += n;
      next.spent += n;
      batch.room -= n;
      charge(round.accounts, next.account, static_cast<double>(n));
      std::erase(round.runnable, &next);
      continue;
    }
    const double share = round.share(next, budget_);
    if (first_to_choose && -next.account.credit > 2 * share &&
        waits_for_room(round.runnable, batch)) {
      if (claims[first].spare == Window::kMany) return;  // all others are further ahead
      std::erase(round.runnable, &next);
      continue;
    }
    take(next, batch);
    charge(round.accounts, next.account, claims[first].cost);
    // Room that nobody who is owed could use is not paid for with many batches without any.
    if (first_to_choose && !is_owed(round.runnable, next))
      next.account.credit = std::max(next.account.credit, -2 * share);
    if (!goes_on(next, batch)) std::erase(round.runnable, &next);
  }
}

// Who has paid in full for a sequence that it can't run beside those of higher priorities.
Scheduler::Tenant* Scheduler::that_saved(const Levels& levels, bool begin) {
  bool after_others = false;
  for (const auto& [priority, tenants] : levels) {
    for (Tenant* t : tenants) {
      if (after_others && can_run(*t, begin) && t->saved >= unit(*t)) return t;
    }
    after_others = after_others || std::ranges::any_of(tenants, [&](const Tenant* t) {
                     return can_run(*t, begin);
                   });
  }
  return nullptr;
}

std::vector<Slice> Scheduler::next_batch(bool begin) {
  Levels levels;
  for (auto& [name, tenant] : tenants_) {
    tenant.at = 0;
    levels[tenant.share.priority].push_back(&tenant);
  }
  Filling batch{{}, budget_, begin};
  Tenant* first = that_saved(levels, begin);
  if (first) take(*first, batch);
  for (const auto& [priority, tenants] : levels) {
    // Room beside it that higher priorities can't use was not left by them.
    if (first && priority <= first->share.priority) break;
    fill(tenants, batch);
  }
  return std::move(batch.slices);
}

std::map<std::string, Scheduler::Load> Scheduler::load() const {
  std::map<std::string, Load> out;
  for (const auto& [name, tenant] : tenants_)
    out[name] = {static_cast<int64_t>(tenant.entries.size()), tenant.num_tokens};
  return out;
}

}  // namespace twinkle::engine
