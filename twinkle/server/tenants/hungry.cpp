#include "twinkle/server/tenants/hungry.h"

#include <optional>
#include <utility>

namespace twinkle::server {

void Hungry::remove(const std::string& owner, int64_t bytes, int64_t number) {
  const auto of_owner = waiting_.find(owner);
  if (of_owner == waiting_.end()) return;
  const auto of_size = of_owner->second.find(bytes);
  if (of_size == of_owner->second.end()) return;
  if (of_size->second.erase(number) > 0) order_.erase(number);
  if (of_size->second.empty()) of_owner->second.erase(of_size);
  if (of_owner->second.empty()) waiting_.erase(of_owner);
}

std::string Hungry::take(const HasRoom& has_room) {
  struct First {
    std::string owner;
    int64_t bytes, number;
    std::string key;
  };
  std::optional<First> first;
  if (is_reserved()) {
    const auto [owner, bytes] = order_.begin()->second;
    if (!has_room(owner, bytes)) return "";
    const std::string key = waiting_.at(owner).at(bytes).at(oldest_);
    remove(owner, bytes, oldest_);
    return key;
  }
  for (const auto& [owner, sizes] : waiting_) {
    for (const auto& [bytes, numbers] : sizes) {
      if (!has_room(owner, bytes)) break;
      const auto& [number, key] = *numbers.begin();
      if (!first || number < first->number) first = First{owner, bytes, number, key};
    }
  }
  if (!first) return "";
  remove(first->owner, first->bytes, first->number);
  return std::move(first->key);
}

void Hungry::passed(int64_t number) {
  if (order_.empty() || number <= order_.begin()->first) return;
  if (std::exchange(oldest_, order_.begin()->first) != order_.begin()->first) num_passes_ = 0;
  ++num_passes_;
}

}  // namespace twinkle::server
