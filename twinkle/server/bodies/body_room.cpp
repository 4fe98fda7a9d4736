#include "twinkle/server/bodies/body_room.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "twinkle/base/error.h"

namespace twinkle::server {
namespace {

Response no_room_for_a_sample() {
  return refusal(429, "server: there is no memory for this request now");
}

}  // namespace

// What outlives the BodyRoom, if a body does. Guarded by its mutex.
struct BodyRoom::Books {
  explicit Books(const BodyRoomOptions& options) : options(options) {}

  std::mutex mutex;
  BodyRoomOptions options;
  int64_t bytes = 0;     // of all but that in the reserve
  int64_t reserved = 0;  // of that
  bool is_reserve_taken = false;
  std::map<std::string, int64_t> owners;  // parts of `bytes`
  bool is_full = false;  // somebody waits for others' room, not its owner's: none may pass it by
  bool is_anybody_waiting = false;
  BodyRoom* room = nullptr;  // null once it is closed

  int64_t most() const { return options.max_bytes - options.max_body_bytes; }
  bool has_share(const std::string& owner, int64_t more) const {
    const auto found = owners.find(owner);
    return (found == owners.end() ? 0 : found->second) + more <= most() / 2;
  }
  bool has_room(int64_t more) const { return bytes + more <= most(); }
  bool has_now(const std::string& owner, int64_t more) const {
    return !is_full && has_share(owner, more) && has_room(more);
  }
  void add(const std::string& owner, int64_t more) {
    bytes += more;
    const auto of = owners.try_emplace(owner).first;
    if ((of->second += more) == 0) owners.erase(of);
  }
};

class BodyRoom::Room : public HeldRoom, public std::enable_shared_from_this<Room> {
 public:
  Room(std::shared_ptr<Books> books, std::string owner, bool is_sample)
      : owner(std::move(owner)), is_sample(is_sample), books_(std::move(books)) {}

  ~Room() override {
    const std::lock_guard lock(books_->mutex);
    set(0);
    if (is_in_reserve_) books_->is_reserve_taken = false;
    tell_of_less();
  }

  bool grow(int64_t bytes) override {
    const std::lock_guard lock(books_->mutex);
    const int64_t more = bytes - bytes_;
    if (more <= 0) return true;
    const bool has_always = is_in_reserve_ || bytes <= books_->options.small_bytes;
    if (!has_always && !books_->has_now(owner, more)) return false;
    set(bytes);
    return true;
  }

  void wait(int64_t bytes, Then then) override {
    std::unique_lock lock(books_->mutex);
    BodyRoom* const room = books_->room;
    lock.unlock();
    if (room) room->wait(shared_from_this(), bytes, std::move(then));
  }

  void shrink(int64_t bytes) override {
    const std::lock_guard lock(books_->mutex);
    if (bytes >= bytes_) return;
    set(bytes);
    tell_of_less();
  }

  // Takes so many for one that waits, from the reserve where nobody has it; or says what it lacks.
  enum class Turn { kHas, kNeedsShare, kNeedsRoom };
  Turn take(int64_t bytes) {
    const std::lock_guard lock(books_->mutex);
    const int64_t more = bytes - bytes_;
    const bool has_share = books_->has_share(owner, more), has_room = books_->has_room(more);
    if (!has_share || !has_room) {
      if (books_->is_reserve_taken) return has_share ? Turn::kNeedsRoom : Turn::kNeedsShare;
      const int64_t had = bytes_;
      set(0);
      books_->is_reserve_taken = is_in_reserve_ = true;
      set(had);
    }
    set(bytes);
    return Turn::kHas;
  }

  const std::string owner;
  const bool is_sample;

 private:
  void set(int64_t bytes) {
    if (bytes == bytes_) return;
    if (is_in_reserve_)
      books_->reserved += bytes - bytes_;
    else
      books_->add(owner, bytes - bytes_);
    bytes_ = bytes;
  }
  void tell_of_less() const {
    if (!books_->room || !books_->is_anybody_waiting) return;
    books_->room->loop_.post([books = books_] {
      std::unique_lock now(books->mutex);
      BodyRoom* const room = books->room;
      now.unlock();
      if (room) room->go_on();
    });
  }

