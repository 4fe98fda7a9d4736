// Who waits for room that all tenants share: whoever has waited longest of those that find it goes
// first. By owner and size, so that many that wait and find none cost what one does. Who has been
// passed kMostPasses times and waits for what others have is passed no more by those that have more
// than its owner: that ends, and leaves its room. Who waits for what its own owner has holds up
// nobody else, and is passed no more by that owner's. Of all one is counted at a time, and one of
// each owner: the oldest, until it waits no more. Used by the service's thread alone.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace twinkle::server {

class Hungry {
 public:
  static constexpr int64_t kMostPasses = 256;
  // Whether there is room for so many bytes of an owner; where not, neither for more.
  using HasRoom = std::function<bool(const std::string& owner, int64_t bytes)>;

  // Whether an owner would have no more than another with so many bytes more; where not, neither
  // with more. Nobody has less than itself.
  using HasLess =
      std::function<bool(const std::string& owner, int64_t bytes, const std::string& other)>;

  // `has_room_alone`: whether there would be if nobody but the owner had any.
  Hungry(HasRoom has_room_alone, HasLess has_less)
      : has_room_alone_(std::move(has_room_alone)), has_less_(std::move(has_less)) {}

  // `number`: the order of their coming, from 0; of `key`, which is not empty.
  void add(const std::string& owner, int64_t bytes, int64_t number, const std::string& key);
  // If it is there.
  void remove(const std::string& owner, int64_t bytes, int64_t number);
  // Takes out the first of those for which there is room and which may pass, and gives its key; "":
  // none. Asks of each owner once in vain, and once for each size for which there is room.
  std::string take(const HasRoom& has_room);

  // One of the owner that came as `number` was given room.
  void passed(const std::string& owner, int64_t number);
  // Whether one that comes, or came as `number`, passes nobody that is passed no more.
  bool may_pass(const std::string& owner, int64_t bytes, int64_t number) const;

 private:
  struct Counted {
    int64_t number = -1, num_passes = 0;  // -1: nobody
    void pass(int64_t other) { num_passes += number >= 0 && other > number ? 1 : 0; }
    bool is_last() const { return num_passes >= kMostPasses; }
  };
  struct Owner {
    std::map<int64_t, std::map<int64_t, std::string>> keys;  // by bytes and number
    std::map<int64_t, int64_t> bytes;                        // by number
    Counted counted;                                         // whom its own pass
    bool is_reserved() const { return counted.is_last() && bytes.contains(counted.number); }
  };
  struct One {
    std::string owner;
    int64_t bytes, number;
  };
  using MayGo = std::function<bool(const One& one)>;

  std::optional<One> counted() const;
  std::optional<One> passed_no_more() const;
  std::optional<One> oldest(const HasRoom& has_room, const MayGo& may_go) const;
  bool may_pass_own(const One& one) const;
  bool may_pass(const One& one, const std::optional<One>& last) const;

  const HasRoom has_room_alone_;
  const HasLess has_less_;
  std::map<std::string, Owner> waiting_;
  std::string owner_;  // of whom all pass, ...
  Counted counted_;    // ... which may wait no more
};

}  // namespace twinkle::server
