#include "twinkle/engine/schedule/scheduler.h"

#include <algorithm>
#include <numeric>

namespace twinkle::engine {

void Scheduler::set_share(const std::string& tenant, Share share) {
  Tenant& to = tenants_[tenant];
  to.share = share;
  to.known = true;
}

void Scheduler::forget(const std::string& tenant) {
  const auto it = tenants_.find(tenant);
  if (it == tenants_.end()) return;
  it->second.share = {};
  it->second.num_tokens = 0;
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
  if (to.entries.empty()) to.last_turn = ++turn_;
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
  if (tenant.entries.empty() || tenant.entries.front().tokens.empty()) tenant.credit = 0;
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
  entry.begun = true;
  batch.room -= n;
  batch.closed = batch.closed || entry.alone;
  tenant.num_tokens += n;
  tenant.last_turn = ++turn_;
  tenant.credit = std::max(0.0, tenant.credit - static_cast<double>(n));
}

// Tenants of one priority. Each has sequences to run.
void Scheduler::fill(std::vector<Tenant*> tenants, Filling& batch) {
  // What is missing until the tenant can pay for its next sequence, in tokens per weight.
  const auto missing = [](const Tenant& t) {
    return std::max(0.0, static_cast<double>(unit(t)) - t.credit) / t.share.weight;
  };
  while (true) {
    Tenant* first = nullptr;
    for (Tenant* t : tenants) {
      if (!fits(*t, batch)) continue;
      if (!first || missing(*t) < missing(*first) ||
          (missing(*t) == missing(*first) && t->last_turn < first->last_turn))
        first = t;
    }
    if (!first) return;
    // One whose sequence does not fit gets its credit all the same, and is first in the next batch.
    const double flow = missing(*first);
    for (Tenant* t : tenants) {
      const auto most = static_cast<double>(std::max(budget_, unit(*t)));
      t->credit = std::min(most, t->credit + flow * t->share.weight);
    }
    take(*first, batch);
    if (goes_on(*first, batch)) continue;
    first->credit = 0;
    std::erase(tenants, first);
  }
}

std::vector<Slice> Scheduler::next_batch(bool begin) {
  std::map<int32_t, std::vector<Tenant*>, std::greater<>> levels;
  for (auto& [name, tenant] : tenants_) {
    tenant.at = 0;
    if (can_run(tenant, begin)) levels[tenant.share.priority].push_back(&tenant);
  }
  Filling batch{{}, budget_, begin};
  for (auto& [priority, tenants] : levels) fill(std::move(tenants), batch);
  return std::move(batch.slices);
}

std::map<std::string, Scheduler::Load> Scheduler::load() const {
  std::map<std::string, Load> out;
  for (const auto& [name, tenant] : tenants_)
    out[name] = {static_cast<int64_t>(tenant.entries.size()), tenant.num_tokens};
  return out;
}

}  // namespace twinkle::engine
