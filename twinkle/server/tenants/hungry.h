// Who waits for room that all tenants share: whoever has waited longest of those that find it goes
// first. By owner and size, so that many that wait and find none cost what one does. Who has been
// passed kMostPasses times, as the oldest of all, is passed no more: what is given ends, and leaves
// its room. Used by the service's thread alone.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

namespace twinkle::server {

class Hungry {
 public:
  static constexpr int64_t kMostPasses = 256;
  // Whether there is room for so many bytes of an owner; where not, neither for more.
  using HasRoom = std::function<bool(const std::string& owner, int64_t bytes)>;

  // `number`: the order of their coming; of `key`, which is not empty.
  void add(const std::string& owner, int64_t bytes, int64_t number, const std::string& key) {
    waiting_[owner][bytes][number] = key;
    order_[number] = {owner, bytes};
  }
  // If it is there.
  void remove(const std::string& owner, int64_t bytes, int64_t number);
  // Takes out the first of those for which there is room, and gives its key; "": none. Asks of each
  // owner once in vain, and once for each size for which there is room; or of the oldest alone.
  std::string take(const HasRoom& has_room);

  // One that came as `number` was given room.
  void passed(int64_t number);
  // The oldest of those that wait is passed no more.
  bool is_reserved() const {
    return !order_.empty() && order_.begin()->first == oldest_ && num_passes_ >= kMostPasses;
  }
  bool may_pass(int64_t number) const { return !is_reserved() || number <= oldest_; }

 private:
  std::map<std::string, std::map<int64_t, std::map<int64_t, std::string>>> waiting_;
  std::map<int64_t, std::pair<std::string, int64_t>> order_;  // owner and bytes, by number
  int64_t oldest_ = -1, num_passes_ = 0;  // of whom others were given room last, and how many were
};

}  // namespace twinkle::server
