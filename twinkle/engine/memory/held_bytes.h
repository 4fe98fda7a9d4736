// Bytes of memory that operations and their results hold, of each tenant and of all, and the limits
// of both. An operation's are reserved when it is submitted, with as much as its result may take,
// and given back when that has been taken or dropped. Any thread.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

namespace twinkle::engine {

// An operation larger than the limits is refused, or holds as much as they allow, and so goes
// when nothing else of its tenant does.
enum class Beyond { kRefused, kAlone };

class HeldBytes {
 public:
  // Both above 0: of one tenant, of all.
  HeldBytes(int64_t max_of_tenant, int64_t max_in_all);

  // One operation's. Gives them back when it is destroyed; may outlive the HeldBytes.
  class Room {
   public:
    ~Room();
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;

    // From here on it holds so many. Fewer never throws; more: errors as of reserve().
    void resize(int64_t bytes);
    // Gives so many back, or all that it holds.
    void give_back(int64_t bytes) { resize(bytes < bytes_ ? bytes_ - bytes : 0); }

   private:
    friend class HeldBytes;
    struct Books;
    Room(std::shared_ptr<Books> books, std::string tenant, Beyond beyond);

    const std::shared_ptr<Books> books_;
    const std::string tenant_;
    const Beyond beyond_;
    int64_t bytes_ = 0;
  };

  // Error kBusy: the tenant, or all, would hold more than the limit; kInvalid: these bytes alone
  // are more, and that is refused.
  std::shared_ptr<Room> reserve(const std::string& tenant, int64_t bytes,
                                Beyond beyond = Beyond::kRefused);

  // Error kInvalid: reserve() would refuse them for their number alone.
  void require_possible(const std::string& tenant, int64_t bytes) const;

  int64_t max() const;  // bytes of one operation
  int64_t in_all() const;

 private:
  const std::shared_ptr<Room::Books> books_;
};

}  // namespace twinkle::engine
