#include "twinkle/server/service/lines.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "twinkle/base/error.h"

namespace twinkle::server {
namespace {

// Behind which what the system refused for want of files, memory or luck is asked for again.
constexpr std::chrono::milliseconds kReadAgain{1000};

bool is_busy(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return e.code == Code::kBusy;
  } catch (...) {
    return false;
  }
}

// Whether it may go well next time: a record that is damaged stays so.
bool passes(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    return true;
  } catch (...) {
    return is_busy(error);
  }
}

engine::Beyond beyond_of(const Pending& pending) {
  return pending.came_before ? engine::Beyond::kAlone : engine::Beyond::kRefused;
}

}  // namespace

void Lines::add(int64_t number, std::shared_ptr<Pending> pending, bool is_again) {
  const std::string key = key_of(*pending);
  lines_[key].waiting.push_back({number, pending, is_again});
  ++num_waiting_;
  if (publishes_again(lines_[key].waiting.back())) ++publishing_[pending->tenant];
  if (is_again || !pending->is_rated || pending->owner.empty())
    pending->may_go = true;
  else
    ask_rates(key, pending);
  if (lines_[key].waiting.size() == 1) go_on(key);
  const auto line = lines_.find(key);
  if (line == lines_.end() || line->second.waiting.empty()) return;
  if (line->second.has_room && line->second.waiting.size() == 1) return;
  if (line->second.waiting.back().number == number) pending->let_go();  // it waits
}

// In bytes of max_bytes_total: what is little of that may be much of the engine's memory, as a
// short request for many samples is, whose result counts until it is there.
int64_t Lines::size_of(const Pending& pending) const {
  const double part = static_cast<double>(pending.held) / static_cast<double>(max_held_);
  const double as_bytes = std::ceil(part * static_cast<double>(options_.max_bytes_total));
  return std::max(pending.source.bytes, static_cast<int64_t>(as_bytes));
}

void Lines::ask_rates(const std::string& key, const std::shared_ptr<Pending>& pending) {
  const auto go = [this, key, pending] {
    pending->may_go = true;
    go_on(key);
  };
  const int64_t tokens = pending->used.trained + pending->used.prompt;
  if (rates_.enter(pending->owner, pending->request_id, tokens, go)) pending->may_go = true;
}

bool Lines::remove(int64_t number, const Pending& pending) {
  const std::string key = key_of(pending);
  const auto line = lines_.find(key);
  if (line == lines_.end()) return false;
  std::deque<Waiting>& waiting = line->second.waiting;
  const auto found = std::ranges::find(waiting, number, &Waiting::number);
  if (found == waiting.end() || (line->second.is_reading && found == waiting.begin())) return false;
  if (line->second.has_room && found == waiting.begin()) give_room_back(line->second, pending);
  waiting.erase(found);
  --num_waiting_;
  hungry_.remove(pending.owner, size_of(pending), number);
  rates_.leave(pending.request_id);
  if (waiting.empty() && line->second.given.num == 0) lines_.erase(line);
  wake_others();  // its room, or what it held up as one that is passed no more
  go_on(key);
  return true;
}

void Lines::ended(const Pending& pending) {
  const std::string key = key_of(pending);
  Line& line = lines_.at(key);
  count(line, pending, -1);
  line.is_refused = false;
  if (line.waiting.empty() && line.given.num == 0) lines_.erase(key);
  wake_others();  // first: they have waited for room longer than this line's next
  go_on(key);
}

void Lines::require_free(const Pending& pending) const {
  const std::string& owner = pending.owner;
  const int64_t bytes = size_of(pending);
  const auto found = lines_.find(key_of(pending));
  const Line none;
  const Line& line = found == lines_.end() ? none : found->second;
  const bool is_held = !line.waiting.empty() && !line.waiting.front().pending->may_go;
  require((line.waiting.empty() || is_held) && has_room(line, pending.source.bytes), Code::kBusy,
          "server: the engine's queue of '", pending.tenant, "' is full; come again");
  const Share own = share_of(owner);
  const auto left = [](int64_t most, int64_t given) { return std::max<int64_t>(0, most - given); };
  require(leaves_places(own, all_), Code::kBusy, "server: the engine has ", own.num,
          " operations of this tenant, and a tenant has at most as many as are left of the ",
          max_places_, " that tenants share of max_queued_total, ", left(max_places_, all_.num),
          "; come again");
  require(
      leaves_bytes(own, all_, bytes), Code::kBusy, "server: the engine has ", own.bytes,
      " bytes of this tenant's requests, this one has ", bytes,
      bytes > pending.source.bytes ? ", by its part of the engine's memory with its result" : "",
      ", and a tenant has at most as many as are left of max_given_bytes_total, ",
      left(options_.max_bytes_total, all_.bytes), "; come again");
  require(hungry_.may_pass(owner, bytes, std::numeric_limits<int64_t>::max()), Code::kBusy,
          "server: the engine's room is kept for a request that has waited longer; come again");
}

