#include "twinkle/server/connections/connections.h"

#include <utility>

namespace twinkle::server {

int64_t Connections::add(const std::string& peer, bool is_for_probes) {
  const int64_t number = next_++;
  const std::string owner = "peer " + peer;
  change(owner, [](Owner& o) { ++o.count; });
  all_[number] = {.peer = owner, .owner = owner, .is_for_probes = is_for_probes};
  num_for_probes_ += is_for_probes ? 1 : 0;
  return number;
}

void Connections::remove(int64_t number) {
  One& one = all_.at(number);
  if (one.gives_way)
    --num_giving_way_;
  else
    leave(one);
  num_for_probes_ -= one.is_for_probes ? 1 : 0;
  all_.erase(number);
}

void Connections::belongs_to(int64_t number, const std::string& tenant) {
  One& one = all_.at(number);
  const std::string owner = tenant.empty() ? one.peer : "tenant " + tenant;
  if (one.gives_way || owner == one.owner) return;
  leave(one);
  one.owner = owner;
  change(owner, [](Owner& o) { ++o.count; });
}

void Connections::idles(int64_t number) {
  One& one = all_.at(number);
  if (one.gives_way || one.is_for_probes || one.idle_since != 0) return;
  one.idle_since = ++num_idled_;
  change(one.owner, [&](Owner& o) { one.at = o.idle.insert(o.idle.end(), number); });
}

void Connections::works(int64_t number) {
  One& one = all_.at(number);
  if (one.idle_since == 0) return;
  change(one.owner, [&](Owner& o) { o.idle.erase(one.at); });
  one.idle_since = 0;
}

std::optional<int64_t> Connections::give_way() {
  if (by_count_.empty()) return std::nullopt;
  const int64_t number = owners_.at(std::get<std::string>(*by_count_.rbegin())).idle.front();
  One& one = all_.at(number);
  leave(one);
  one.gives_way = true;
  ++num_giving_way_;
  return number;
}

// Its owner, which is forgotten with its last one.
void Connections::leave(One& one) {
  change(one.owner, [&](Owner& o) {
    --o.count;
    if (one.idle_since != 0) o.idle.erase(one.at);
  });
  one.idle_since = 0;
  if (owners_.at(one.owner).count == 0) owners_.erase(one.owner);
}

template <class Change>
void Connections::change(const std::string& owner, Change change) {
  if (const auto key = key_of(owner)) by_count_.erase(*key);
  change(owners_[owner]);
  if (auto key = key_of(owner)) by_count_.insert(std::move(*key));
}

std::optional<Connections::Key> Connections::key_of(const std::string& owner) const {
  const auto found = owners_.find(owner);
  if (found == owners_.end() || found->second.idle.empty()) return std::nullopt;
  const int64_t since = all_.at(found->second.idle.front()).idle_since;
  return Key{found->second.count, -since, owner};
}

}  // namespace twinkle::server
