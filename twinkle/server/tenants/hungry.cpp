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

// The same if all have passed it often enough.
std::optional<Hungry::One> Hungry::passed_no_more() const {
  return counted_.is_last() ? counted() : std::nullopt;
}

// The first of each size, as long as there is room: of the same size who came later may go as
// little.
std::optional<Hungry::One> Hungry::oldest(const HasRoom& has_room, const MayGo& may_go) const {
  std::optional<One> out;
  for (const auto& [name, owner] : waiting_) {
    for (const auto& [bytes, keys] : owner.keys) {
      if (!has_room(name, bytes)) break;
      const One one{name, bytes, keys.begin()->first};
      if ((!out || one.number < out->number) && may_go(one)) out = one;
    }
  }
  return out;
}

std::string Hungry::take(const HasRoom& has_room) {
  const std::optional<One> last = passed_no_more();
  const auto first = oldest(has_room, [&](const One& one) { return may_pass(one, last); });
  if (!first) return "";
  const std::string key = waiting_.at(first->owner).keys.at(first->bytes).at(first->number);
  remove(first->owner, first->bytes, first->number);
  return key;
}

void Hungry::passed(const std::string& owner, int64_t number) {
  if (!counted()) {
    const auto first = oldest(has_room_alone_, [&](const One& one) { return may_pass_own(one); });
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

// Whether it passes nobody of its owner that is passed no more.
bool Hungry::may_pass_own(const One& one) const {
  const auto own = waiting_.find(one.owner);
  return own == waiting_.end() || !own->second.is_reserved() ||
         one.number <= own->second.counted.number;
}

bool Hungry::may_pass(const One& one, const std::optional<One>& last) const {
  return may_pass_own(one) &&
         (!last || one.number <= last->number || has_less_(one.owner, one.bytes, last->owner));
}

bool Hungry::may_pass(const std::string& owner, int64_t bytes, int64_t number) const {
  return may_pass({owner, bytes, number}, passed_no_more());
}

}  // namespace twinkle::server
