#include "twinkle/server/http/body_room.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "twinkle/base/error.h"

namespace twinkle::server {

// What outlives the BodyRoom, if a body does.
struct BodyRoom::Books {
  std::mutex mutex;
  int64_t bytes = 0;
  BodyRoom* room = nullptr;  // null once it is closed
};

class BodyRoom::Room : public HeldRoom {
 public:
  Room(std::shared_ptr<Books> books, int64_t bytes) : books_(std::move(books)) { resize(bytes); }
  ~Room() override { resize(0); }

  void resize(int64_t bytes) override {
    const std::lock_guard lock(books_->mutex);
    books_->bytes += bytes - bytes_;
    const bool is_less = bytes < bytes_;
    bytes_ = bytes;
    if (!is_less || !books_->room) return;
    books_->room->loop_.post([books = books_] {
      std::unique_lock now(books->mutex);
      BodyRoom* const room = books->room;
      now.unlock();
      if (room) room->go_on();
    });
  }

 private:
  const std::shared_ptr<Books> books_;
  int64_t bytes_ = 0;
};

BodyRoom::BodyRoom(const BodyRoomOptions& options, Loop& loop)
    : options_(options), loop_(loop), books_(std::make_shared<Books>()) {
  require(options.max_bytes >= options.max_body_bytes, Code::kInvalid, "server: max_bytes is ",
          options.max_bytes, ", it must be at least max_body_bytes, ", options.max_body_bytes);
  books_->room = this;
}

void BodyRoom::close() {
  const std::lock_guard lock(books_->mutex);
  books_->room = nullptr;
}

int64_t BodyRoom::num_bytes() const {
  const std::lock_guard lock(books_->mutex);
  return books_->bytes;
}

void BodyRoom::admit(const Head& head, Admit admit) {
  const bool has_unknown = head.content_length < 0 && !head.header("transfer-encoding").empty();
  const int64_t told = has_unknown ? options_.max_body_bytes : head.content_length;
  const int64_t bytes = std::clamp<int64_t>(told, 0, options_.max_body_bytes);  // more is 413
  if (bytes <= options_.small_bytes || (waiting_.empty() && has_room(bytes)))
    return take(bytes, admit);
  if (head.path.ends_with("/asample"))
    return admit({-1, refusal(429, "server: there is no memory for this request now")});
  const int64_t number = next_number_++;
  waiting_.push_back({number, bytes, std::move(admit)});
  loop_.after(options_.patience, [books = books_, number] {
    std::unique_lock lock(books->mutex);
    BodyRoom* const room = books->room;
    lock.unlock();
    if (room) room->give_up(number);
  });
}

// One that is as long as may be finds room when nothing else is held.
bool BodyRoom::has_room(int64_t bytes) const { return num_bytes() + bytes <= options_.max_bytes; }

void BodyRoom::take(int64_t bytes, const Admit& admit) {
  admit({.max_body_bytes = options_.max_body_bytes,
         .held = bytes > 0 ? std::make_shared<Room>(books_, bytes) : nullptr});
}

void BodyRoom::go_on() {
  while (!waiting_.empty() && has_room(waiting_.front().bytes)) {
    const Waiting first = std::move(waiting_.front());
    waiting_.pop_front();
    take(first.bytes, first.admit);
  }
}

void BodyRoom::give_up(int64_t number) {
  const auto found = std::ranges::find(waiting_, number, &Waiting::number);
  if (found == waiting_.end()) return;
  Response busy =
      refusal(503, "server: there was no memory for this request for " +
                       std::to_string(options_.patience.count() / 1000) + " s; come again");
  busy.headers.emplace_back("Retry-After", "5");
  const Admit admit = std::move(found->admit);
  waiting_.erase(found);
  admit({-1, std::move(busy)});
  go_on();  // a shorter one may have stood behind it
}

}  // namespace twinkle::server