  const std::shared_ptr<Books> books_;
  int64_t bytes_ = 0;  // as is_in_reserve_, guarded by the books' mutex
  bool is_in_reserve_ = false;
};

BodyRoom::BodyRoom(const BodyRoomOptions& options, Loop& loop)
    : loop_(loop), books_(std::make_shared<Books>(options)) {
  set(options);
  books_->room = this;
}

void BodyRoom::set(const BodyRoomOptions& options) {
  require(options.max_bytes >= options.max_body_bytes, Code::kInvalid, "server: max_bytes is ",
          options.max_bytes, ", it must be at least max_body_bytes, ", options.max_body_bytes);
  options_ = options;
  {
    const std::lock_guard lock(books_->mutex);
    books_->options = options;
  }
  go_on();
}

void BodyRoom::close() {
  const std::lock_guard lock(books_->mutex);
  books_->room = nullptr;
}

int64_t BodyRoom::num_bytes() const {
  const std::lock_guard lock(books_->mutex);
  return books_->bytes + books_->reserved;
}

Admission BodyRoom::admit(const Head& head, const std::string& owner) {
  const bool is_sample = head.path.ends_with("/asample") || head.path.ends_with("/completions");
  const int64_t told = std::min(head.content_length, options_.max_body_bytes);  // more is 413
  if (is_sample && told > options_.small_bytes) {
    const std::lock_guard lock(books_->mutex);
    if (!books_->has_now(owner, told) && (books_->is_full || books_->is_reserve_taken))
      return {-1, no_room_for_a_sample()};
  }
  const bool has_body = told > 0 || !head.header("transfer-encoding").empty();
  return {.max_body_bytes = options_.max_body_bytes,
          .held = has_body ? std::make_shared<Room>(books_, owner, is_sample) : nullptr};
}

bool BodyRoom::is_full() const {
  const std::lock_guard lock(books_->mutex);
  return books_->is_full;
}

void BodyRoom::wait(const std::shared_ptr<Room>& room, int64_t bytes, HeldRoom::Then then) {
  if (room->is_sample) {
    const bool has_room = !is_full() && room->take(bytes) == Room::Turn::kHas;
    return then(has_room ? std::nullopt : std::optional(no_room_for_a_sample()));
  }
  const int64_t number = next_number_++;
  waiting_.push_back({number, bytes, room, std::move(then)});
  loop_.after(options_.patience, [books = books_, number] {
    std::unique_lock lock(books->mutex);
    BodyRoom* const room = books->room;
    lock.unlock();
    if (room) room->give_up(number);
  });
  go_on();
}

void BodyRoom::go_on() {
  bool is_full = false;
  std::vector<HeldRoom::Then> served;
  for (auto it = waiting_.begin(); it != waiting_.end() && !is_full;) {
    const std::shared_ptr<Room> room = it->room.lock();
    if (!room) {
      it = waiting_.erase(it);
      continue;
    }
    const Room::Turn turn = room->take(it->bytes);
    is_full = turn == Room::Turn::kNeedsRoom;
    if (turn == Room::Turn::kHas) {
      served.push_back(std::move(it->then));
      it = waiting_.erase(it);
    } else {
      ++it;
    }
  }
  {
    const std::lock_guard lock(books_->mutex);
    books_->is_full = is_full;
    books_->is_anybody_waiting = !waiting_.empty();
  }
  for (const HeldRoom::Then& then : served) then(std::nullopt);
}

void BodyRoom::give_up(int64_t number) {
  const auto found = std::ranges::find(waiting_, number, &Waiting::number);
  if (found == waiting_.end()) return;
  Response busy =
      refusal(503, "server: there was no memory for this request for " +
                       std::to_string(options_.patience.count() / 1000) + " s; come again");
  busy.headers.emplace_back("Retry-After", "5");
  const HeldRoom::Then then = std::move(found->then);
  waiting_.erase(found);
  then(std::move(busy));
  go_on();  // others may have stood behind it
}

}  // namespace twinkle::server
