#include "twinkle/engine/schedule/scheduler.h"

#include <algorithm>
#include <functional>
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
  it->second.num_tokens = 0;
  it->second.known = false;
  if (it->second.entries.empty()) tenants_.erase(it);
}

Share Scheduler::share(const std::string& tenant) const {
  const auto it = tenants_.find(tenant);
  return it == tenants_.end() ? Share{} : it->second.share;
}

void Scheduler::push(const std::string& name, int64_t id, std::vector<int64_t> tokens, bool joins) {
  Entry entry{id, std::move(tokens), 0, 0, joins};
  for (const int64_t n : entry.tokens) {
    entry.total += n;
    entry.longest = std::max(entry.longest, n);
  }
  const auto at = tenant_of_.emplace(id, name).first;
  Tenant* tenant = nullptr;
  try {
    tenant = &tenants_[name];
    tenant->entries.push_back(std::move(entry));
  } catch (...) {
    tenant_of_.erase(at);
    if (tenant && tenant->entries.empty() && !tenant->known) tenants_.erase(name);
    throw;
  }
  if (tenant->entries.size() > 1) return;
  tenant->account.last_turn = ++turn_;
  tenant->account.credit = std::min(0.0, tenant->account.credit);
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
    Entry* entry = find(slice.id);
    if (!entry) continue;
    entry->next = slice.first;
    Tenant& tenant = tenants_.at(tenant_of_.at(slice.id));
    tenant.num_tokens -= slice.num_tokens;
    tenant.account.credit += static_cast<double>(slice.num_tokens);
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

bool Scheduler::fits(const Tenant& tenant, const Filling& batch) {
  const Entry& entry = tenant.entries[tenant.at];
  if (batch.slices.empty()) return true;  // even one that is longer than the budget
  const bool mine = batch.slices.front().id == entry.id;
  if ((batch.closed || entry.alone) && !mine) return false;
  return unit(tenant) <= batch.room;
}

// True: the tenant has more to run in this batch.
bool Scheduler::goes_on(Tenant& tenant, const Filling& batch) {
  const Entry& entry = tenant.entries[tenant.at];
  if (entry.next < entry.tokens.size()) return true;
  if (!batch.begin || tenant.at + 1 == tenant.entries.size()) return false;
  const Entry& after = tenant.entries[tenant.at + 1];
  if (!entry.joins || !after.joins || entry.alone || after.alone || after.tokens.empty())
    return false;
  ++tenant.at;
  tenant.slice.reset();
  return true;
}

void Scheduler::take(Tenant& tenant, Filling& batch) {
  Entry& entry = tenant.entries[tenant.at];
  const int64_t n = unit(tenant);
  if (!tenant.slice) {
    tenant.slice = batch.slices.size();
    batch.slices.push_back({entry.id, entry.next, entry.next});
  }
  Slice& slice = batch.slices[*tenant.slice];
  slice.last = entry.next = tenant.at == 0 ? entry.next + 1 : entry.tokens.size();
  slice.num_tokens += n;
  entry.begun = true;
  batch.room -= n;
  batch.closed = batch.closed || entry.alone;
  tenant.num_tokens += n;
  tenant.account.last_turn = ++turn_;
}

// Operations that join enter whole: they may begin when the tenant can pay for all but one of
// their sequences. Without room they begin a batch, sequence by sequence.
Claim Scheduler::claim(Tenant& tenant, const Filling& batch) {
  const Entry& entry = tenant.entries[tenant.at];
  const bool joins = tenant.at > 0 && fits(tenant, batch);
  const int64_t n = joins ? entry.total : entry.tokens[entry.next];
  return {&tenant.account, static_cast<double>(n),
          static_cast<double>(joins ? n - entry.longest : n)};
}

// Fills the room that higher priorities left with sequences of one priority's tenants.
void Scheduler::fill(std::span<Tenant* const> tenants, Filling& batch) {
  std::vector<Tenant*> here, able;
  std::vector<Account*> accounts;
  std::vector<Claim> claims;
  for (Tenant* t : tenants) {
    if (can_run(*t, batch.begin) && fits(*t, batch)) here.push_back(t);
  }
  for (Tenant* t : here) accounts.push_back(&t->account);
  able.reserve(here.size());
  claims.reserve(here.size());
  const auto choose = [&](auto&& may) -> std::optional<Claim> {
    able.clear();
    claims.clear();
    for (Tenant* t : here) {
      const Claim mine = claim(*t, batch);
      if (!may(*t, mine)) continue;
      able.push_back(t);
      claims.push_back(mine);
    }
    if (claims.empty()) return std::nullopt;
    const size_t first = next_of(claims);
    std::swap(able[0], able[first]);
    return claims[first];
  };
  while (true) {
    std::optional<Claim> next =
        choose([&](const Tenant& t, const Claim&) { return fits(t, batch) || !batch.closed; });
    if (!next) return;
    if (fits(*able[0], batch)) {
      charge(accounts, *next);
    } else {
      // Its sequence begins the next batch. The others use the room on credit: up to that length.
      const double most = next->cost;
      next = choose([&](const Tenant& t, const Claim& c) {
        return fits(t, batch) && c.account->credit - c.cost >= -most;
      });
      if (!next) return;
      next->account->credit -= next->cost;
    }
    Tenant& taken = *able[0];
    take(taken, batch);
    if (goes_on(taken, batch)) continue;
    std::erase(here, &taken);
    std::erase(accounts, &taken.account);
  }
}

std::vector<Slice> Scheduler::next_batch(bool begin) {
  std::map<int32_t, std::vector<Tenant*>, std::greater<>> levels;
  for (auto& [name, tenant] : tenants_) {
    tenant.at = 0;
    tenant.slice.reset();
    levels[tenant.share.priority].push_back(&tenant);
  }
  Filling batch{{}, budget_, begin};
  batch.slices.reserve(std::min(tenant_of_.size(), static_cast<size_t>(budget_)));
  try {
    for (const auto& [priority, tenants] : levels) fill(tenants, batch);
  } catch (...) {
    take_back(batch.slices);
    throw;
  }
  return std::move(batch.slices);
}

int64_t Scheduler::num_tokens(const std::string& tenant) const {
  const auto it = tenants_.find(tenant);
  return it == tenants_.end() ? 0 : it->second.num_tokens;
}

}  // namespace twinkle::engine
