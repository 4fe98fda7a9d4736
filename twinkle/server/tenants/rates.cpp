#include "twinkle/server/tenants/rates.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

namespace twinkle::server {
namespace {

constexpr double kMinute = 60;
constexpr double kMostWait = 1e9;                   // seconds that are told
constexpr std::chrono::milliseconds kReread{1000};  // the limits may be others by then

}  // namespace

void Rates::Bucket::fill(double per_minute, double seconds) {
  const bool is_new = !is_limited();
  per_second = per_minute / kMinute;
  level = is_new ? per_minute : std::min(per_minute, level + per_second * seconds);
}

Rates::Tenant* Rates::filled(const std::string& owner) {
  const store::Quota quota = quota_(owner);
  const bool is_limited = quota.tokens_per_minute > 0 || quota.compute_seconds_per_minute > 0;
  if (!is_limited && !tenants_.contains(owner)) return nullptr;
  Tenant& out = tenants_[owner];
  const auto now = loop_.now();
  const double seconds = std::chrono::duration<double>(now - out.at).count();
  out.tokens.fill(static_cast<double>(quota.tokens_per_minute), seconds);
  out.seconds.fill(quota.compute_seconds_per_minute, seconds);
  out.at = now;
  return &out;
}

bool Rates::may_go(const Tenant& tenant) {
  const auto is_open = [](const Bucket& b) { return !b.is_limited() || b.level > 0; };
  return is_open(tenant.tokens) && is_open(tenant.seconds);
}

bool Rates::enter(const std::string& owner, const std::string& request_id, int64_t tokens,
                  std::function<void()> go) {
  Tenant* const tenant = filled(owner);
  if (!tenant) return true;
  if (tenant->held.empty() && may_go(*tenant)) {
    tenant->tokens.level -= static_cast<double>(tokens);
    return true;
  }
  places_[request_id] = {owner, tenant->num_ever};
  tenant->held[tenant->num_ever++] = {request_id, tokens, tenant->tokens_ever, std::move(go)};
  tenant->tokens_ever += static_cast<double>(tokens);
  go_on(owner);
  return false;
}

void Rates::leave(const std::string& request_id) {
  const auto place = places_.extract(request_id);
  if (place) tenants_.at(place.mapped().owner).held.erase(place.mapped().number);
}

void Rates::spend(const std::string& owner, int64_t tokens, double seconds) {
  Tenant* const tenant = filled(owner);
  if (!tenant) return;
  tenant->tokens.level -= static_cast<double>(tokens);
  tenant->seconds.level -= seconds;
}

void Rates::go_on(const std::string& owner) {
  Tenant& tenant = *filled(owner);
  while (!tenant.held.empty() && may_go(tenant)) {
    const Ticket first = std::move(tenant.held.extract(tenant.held.begin()).mapped());
    places_.erase(first.request_id);
    tenant.tokens.level -= static_cast<double>(first.tokens);
    first.go();
  }
  if (tenant.held.empty() || std::exchange(tenant.is_waiting, true)) return;
  const double wait = std::max(tenant.tokens.wait(0), tenant.seconds.wait(0));
  // A millisecond more: a bucket that is just empty is not above 0.
  const auto time =
      std::chrono::milliseconds(1 + std::llround(std::ceil(std::min(wait, 1.0) * 1e3)));
  loop_.after(std::min(time, kReread), [this, owner] {
    tenants_.at(owner).is_waiting = false;
    go_on(owner);
  });
}

std::string Rates::reason(const std::string& request_id) const {
  const auto found = places_.find(request_id);
  if (found == places_.end()) return "";
  const auto& [owner, number] = found->second;
  const Tenant& tenant = tenants_.at(owner);
  const auto& [first, its] = *tenant.held.begin();
  const int64_t num = std::ssize(tenant.held), place = std::min(number - first + 1, num);
  const double before = tenant.held.at(number).before - its.before;
  const double tokens = tenant.tokens.wait(before), seconds = tenant.seconds.wait(0);
  const double passed = std::chrono::duration<double>(loop_.now() - tenant.at).count();
  // One that is just empty waits 0 seconds, as one without a limit does.
  const bool by_tokens =
      tenant.tokens.is_limited() && (tokens >= seconds || !tenant.seconds.is_limited());
  const double left = std::ceil(std::max(tokens, seconds) - passed - 0.001);
  const Bucket& bucket = by_tokens ? tenant.tokens : tenant.seconds;
  std::ostringstream out;
  out.precision(15);  // a limit is told as it was given
  out << "this tenant's limit of " << bucket.per_second * kMinute
      << (by_tokens ? " tokens" : " seconds of computing") << " a minute: position " << place
      << " of " << num << ", about " << std::llround(std::clamp(left, 1.0, kMostWait)) << " s";
  return out.str();
}

}  // namespace twinkle::server
