#include "twinkle/engine/schedule/scheduler.h"

#include <algorithm>

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

void Scheduler::push(const std::string& tenant, int64_t id, std::vector<int64_t> tokens) {
  Tenant& to = tenants_[tenant];
  if (to.entries.empty()) to.last_turn = ++turn_;
  to.entries.push_back({id, std::move(tokens)});
  tenant_of_.emplace(id, tenant);
}

bool Scheduler::remove(int64_t id) {
  const auto it = tenant_of_.find(id);
  if (it == tenant_of_.end()) return false;
  const std::string name = std::move(it->second);
  Tenant& tenant = tenants_.at(name);
  tenant_of_.erase(it);
  // Credit was saved for a sequence that will not run.
  if (tenant.entries.front().id == id) tenant.credit = 0;
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

bool Scheduler::fits(const Tenant& tenant, const Filling& batch) const {
  const Entry& entry = tenant.entries.front();
  if (batch.slices.empty()) return true;  // even one that is longer than the budget
  const bool mine = batch.slices.front().id == entry.id;
  if ((batch.closed || entry.alone) && !mine) return false;
  return entry.tokens[entry.next] <= batch.room;
}

void Scheduler::take(Tenant& tenant, Filling& batch) {
  Entry& entry = tenant.entries.front();
  const int64_t n = entry.tokens[entry.next];
  auto slice = std::find_if(batch.slices.begin(), batch.slices.end(),
                            [&](const Slice& s) { return s.id == entry.id; });
  if (slice == batch.slices.end())
    slice = batch.slices.insert(slice, Slice{entry.id, entry.next, entry.next});
  slice->last = ++entry.next;
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
    const Entry& entry = t.entries.front();
    return std::max(0.0, static_cast<double>(entry.tokens[entry.next]) - t.credit) / t.share.weight;
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
      const Entry& entry = t->entries.front();
      const auto most = static_cast<double>(std::max(budget_, entry.tokens[entry.next]));
      t->credit = std::min(most, t->credit + flow * t->share.weight);
    }
    take(*first, batch);
    if (can_run(*first, true)) continue;
    first->credit = 0;
    std::erase(tenants, first);
  }
}

std::vector<Slice> Scheduler::next_batch(bool begin) {
  std::map<int32_t, std::vector<Tenant*>, std::greater<>> levels;
  for (auto& [name, tenant] : tenants_) {
    if (can_run(tenant, begin)) levels[tenant.share.priority].push_back(&tenant);
  }
  Filling batch{{}, budget_};
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
