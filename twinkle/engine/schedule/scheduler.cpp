#include "twinkle/engine/schedule/scheduler.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

namespace twinkle::engine {

void Scheduler::set_share(const std::string& name, Share share) {
  Tenant& tenant = tenants_[name];
  tenant.known = true;
  tenant.priority = share.priority;
  tenant.account.weight = share.weight;
}

void Scheduler::forget(const std::string& name) {
  const auto it = tenants_.find(name);
  if (it == tenants_.end()) return;
  Tenant& tenant = it->second;
  tenant.known = false;
  tenant.priority = 0;
  tenant.account = {};
  tenant.num_tokens = 0;
  if (tenant.entries.empty()) tenants_.erase(it);
}

Share Scheduler::share(const std::string& name) const {
  const auto it = tenants_.find(name);
  return it == tenants_.end() ? Share{} : Share{it->second.account.weight, it->second.priority};
}

int64_t Scheduler::num_tokens(const std::string& name) const {
  const auto it = tenants_.find(name);
  return it == tenants_.end() ? 0 : it->second.num_tokens;
}

void Scheduler::push(const std::string& name, int64_t id, std::vector<int64_t> tokens, bool joins) {
  Entry entry{id, std::move(tokens), joins};
  for (const int64_t n : entry.tokens) {
    entry.total += n;
    entry.longest = std::max(entry.longest, n);
  }
  Tenant& tenant = tenants_[name];
  tenant.entries.push_back(std::move(entry));
  if (tenant.entries.size() > 1) return;
  tenant.account.last_turn = ++turn_;
  tenant.account.credit = std::min(0.0, tenant.account.credit);
}

bool Scheduler::remove(const std::string& name, int64_t id) {
  const auto it = tenants_.find(name);
  if (it == tenants_.end()) return false;
  Tenant& tenant = it->second;
  const bool found = std::erase_if(tenant.entries, [id](const Entry& e) { return e.id == id; }) > 0;
  if (tenant.entries.empty() && !tenant.known) tenants_.erase(it);
  return found;
}

void Scheduler::rewind(const std::string& name, int64_t id, bool alone) {
  for (Entry& entry : tenants_.at(name).entries) {
    if (entry.id != id) continue;
    entry.next = 0;
    entry.alone = entry.alone || alone;
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

bool Scheduler::Tenant::can_run(bool begin) const {
  if (entries.empty()) return false;
  const Entry& entry = entries.front();
  return entry.next < entry.tokens.size() && (begin || entry.begun);
}

bool Scheduler::has_batch(bool begin) const {
  return std::any_of(tenants_.begin(), tenants_.end(),
                     [&](const auto& t) { return t.second.can_run(begin); });
}

bool Scheduler::others_have_begun(const std::string& tenant) const {
  return std::any_of(tenants_.begin(), tenants_.end(), [&](const auto& t) {
    return t.first != tenant && !t.second.entries.empty() && t.second.entries.front().begun;
  });
}

// A tenant with more to run in the batch in the making.
struct Scheduler::Candidate {
  Tenant* tenant;
  int64_t bytes = 0;              // that its state takes until it has begun
  size_t at = 0;                  // the operation that the batch has come to
  std::optional<size_t> slice{};  // that operation's

  Entry& entry() const { return tenant->entries[at]; }
  // Tokens of what it would run next: one sequence, or all of an operation that joins.
  int64_t unit() const { return at == 0 ? entry().tokens[entry().next] : entry().total; }
};

// A batch in the making. Takes no memory: its vectors have room.
struct Scheduler::Filling {
  int64_t room;
  int64_t bytes;   // room for the state of tenants that begin
  bool any_begun;  // operations before it: tenants' state is in use already
  bool begin;      // operations that have not run yet may
  uint64_t& turn;
  std::vector<Slice> slices{};
  std::vector<Claim> claims{};  // claims of the candidates, in their order
  bool closed = false;          // by an operation that wants to be alone

  bool fits(const Candidate& candidate) const {
    const Entry& entry = candidate.entry();
    const bool has_room = candidate.bytes == 0 || candidate.bytes <= bytes;
    if (!has_room && (any_begun || !slices.empty())) return false;
    if (slices.empty()) return true;  // even one that is longer than the budget
    if ((closed || entry.alone) && slices.front().id != entry.id) return false;
    return candidate.unit() <= room;
  }

  // Operations that join enter whole: they may begin when the tenant can pay for all but one of
  // their sequences. Without room they begin a batch, sequence by sequence.
  Claim claim(const Candidate& candidate) const {
    const Entry& entry = candidate.entry();
    const bool joins = candidate.at > 0 && fits(candidate);
    const int64_t n = joins ? entry.total : entry.tokens[entry.next];
    return {&candidate.tenant->account, static_cast<double>(n),
            static_cast<double>(joins ? n - entry.longest : n)};
  }

  // The one of those that `may` that can be paid first. None may: its claim never can.
  template <class May>
  size_t next_of(std::span<const Candidate> candidates, May&& may) {
    claims.clear();
    for (const Candidate& candidate : candidates) {
      claims.push_back(claim(candidate));
      if (!may(candidate, claims.back())) claims.back().from = kNever;
    }
    return twinkle::next_of(claims);
  }

  void take(Candidate& candidate) {
    Entry& entry = candidate.entry();
    const int64_t n = candidate.unit();
    if (!candidate.slice) {
      candidate.slice = slices.size();
      slices.push_back({entry.id, entry.next, entry.next});
    }
    Slice& slice = slices[*candidate.slice];
    slice.last = entry.next = candidate.at == 0 ? entry.next + 1 : entry.tokens.size();
    slice.num_tokens += n;
    entry.begun = true;
    room -= n;
    bytes -= std::exchange(candidate.bytes, 0);
    closed = closed || entry.alone;
    candidate.tenant->num_tokens += n;
    candidate.tenant->account.last_turn = ++turn;
  }

  // True: the candidate has more to run in this batch.
  bool goes_on(Candidate& candidate) const {
    const Entry& entry = candidate.entry();
    if (entry.next < entry.tokens.size()) return true;
    if (!begin || candidate.at + 1 == candidate.tenant->entries.size()) return false;
    const Entry& after = candidate.tenant->entries[candidate.at + 1];
    if (!entry.joins || !after.joins || entry.alone || after.alone || after.tokens.empty())
      return false;
    candidate = {.tenant = candidate.tenant, .at = candidate.at + 1};
    return true;
  }

  // Fills the room that higher priorities left with sequences of one priority's tenants.
  void fill(std::vector<Candidate>& here) {
    std::erase_if(here, [this](const Candidate& c) { return !fits(c); });
    while (!here.empty()) {
      size_t next =
          next_of(here, [this](const Candidate& c, const Claim&) { return fits(c) || !closed; });
      if (fits(here[next])) {
        charge(claims, next);
      } else {
        // Its sequence begins the next batch. The others use the room on credit: up to that length.
        const double most = claims[next].cost;
        next = next_of(here, [&](const Candidate& c, const Claim& its) {
          return fits(c) && its.account->credit - its.cost >= -most;
        });
        if (claims[next].from == kNever) return;
        claims[next].account->credit -= claims[next].cost;
      }
      take(here[next]);
      if (!goes_on(here[next])) here.erase(here.begin() + static_cast<ptrdiff_t>(next));
    }
  }

  static constexpr double kNever = std::numeric_limits<double>::infinity();
};

std::vector<Slice> Scheduler::next_batch(bool begin, const BatchRoom& memory) {
  std::map<int32_t, std::vector<Candidate>, std::greater<>> levels;
  size_t num_operations = 0;
  bool any_begun = false;
  for (auto& [name, tenant] : tenants_) {
    if (!tenant.can_run(begin)) continue;
    const bool has_begun = tenant.entries.front().begun;
    const bool takes_any = !has_begun && memory.bytes != kNoLimit && memory.bytes_of;
    levels[tenant.priority].push_back({&tenant, takes_any ? memory.bytes_of(name) : 0});
    num_operations += tenant.entries.size();
    any_begun = any_begun || has_begun;
  }
  Filling batch{budget_, memory.bytes, any_begun, begin, turn_};
  batch.slices.reserve(num_operations);
  batch.claims.reserve(tenants_.size());
  for (auto& [priority, candidates] : levels) batch.fill(candidates);
  return std::move(batch.slices);
}

}  // namespace twinkle::engine