bool Lines::has_sample(const std::string& tenant, int64_t version) const {
  const auto found = lines_.find(samples_of(tenant));
  return found != lines_.end() &&
         std::ranges::any_of(found->second.waiting, [&](const Waiting& waiting) {
           return waiting.pending->version == version;
         });
}

bool Lines::has_room(const Line& line, int64_t bytes) const {
  return line.given.num == 0 ||
         (line.given.num < options_.max_given && line.given.bytes + bytes <= options_.max_bytes);
}

Lines::Share Lines::share_of(const std::string& owner) const {
  const auto found = shares_.find(owner);
  return found == shares_.end() ? Share() : found->second;
}

// What an owner is given leaves as much for others: so n of them have 1/(n + 1) each, and who comes
// then finds room, whatever the others have sent before.
bool Lines::leaves_places(const Share& own, const Share& all) const {
  return all.num == 0 || own.num + 1 <= max_places_ - all.num;
}

// What is longer than all may be is given when nothing else is.
bool Lines::leaves_bytes(const Share& own, const Share& all, int64_t bytes) const {
  return all.bytes == 0 || own.bytes + bytes <= options_.max_bytes_total - all.bytes;
}

bool Lines::has_room_in_all(const std::string& owner, int64_t bytes) const {
  const Share own = share_of(owner);
  return leaves_places(own, all_) && leaves_bytes(own, all_, bytes);
}

// `num`: 1, or -1 of one that has its room no more.
void Lines::count(Line& line, const Pending& pending, int64_t num) {
  const auto of = shares_.try_emplace(pending.owner).first;
  line.given.add(num, pending.source.bytes);
  for (Share* share : {&all_, &of->second}) share->add(num, size_of(pending));
  if (of->second.num == 0) shares_.erase(of);
}

// Gives the engine the first of a line, and those behind it, until one must wait.
void Lines::go_on(const std::string& key) {
  for (auto found = lines_.find(key); found != lines_.end(); found = lines_.find(key)) {
    Line& line = found->second;
    if (is_closed_ || line.waiting.empty() || line.is_reading || line.is_refused) return;
    const Waiting& first = line.waiting.front();
    if (!first.pending->may_go) return;
    if (first.pending->version > 0 && publishing_.contains(first.pending->tenant)) return;
    if (!line.has_room && !take_room(key)) return;
    if (!first.pending->ready) return read_first(key);
    if (!give_first(key)) return;
  }
}

// For the first of a line, before it is read: else all that find the same room would be read. Where
// there is none in all, it waits for that.
bool Lines::take_room(const std::string& key) {
  Line& line = lines_.at(key);
  const Waiting& first = line.waiting.front();
  const std::string& owner = first.pending->owner;
  const int64_t bytes = size_of(*first.pending);
  if (!has_room(line, first.pending->source.bytes)) return false;  // until one of its own ends
  if (!has_room_in_all(owner, bytes) || !hungry_.may_pass(owner, bytes, first.number)) {
    hungry_.add(owner, bytes, first.number, key);
    return false;
  }
  hungry_.remove(owner, bytes, first.number);
  count(line, *first.pending, 1);
  hungry_.passed(owner, first.number);
  line.has_room = true;
  return true;
}

// False: not now. What the engine does not take stays as it is.
bool Lines::give_first(const std::string& key) {
  Pending& pending = *lines_.at(key).waiting.front().pending;
  if (!pending.reads.empty()) {
    check_on_disk(key);
    return false;
  }
  return give_checked(key, [&] {
    return backend_.check(std::move(pending.ready->operation), beyond_of(pending), pending.hooks);
  });
}

// The engine reads a checkpoint's files where it is asked whether it takes the operation.
void Lines::check_on_disk(const std::string& key) {
  Line& line = lines_.at(key);
  line.is_reading = true;
  line.full.reset();
  std::deque<std::string>& readers = readers_[line.waiting.front().pending->owner];
  if (readers.empty() || readers.front() != key) readers.push_back(key);  // else it had no room
  if (readers.front() == key) read_checkpoint(key);
}

void Lines::read_checkpoint(const std::string& key) {
  const std::shared_ptr<Pending> pending = lines_.at(key).waiting.front().pending;
  const auto checked = std::make_shared<std::optional<engine::Accepted>>();
  disk_.run(
      [this, checked, pending, beyond = beyond_of(*pending)] {  // nobody else uses it meanwhile
        checked->emplace(backend_.check(std::move(pending->ready->operation), beyond));
      },
      loop_,
      [this, key, checked, owner = pending->owner](const std::exception_ptr& error) {
        lines_.at(key).is_reading = false;
        if (is_closed_) return;
        const bool is_done = give_checked(key, [&] {
          if (error) std::rethrow_exception(error);
          return std::move(**checked);
        });
        if (!is_done) {
          lines_.at(key).full = Full{.bytes = backend_.stats().queued_bytes, .time = loop_.now()};
          return;
        }
        next_checkpoint(owner);
        go_on(key);
      },
      pending->owner);
}

