#include "twinkle/server/tenants/hungry.h"

#include <optional>
#include <utility>

namespace twinkle::server {

void Hungry::remove(const std::string& owner, int64_t bytes, int64_t number) {
  const auto of_owner = waiting_.find(owner);
  if (of_owner == waiting_.end()) return;
  const auto of_size = of_owner->second.find(bytes);
  if (of_size == of_owner->second.end()) return;
  of_size->second.erase(number);
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

}  // namespace twinkle::server
