#include "twinkle/serving/waiting/futures.h"

#include <algorithm>

#include "twinkle/base/error.h"
#include "twinkle/serving/domain/clock.h"

namespace twinkle::server::core {
namespace {

int64_t bytes_of(const Ended& ended) { return std::ssize(ended.result) + std::ssize(ended.error); }

}  // namespace

void Futures::require_room(const std::string& owner, int64_t bytes, int64_t max_disk) const {
  const Domain::Open open = domain_.open_of(owner);
  require(open.num < options_.max_open, Code::kBusy, "server: ", open.num,
          " requests of this tenant have not ended, max_open is ", options_.max_open,
          "; come again");
  const int64_t most =
      max_disk > 0 ? std::min(max_disk, options_.max_open_bytes) : options_.max_open_bytes;
  require(open.num == 0 || open.bytes + bytes <= most, Code::kBusy, "server: requests of this ",
          "tenant that have not ended take ", open.bytes, " bytes, this one ", bytes,
          ", and the limit is ", most, "; come again");
}

void Futures::keep(const std::string& id, const Result& result) {
  if (by_id_.contains(id)) return;
  kept_.emplace_back(id, result);
  by_id_[id] = std::prev(kept_.end());
  num_bytes_ += bytes_of(*result);
  while (num_bytes_ > options_.max_result_bytes && !kept_.empty()) {
    num_bytes_ -= bytes_of(*kept_.front().second);
    by_id_.erase(kept_.front().first);
    kept_.pop_front();
  }
}

void Futures::complete(const std::string& id) {
  const auto [first, last] = waiting_.equal_range(id);
  std::list<Later<bool>> woken;
  for (auto it = first; it != last; ++it) woken.push_back(it->second);
  waiting_.erase(first, last);
  for (const Later<bool>& later : woken) later.set(true);
}

Task<Result> Futures::get(const Future& future) {
  if (future.ended == 0) {
    Ended failed{.id = future.id, .error = future.error, .is_users = true};
    co_return std::make_shared<const Ended>(std::move(failed));
  }
  const std::string id = future.id;
  if (const auto kept = by_id_.find(id); kept != by_id_.end()) co_return kept->second->second;
  const uint64_t sequence = future.ended;
  Record record = co_await log_.read(sequence, "polls");
  auto* const ended = std::get_if<Ended>(&record);
  require(ended, Code::kInternal, "server: record ", sequence,
          " of the journal is no result; restore a backup");
  const auto result = std::make_shared<const Ended>(std::move(*ended));
  keep(id, result);
  co_return result;
}

std::string Futures::retention_note() const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(options_.keep_read);
  return "; results that were fetched are kept for " + std::to_string(seconds.count()) + " s";
}

Task<Result> Futures::wait(std::string id, Later<bool> gone) {
  const auto known = [&]() -> const Future& {
    const Future* const future = domain_.future(id);
    require(future, Code::kNotFound, "server: request_id '", id, "' is not known",
            retention_note());
    return *future;
  };
  if (!known().is_ended) {
    const auto here = waiting_.emplace(id, gone);
    ++num_held_;
    loop_.after(options_.hold, [gone] { gone.set(false); });
    const bool has_ended = co_await gone;
    --num_held_;
    if (!has_ended) {
      waiting_.erase(here);
      co_return nullptr;
    }
  }
  co_await log_.written(log_.sequence());
  const Result result = co_await get(known());
  was_read(id);
  co_return result;
}

void Futures::was_read(const std::string& id) {
  const Future* const future = domain_.future(id);
  if (!future || future->read_ms > 0) return;
  const Read record{id, milliseconds_since_1970()};
  domain_.apply(record, log_.append(record));  // given again after a crash, if it is lost: no harm
  forget_later(id);
}

void Futures::forget_later(const std::string& id) {
  loop_.after(options_.keep_read, [this, id] {
    domain_.forget(id);
    const auto kept = by_id_.find(id);
    if (kept == by_id_.end()) return;
    num_bytes_ -= bytes_of(*kept->second->second);
    kept_.erase(kept->second);
    by_id_.erase(kept);
  });
}

void Futures::keep_read() {
  for (const auto& [id, future] : domain_.futures())
    if (future.read_ms > 0) forget_later(id);
}

}  // namespace twinkle::server::core
