// Who waits for room that all tenants share: whoever has waited longest of those that find it goes
// first. By owner and size, so that many that wait and find none cost what one does. Used by the
// service's thread alone.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace twinkle::server {

class Hungry {
 public:
  // Whether there is room for so many bytes of an owner; where not, neither for more.
  using HasRoom = std::function<bool(const std::string& owner, int64_t bytes)>;

  // `number`: the order of their coming; of `key`, which is not empty.
  void add(const std::string& owner, int64_t bytes, int64_t number, const std::string& key) {
    waiting_[owner][bytes][number] = key;
  }
  // If it is there.
  void remove(const std::string& owner, int64_t bytes, int64_t number);
  // Takes out the first of those for which there is room, and gives its key; "": none. Asks of each
  // owner once in vain, and once for each size for which there is room.
  std::string take(const HasRoom& has_room);

 private:
  std::map<std::string, std::map<int64_t, std::map<int64_t, std::string>>> waiting_;
};

}  // namespace twinkle::server
