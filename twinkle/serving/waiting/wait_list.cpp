#include "twinkle/serving/waiting/wait_list.h"

#include <cmath>
#include <limits>
#include <sstream>

namespace twinkle::server {

constexpr double kNever = std::numeric_limits<double>::infinity();

void WaitList::add(const Head& head) {
  tenants_[head.owner].heads(head.is_sample)[{head.is_rated, next_turn_++}] = head;
}

void WaitList::remove(const Head& head) {
  std::erase_if(tenants_.at(head.owner).heads(head.is_sample),
                [&](const auto& waits) { return waits.second.key == head.key; });
  forget(head.owner);
}

void WaitList::give_back(const Head& head) {
  all_ -= head.cost;
  tenants_.at(head.owner).held -= head.cost;
  forget(head.owner);
}

// A tenant that waits for nothing and holds nothing has no credit.
void WaitList::forget(const std::string& owner) {
  Tenant& of = tenants_.at(owner);
  if (of.training.empty()) of.passed = 0;
  if (of.held > 0 || !of.training.empty() || !of.samples.empty()) return;
  of.account = {};
  if (!of.is_limited() && !of.is_timed) tenants_.erase(owner);
}

int64_t WaitList::held(const std::string& owner) const {
  const auto found = tenants_.find(owner);
  return found == tenants_.end() ? 0 : found->second.held;
}

// Null: none may go, whatever others do.
const WaitList::Heads::value_type* WaitList::next_of_tenant(const std::string& owner,
                                                            const Tenant& of) {
  const auto first = [&](const Heads& heads) {
    const bool waits = !heads.empty() && (!heads.begin()->second.is_rated || may_go(owner));
    return waits ? &*heads.begin() : nullptr;
  };
  const auto* const training = first(of.training);
  const auto* const sample = first(of.samples);
  const bool is_sample = sample && (!training || of.passed < training->second.cost);
  const auto* const next = is_sample ? sample : training;
  const bool fits_alone = of.held == 0 || !next || 2 * of.held + next->second.cost <= room_;
  return fits_alone ? next : nullptr;
}

std::optional<size_t> WaitList::choose(std::vector<Claim>& claims,
                                       std::vector<const Head*>& heads) {
  for (auto& [owner, tenant] : tenants_) {
    const auto* const next = next_of_tenant(owner, tenant);
    if (!next) continue;
    tenant.account.last_turn = next->first.second;
    claims.push_back({&tenant.account, static_cast<double>(next->second.cost)});
    heads.push_back(&next->second);
  }
  if (heads.empty()) return std::nullopt;
  const size_t due = next_of(claims);
  const int64_t most = held(heads[due]->owner);
  std::vector<Claim> able = claims;
  for (size_t i = 0; i < heads.size(); ++i)
    if (!fits(*heads[i]) || (i != due && held(heads[i]->owner) + heads[i]->cost > most))
      able[i].from = kNever;
  const size_t next = next_of(able);
  return able[next].from == kNever ? std::nullopt : std::optional(next);
}

std::optional<std::string> WaitList::take() {
  std::vector<Claim> claims;
  std::vector<const Head*> heads;
  const auto next = choose(claims, heads);
  if (!next) return std::nullopt;
  charge(claims, *next);
  const Head head = *heads[*next];
  Tenant& of = tenants_.at(head.owner);
  of.passed = head.is_sample && !of.training.empty() ? of.passed + head.cost : 0;
  of.held += head.cost;
  all_ += head.cost;
  of.heads(head.is_sample).erase(of.heads(head.is_sample).begin());
  if (head.is_rated) spend(head.owner, head.tokens, 0);
  return head.key;
}

bool WaitList::would_go(const Head& head) {
  add(head);
  std::vector<Claim> claims;
  std::vector<const Head*> heads;
  const auto next = choose(claims, heads);
  const bool out = next && heads[*next]->key == head.key;
  remove(head);
  return out;
}

void WaitList::Bucket::fill(double per_minute, double seconds) {
  const bool is_new = !is_limited();
  per_second = per_minute / 60;
  level = is_new ? per_minute : std::min(per_minute, level + per_second * seconds);
}

// Null: nothing limits it.
WaitList::Tenant* WaitList::limited(const std::string& owner) {
  const store::Quota quota = quota_(owner);
  const auto tokens = static_cast<double>(quota.tokens_per_minute);
  const auto found = tenants_.find(owner);
  const bool was_limited = found != tenants_.end() && found->second.is_limited();
  if (!was_limited && tokens == 0 && quota.compute_seconds_per_minute == 0) return nullptr;
  Tenant& of = tenants_[owner];
  const std::chrono::duration<double> passed = loop_.now() - std::exchange(of.filled, loop_.now());
  of.tokens.fill(tokens, passed.count());
  of.seconds.fill(quota.compute_seconds_per_minute, passed.count());
  return &of;
}

// Looks again when it may, or after a second, since its limits may be others by then.
bool WaitList::may_go(const std::string& owner) {
  Tenant* const of = limited(owner);
  if (!of || of->may_go()) return true;
  if (std::exchange(of->is_timed, true)) return false;
  const double wait = std::max(of->tokens.wait(0), of->seconds.wait(0));
  // A millisecond more: a bucket that is just empty is not above 0.
  const auto ms = 1 + std::llround(std::ceil(std::min(wait, 0.999) * 1e3));
  loop_.after(std::chrono::milliseconds(ms), [this, owner] {
    tenants_.at(owner).is_timed = false;
    again_();
  });
  return false;
}

bool WaitList::is_held(const std::string& owner) const {
  const auto found = tenants_.find(owner);
  return found != tenants_.end() && !found->second.may_go();
}

void WaitList::spend(const std::string& owner, int64_t tokens, double seconds) {
  Tenant* const of = limited(owner);
  if (!of) return;
  of->tokens.level -= static_cast<double>(tokens);
  of->seconds.level -= seconds;
}

std::string WaitList::reason(const std::string& owner, int64_t place, int64_t num,
                             int64_t before) const {
  constexpr double kMostWait = 1e9;  // seconds that are told
  if (!is_held(owner)) return "";
  const Tenant& of = tenants_.at(owner);
  const auto num_queues = std::max<size_t>(1, of.training.size() + of.samples.size());
  const double tokens =
      of.tokens.wait(static_cast<double>(before) * static_cast<double>(num_queues));
  const double seconds = of.seconds.wait(0);
  const bool by_tokens = tokens >= seconds;
  const std::chrono::duration<double> passed = loop_.now() - of.filled;
  const double left = std::ceil(std::max(tokens, seconds) - passed.count() - 0.001);
  std::ostringstream out;
  out.precision(15);  // a limit is told as it was given
  out << "this tenant's limit of " << (by_tokens ? of.tokens : of.seconds).per_second * 60
      << (by_tokens ? " tokens" : " seconds of computing") << " a minute: position " << place
      << " of " << num << ", about " << std::llround(std::clamp(left, 1.0, kMostWait)) << " s";
  return out.str();
}

}  // namespace twinkle::server
