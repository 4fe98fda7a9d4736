#include "twinkle/server/tenants/hungry.h"

namespace twinkle::server {

void Hungry::add(const std::string& owner, int64_t bytes, int64_t number, const std::string& key) {
  Owner& of = waiting_[owner];
  of.keys[bytes][number] = key;
  of.bytes[number] = bytes;
}

void Hungry::remove(const std::string& owner, int64_t bytes, int64_t number) {
  const auto of_owner = waiting_.find(owner);
  if (of_owner == waiting_.end()) return;
  Owner& of = of_owner->second;
  const auto of_size = of.keys.find(bytes);
  if (of_size == of.keys.end()) return;
  if (of_size->second.erase(number) > 0) of.bytes.erase(number);
  if (of_size->second.empty()) of.keys.erase(of_size);
  if (of.keys.empty()) waiting_.erase(of_owner);
}

// Whom all pass, if it still waits, and for what others have.
std::optional<Hungry::One> Hungry::counted() const {
  const auto of = waiting_.find(owner_);
  if (of == waiting_.end()) return std::nullopt;
  const Owner& own = of->second;
  if (own.is_reserved() && counted_.number > own.counted.number) return std::nullopt;
  const auto found = own.bytes.find(counted_.number);
  if (found == own.bytes.end() || !has_room_alone_(owner_, found->second)) return std::nullopt;
  return One{owner_, found->second, found->first};
}

// Of those for which there is room, and which pass nobody of their owner that is passed no more.
std::optional<Hungry::One> Hungry::oldest(const HasRoom& has_room) const {
  std::optional<One> out;
  const auto offer = [&](const One& one) {
    if (!out || one.number < out->number) out = one;
  };
  for (const auto& [name, owner] : waiting_) {
    if (owner.is_reserved()) {
      const int64_t number = owner.counted.number, bytes = owner.bytes.at(number);
      if (has_room(name, bytes)) offer({name, bytes, number});
      continue;
    }
    for (const auto& [bytes, keys] : owner.keys) {
      if (!has_room(name, bytes)) break;
      offer({name, bytes, keys.begin()->first});
    }
  }
  return out;
}

std::string Hungry::take(const HasRoom& has_room) {
  const std::optional<One> last = counted_.is_last() ? counted() : std::nullopt;
  const auto passes = [&](const std::string& owner, int64_t bytes) {
    return has_room(owner, bytes) && has_less_(owner, bytes, last->owner);
  };
  const std::optional<One> first = !last                                ? oldest(has_room)
                                   : has_room(last->owner, last->bytes) ? last
                                                                        : oldest(passes);
  if (!first) return "";
  const std::string key = waiting_.at(first->owner).keys.at(first->bytes).at(first->number);
  remove(first->owner, first->bytes, first->number);
  return key;
}

void Hungry::passed(const std::string& owner, int64_t number) {
  if (!counted()) {
    const auto first = oldest(has_room_alone_);
    owner_ = first ? first->owner : "";
    counted_ = {.number = first ? first->number : -1};
  }
  counted_.pass(number);
  const auto found = waiting_.find(owner);
  if (found == waiting_.end()) return;
  Owner& own = found->second;
  if (!own.bytes.contains(own.counted.number)) own.counted = {.number = own.bytes.begin()->first};
  own.counted.pass(number);
}

bool Hungry::may_pass(const std::string& owner, int64_t bytes, int64_t number) const {
  const auto own = waiting_.find(owner);
  if (own != waiting_.end() && own->second.is_reserved() && number > own->second.counted.number)
    return false;
  if (!counted_.is_last() || number <= counted_.number) return true;
  const std::optional<One> last = counted();
  return !last || has_less_(owner, bytes, last->owner);
}

}  // namespace twinkle::server
