#include "twinkle/server/service/promises.h"

#include <algorithm>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/base/json.h"
#include "twinkle/server/history/history.h"

namespace twinkle::server {
namespace {

// Not the operation's failure: a disk may heal.
Response not_read(const std::string& id, const std::exception_ptr& error) {
  std::string why;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    why = e.what();
  }
  Response out = refusal(503, "server: the result of '" + id + "' cannot be read back: " + why);
  out.headers.emplace_back("Retry-After", "1");
  return out;
}

// Polls are given the same bytes, however many there are.
Response shared(Response response) {
  response.shared = std::make_shared<const std::string>(std::move(response.body));
  return response;
}

Response answer_of(Ended ended) {
  return shared({.body = std::move(ended.body), .content_type = std::move(ended.content_type)});
}

Response not_yet(const JsonObject& queue_state) {
  return {.status = 408, .body = boost::json::serialize(queue_state)};
}

}  // namespace

void Promises::require_room(const std::string& owner, int64_t bytes) const {
  const auto of = open_of_.find(owner);
  if (of == open_of_.end()) return;
  require(of->second.num < options_.max_open, Code::kBusy, "server: ", options_.max_open,
          " accepted requests of this tenant have not ended, which is the limit; wait for some of "
          "their results");
  const int64_t disk = calls_.max_disk(owner);
  const int64_t limit =
      disk > 0 ? std::min(disk, options_.max_open_bytes) : options_.max_open_bytes;
  require(of->second.bytes + bytes <= limit, Code::kBusy,
          "server: accepted requests of this tenant "
          "that have not ended have ",
          of->second.bytes, " bytes, this one has ", bytes, ", their limit is ", limit,
          "; wait for some of their results, and send the numbers that "
          "they wait for");
}

void Promises::open(const std::string& id, const std::string& owner, const std::string& key_id,
                    int64_t bytes) {
  const auto before = carried_.find(id);
  const bool is_carried = before != carried_.end();
  require(!promises_.contains(id), Code::kConflict, "server: request_id '", id, "' exists");
  promises_[id].made =
      is_carried ? before->second : Made{owner, ++num_ever_, calls_.sequence(), key_id};
  promises_[id].bytes = bytes;
  carried_.erase(id);
  ++num_open_;
  Open& of = open_of_[owner];
  ++of.num;
  of.bytes += bytes;
}

const Promises::Made* Promises::find(const std::string& id) const {
  const auto found = promises_.find(id);
  return found == promises_.end() ? nullptr : &found->second.made;
}

void Promises::settle(const std::string& id, Response response, uint64_t ended) {
  const auto found = promises_.find(id);
  if (found == promises_.end() || found->second.is_settled) return;
  Promise& promise = found->second;
  keep(promise, std::move(response));
  promise.is_settled = true;
  promise.ended = ended;
  if (ended > 0) by_age_[ended] = id;
  count_settled(promise);
  const std::vector<Waiter> waiters = std::exchange(promise.waiters, {});
  num_held_ -= std::ssize(waiters);
  for (const Waiter& w : waiters) give(id, promise, w.reply);
  while (num_bytes_ > options_.max_result_bytes && !by_age_.empty())
    let_go(promises_.at(by_age_.begin()->second));
}

void Promises::let_go(Promise& promise) {
  if (promise.response) num_bytes_ -= std::ssize(promise.response->text());
  promise.response.reset();
  by_age_.erase(promise.ended);
}

void Promises::keep(Promise& promise, Response response) {
  num_bytes_ += std::ssize(response.body);
  promise.response = shared(std::move(response));
}

void Promises::count_settled(const Promise& promise) {
  --num_open_;
  const auto of = open_of_.find(promise.made.owner);
  of->second.bytes -= promise.bytes;
  if (--of->second.num == 0) open_of_.erase(of);
}

std::string Promises::told_kept() const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(options_.keep_read);
  return "; results that were fetched are kept for " + std::to_string(seconds.count()) + " s";
}

int64_t Promises::poll(const std::string& id, Reply reply) {
  const auto found = promises_.find(id);
  if (found == promises_.end()) {
    reply(refusal(404, "server: request_id '" + id + "' is not known" + told_kept()));
    return 0;
  }
  Promise& promise = found->second;
  if (promise.is_settled) {
    give(id, promise, reply);
    return 0;
  }
  const int64_t number = next_waiter_++;
  promise.waiters.push_back({number, std::move(reply)});
  ++num_held_;
  loop_.after(options_.hold, [this, id, number] {
    if (const Reply late = take_waiter(id, number)) late(not_yet(calls_.queue_state(id)));
  });
  return number;
}