// The first has been read, and the engine has it or never takes it.
void Lines::next_checkpoint(const std::string& owner) {
  const auto readers = readers_.find(owner);
  readers->second.pop_front();
  if (readers->second.empty())
    readers_.erase(readers);
  else
    read_checkpoint(readers->second.front());
}

// Whether what was read is not worth being read again: nothing has been given back since, unless
// others have taken it, for which it is read after a while all the same.
bool Lines::is_still_full(const Line& line) const {
  return line.full && loop_.now() - line.full->time < kReadAgain &&
         backend_.stats().queued_bytes >= line.full->bytes;
}

// Gives the engine the first of a line, if `check` does not throw. False: the engine has no room.
bool Lines::give_checked(const std::string& key, const std::function<engine::Accepted()>& check) {
  const Waiting first = lines_.at(key).waiting.front();
  std::optional<engine::Accepted> accepted;
  try {
    accepted.emplace(check());
  } catch (...) {
    if (is_busy(std::current_exception())) {
      ask_again(key, options_.again);  // it keeps its room, or it would be made anew each time
      return false;
    }
    fail_first(key, std::current_exception());
    return true;
  }
  lines_.at(key).has_room = false;  // which the engine's has
  give_(first.number, std::move(*accepted));
  remove_first(key);
  return true;
}

void Lines::fail_first(const std::string& key, const std::exception_ptr& error) {
  Line& line = lines_.at(key);
  const Waiting first = line.waiting.front();
  give_room_back(line, *first.pending);
  fail_(first.number, error);
  remove_first(key);
}

// Of the first, which is not given. Who waits for it is asked when what goes on now has ended.
void Lines::give_room_back(Line& line, const Pending& pending) {
  line.has_room = false;
  count(line, pending, -1);
  loop_.post([this] { wake_others(); });
}

void Lines::ask_again(const std::string& key, std::chrono::milliseconds pause) {
  Line& line = lines_.at(key);
  line.is_refused = true;
  if (std::exchange(line.is_timed, true)) return;  // an end has asked since then
  loop_.after(pause, [this, key] {
    const auto found = lines_.find(key);
    if (found == lines_.end() || is_closed_) return;
    Line& of = found->second;
    of.is_timed = false;
    if (of.is_refused && is_still_full(of)) return ask_again(key, options_.again);
    of.is_refused = false;
    go_on(key);
  });
}

void Lines::read_first(const std::string& key) {
  Line& line = lines_.at(key);
  line.is_reading = true;
  const Waiting first = line.waiting.front();
  history_.read(first.pending->source.sequence, ReadFor::kWork,
                [this, key, first](const ReadBack& kept, const std::exception_ptr& error) {
                  lines_.at(key).is_reading = false;
                  if (is_closed_) return;
                  try {
                    if (error) std::rethrow_exception(error);
                    first.pending->ready = first.pending->source.make(std::get<Command>(kept));
                  } catch (...) {
                    const std::exception_ptr why = std::current_exception();
                    if (!passes(why)) return fail_read(key, why);
                    if (!std::exchange(first.pending->is_unread, true)) unread_(first.number, why);
                    give_room_back(lines_.at(key), *first.pending);
                    return ask_again(key, kReadAgain);
                  }
                  go_on(key);
                });
}

void Lines::fail_read(const std::string& key, const std::exception_ptr& error) {
  fail_first(key, error);
  go_on(key);
}

// The engine has been given it, or never will be.
void Lines::remove_first(const std::string& key) {
  const auto line = lines_.find(key);
  const Waiting first = std::move(line->second.waiting.front());
  line->second.waiting.pop_front();
  --num_waiting_;
  if (line->second.waiting.empty() && line->second.given.num == 0) lines_.erase(line);
  if (!publishes_again(first)) return;
  const auto publishing = publishing_.find(first.pending->tenant);
  if (--publishing->second > 0) return;
  publishing_.erase(publishing);
  go_on(samples_of(first.pending->tenant));
}

// An end made room in all: for who waits longest, first, and for others whose owners have less, or
// who are smaller.
void Lines::wake_others() {
  const auto next = [this] {
    return hungry_.take(
        [this](const std::string& owner, int64_t bytes) { return has_room_in_all(owner, bytes); });
  };
  for (std::string key = next(); !key.empty(); key = next()) go_on(key);
}

}  // namespace twinkle::server