// Empty: it waits no more.
Reply Promises::take_waiter(const std::string& id, int64_t number) {
  const auto found = promises_.find(id);
  if (found == promises_.end()) return {};
  std::vector<Waiter>& waiters = found->second.waiters;
  const auto waiter = std::ranges::find(waiters, number, &Waiter::number);
  if (waiter == waiters.end()) return {};
  Reply out = std::move(waiter->reply);
  waiters.erase(waiter);
  --num_held_;
  return out;
}

void Promises::forget(const std::string& id, int64_t number) { take_waiter(id, number); }

void Promises::give(const std::string& id, Promise& promise, const Reply& reply) {
  if (!promise.response) return read_back(id, promise.ended, reply);
  reply(*promise.response);
  was_read(id, promise);
}

// Once for all who ask meanwhile.
void Promises::read_back(const std::string& id, uint64_t ended, const Reply& reply) {
  std::vector<Reply>& readers = readers_[id];
  readers.push_back(reply);
  if (readers.size() > 1) return;
  calls_.read(ended, [this, id](ReadBack kept, const std::exception_ptr& error) {
    was_read_back(id, std::move(kept), error);
  });
}

void Promises::was_read_back(const std::string& id, ReadBack kept,
                             const std::exception_ptr& error) {
  const std::vector<Reply> readers = readers_.extract(id).mapped();
  const Response told = error ? not_read(id, error) : answer_of(std::get<Ended>(std::move(kept)));
  for (const Reply& reply : readers) reply(told);
  const auto found = promises_.find(id);
  if (!error && found != promises_.end()) was_read(id, found->second);
}

void Promises::was_read(const std::string& id, Promise& promise) {
  if (promise.read_ms > 0) return;
  drop_later(id, promise, milliseconds_since_1970());
  calls_.on_read(id, promise.read_ms);
}

void Promises::drop_later(const std::string& id, Promise& promise, int64_t read_ms) {
  promise.read_ms = read_ms;
  loop_.after(options_.keep_read, [this, id] { drop(id); });
}

void Promises::restore_read(const std::string& id, int64_t read_ms) {
  const auto found = promises_.find(id);
  if (found != promises_.end() && found->second.is_settled) drop_later(id, found->second, read_ms);
}

std::vector<PromiseState> Promises::state() const {
  std::vector<PromiseState> out;
  for (const auto& [id, promise] : promises_) {
    const auto& [owner, number, sequence, key_id, num_samples] = promise.made;
    PromiseState& to = out.emplace_back();
    to = {.id = id, .owner = owner, .number = number, .read_ms = promise.read_ms, .key_id = key_id};
    to.ended = promise.ended;
    to.num_samples = num_samples;
    if (!promise.is_settled) to.sequence = sequence;
    if (!promise.is_settled || promise.ended > 0) continue;
    to.status = promise.response->status;
    to.content_type = promise.response->content_type;
    to.body = promise.response->text();
  }
  return out;
}

void Promises::restore(const State& state) {
  num_ever_ = state.num_promises;
  for (const PromiseState& from : state.promises) {
    const Made made{from.owner, from.number, from.sequence, from.key_id, from.num_samples};
    if (from.sequence > 0) {
      carried_[from.id] = made;
      continue;
    }
    Promise& promise = promises_[from.id];
    promise.made = made;
    promise.is_settled = true;
    promise.ended = from.ended;
    if (from.ended == 0)
      keep(promise, {.status = static_cast<int>(from.status),
                     .body = from.body,
                     .content_type = from.content_type});
    if (from.read_ms > 0) drop_later(from.id, promise, from.read_ms);
  }
}

void Promises::drop(const std::string& id) {
  auto node = promises_.extract(id);
  if (!node) return;
  Promise& promise = node.mapped();
  if (!promise.is_settled) count_settled(promise);
  num_held_ -= std::ssize(promise.waiters);
  let_go(promise);
  for (const Waiter& w : promise.waiters)
    w.reply(refusal(410, "server: request_id '" + id + "' was given up"));
}

}  // namespace twinkle::server
