#include "twinkle/server/service/operations.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/fault/fault.h"
#include "twinkle/base/file.h"
#include "twinkle/base/json.h"
#include "twinkle/server/http/message.h"

namespace twinkle::server {
namespace {

using engine::Outcome;

std::string reason_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
}

Outcome cancelled() {
  return {.error = std::make_exception_ptr(Error(
              Code::kConflict, "server: the session has finished, and this sample was cancelled"))};
}

}  // namespace

Response failure(const std::string& text, bool is_users) {
  return {.body = boost::json::serialize(
              JsonObject{{"error", readable(text)}, {"category", is_users ? "user" : "server"}})};
}

Operations::Operations(const LineOptions& lines, Backend& backend, Threads threads,
                       History& history, Rates& rates, Promises& promises)
    : backend_(backend),
      loop_(threads.loop),
      history_(history),
      promises_(promises),
      lines_(lines, backend, threads, history, rates,
             {.give = [this](int64_t number,
                             engine::Accepted accepted) { give(number, std::move(accepted)); },
              .fail =
                  [this](int64_t number, const std::exception_ptr& error) {
                    loop_.post([this, number, error] { came(number, {.error = error}); });
                  },
              .unread =
                  [this](int64_t number, const std::exception_ptr& error) {
                    on_trouble_(entries_.at(number)->pending->request_id +
                                " waits, since its record cannot be read now: " + reason_of(error));
                  }}) {}

void Operations::start(std::shared_ptr<Pending> pending, bool covered) {
  const int64_t number = next_++;
  const auto entry = std::make_shared<Entry>();
  entry->covered = covered;
  entry->pending = std::move(pending);
  entries_[number] = entry;
  numbers_[entry->pending->request_id] = number;
  if (covered || history_.is_replaying())
    entry->pending->let_go();
  else
    ask(*entry, number);
}

void Operations::require_room(const Pending& pending) const {
  lines_.require_free(pending);
  backend_.check(engine::Operation(pending.ready->operation));  // whose room is given back
}

void Operations::cancel_samples(const std::string& session) {
  if (history_.is_replaying()) return;
  std::vector<int64_t> numbers;
  for (const auto& [number, entry] : entries_) {
    const Pending& pending = *entry->pending;
    if (!pending.samples || entry->came || !pending.request_id.starts_with(session + ":")) continue;
    entry->is_cancelled = true;  // all, before the next of a line is given
    numbers.push_back(number);
  }
  for (const int64_t number : numbers) cancel(number);
}

void Operations::cancel(int64_t number) {
  Entry& entry = *entries_.at(number);
  entry.is_cancelled = true;
  if (entry.is_given)
    backend_.cancel(entry.engine_id);
  else if (lines_.remove(number, *entry.pending))
    end_cancelled(number);
}

void Operations::cancel(const std::string& request_id) {
  const auto found = numbers_.find(request_id);
  if (found != numbers_.end() && !closing_) cancel(found->second);
}

void Operations::end_cancelled(int64_t number) {
  loop_.post([this, number] { came(number, cancelled()); });
}

bool Operations::has_sample(const std::string& tenant, int64_t version) const {
  return lines_.has_sample(tenant, version);
}

void Operations::ask(Entry& entry, int64_t number, bool is_again) {
  entry.is_asked = true;
  const auto lost = lost_.find(entry.pending->tenant);
  if (lost != lost_.end())
    return loop_.post([this, number, why = lost->second] {
      came(number, {.error = std::make_exception_ptr(Error(Code::kInternal, why))});
    });
  lines_.add(number, entry.pending, is_again);
}

void Operations::give(int64_t number, engine::Accepted accepted) {
  if (closing_) return;
  Entry& entry = *entries_.at(number);
  entry.is_given = true;
  if (entry.is_cancelled) return end_cancelled(number);
  entry.engine_id = backend_.submit(std::move(accepted), [this, number](Outcome outcome) {
    const auto shared = std::make_shared<Outcome>(std::move(outcome));
    loop_.post([this, number, shared] { came(number, std::move(*shared)); });
  });
  if (entry.pending->on_given) entry.pending->on_given();
}

void Operations::came(int64_t number, Outcome outcome) {
  if (closing_) return;
  const std::shared_ptr<Entry> entry = entries_.at(number);
  const Pending& pending = *entry->pending;
  if (entry->is_cancelled && outcome.error) outcome.error = cancelled().error;
  if (const auto unmade = unmade_.find(pending.tenant); outcome.error && unmade != unmade_.end())
    outcome.error = unmade->second;
  // Of what failed before it began, as a sample that was cancelled while it was held, nothing was.
  Used used = outcome.error && outcome.seconds == 0 ? Used{} : pending.used;
  used.generated = outcome.error ? outcome.generated : generated_in(outcome.result);
  used.seconds = outcome.seconds;
  if (pending.listener) return tell(number, used, std::move(outcome));
  Response response = answer_of(pending, outcome);
  entry->came = Ended{.request_id = pending.request_id,
                      .failed = outcome.error != nullptr,
                      .content_type = std::move(response.content_type),
                      .body = std::move(response.body),
                      .used = used};
  if (history_.is_replaying()) {
    if (entry->recorded) {  // else its record is still to come, or was never written
      compare(*entry);
      entries_.erase(number);
    }
  } else {
    write(number);
  }
  outcome = {};  // whose room the next may need
  if (!entry->is_given) return;
  if (pending.on_place) pending.on_place();
  lines_.ended(pending);
}

// The end of one that nobody keeps.
void Operations::tell(int64_t number, const Used& used, Outcome outcome) {
  const std::shared_ptr<Entry> entry = entries_.extract(number).mapped();
  const Pending& pending = *entry->pending;
  numbers_.erase(pending.request_id);
  on_used_({.owner = pending.owner, .key_id = pending.key_id},
           {.request_id = pending.request_id, .used = used});
  outcome.room = {};  // which the next may need
  if (entry->is_given) lines_.ended(pending);
  if (outcome.error) {
    const Failure why = failure_of(pending, outcome.error);
    outcome.error =
        std::make_exception_ptr(Error(why.is_users ? Code::kInvalid : Code::kInternal, why.text));
  }
  pending.listener->on_end(std::move(outcome));
}

Response Operations::answer_of(const Pending& pending, const Outcome& outcome) const {
  try {
    if (outcome.error) std::rethrow_exception(outcome.error);
    return pending.ready->answer(outcome.result);
  } catch (...) {
    const Failure why = failure_of(pending, std::current_exception());
    return failure(why.text, why.is_users);
  }
}

// Of files of the state clients know nothing, and it is no fault of theirs if one cannot be used.
Operations::Failure Operations::failure_of(const Pending& pending,
                                           const std::exception_ptr& error) const {
  std::string text;
  bool is_users = false;
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    text = e.what();
    const auto of_file = paths_ ? paths_->told(text) : std::nullopt;
    is_users = !of_file && e.code != Code::kInternal && e.code != Code::kBusy;
    if (!is_users) on_trouble_(pending.request_id + " failed: " + text);
    if (of_file) text = of_file->text;
    if (of_file && e.code == Code::kNotFound)
      text = "server: " + of_file->first +
             " cannot be read: its folder, or a file in it, is gone; the operator can put it back";
  } catch (const std::exception& e) {
    text = e.what();
    on_trouble_(pending.request_id + " failed: " + text);
  }
  return {text, is_users};
}

// The engine has done it, and nobody may be told before.
void Operations::write(int64_t number) {
  fault("before outcome");
  history_.append(*entries_.at(number)->came, [this, number](uint64_t sequence, const auto& error) {
    if (error) return;  // the service ends: the next start does it again
    const std::shared_ptr<Entry> entry = entries_.extract(number).mapped();
    numbers_.erase(entry->pending->request_id);
    apply(*entry, *entry->came, sequence);
    fault("after outcome");
  });
}

// `sequence`: of the record of the end.
void Operations::apply(const Entry& entry, const Ended& ended, uint64_t sequence) {
  if (const auto* made = promises_.find(ended.request_id)) on_used_(*made, ended);
  if (entry.pending->on_end) entry.pending->on_end(ended);
  promises_.settle(entry.pending->request_id,
                   {.body = ended.body, .content_type = ended.content_type}, sequence);
}

// A Save that ended behind later operations of its tenant is done again with them, and its disk may
// refuse now, or then: that is no difference of the engine.
void Operations::compare(const Entry& entry) {
  if (entry.pending->saves || !differs_.empty() || entry.recorded->is_told_as(*entry.came)) return;
  differs_ = entry.pending->request_id;
}

// Of what a replay must do again.
void Operations::look_for_checkpoint(const Entry& entry) {
  const std::string& folder = entry.pending->reads;
  if (folder.empty() || is_there(folder)) return;
  const std::string& run = entry.pending->tenant;
  lose(run, "server: the run '" + run + "' is lost: the checkpoint in " + folder +
                ", with which it began, was removed; put it back and start the server again, or "
                "make another run");
}

void Operations::replay(const Ended& record) {
  const auto known = numbers_.find(record.request_id);
  require(known != numbers_.end(), Code::kInvalid, "server: the journal ends '", record.request_id,
          "', which its records did not begin");
  const int64_t number = known->second;
  numbers_.erase(known);
  const std::shared_ptr<Entry> entry = entries_.at(number);
  entry->recorded = record;
  const bool is_done = record.failed || !entry->pending->changes_engine;
  if (!is_done && !entry->covered) look_for_checkpoint(*entry);
  if (entry->covered || lost_.contains(entry->pending->tenant) || (!entry->is_asked && is_done)) {
    entries_.erase(number);
  } else {
    for (const auto& [n, before] : entries_)
      // A Sample need not have ended before what came behind it: its own end says what it needs.
      if (n <= number && !before->covered && !before->is_asked && !before->pending->samples &&
          before->pending->tenant == entry->pending->tenant)
        ask(*before, n, true);
    if (entry->came) {
      compare(*entry);
      entries_.erase(number);
    }
  }
  apply(*entry, record, history_.sequence());
}

int64_t Operations::num_again() const {
  return std::ranges::count_if(entries_,
                               [](const auto& e) { return e.second->recorded.has_value(); });
}

std::set<std::string> Operations::waiting_samplers() const {
  std::set<std::string> out;
  for (const auto& [number, entry] : entries_)
    if (!entry->is_asked && entry->pending->samples) out.insert(entry->pending->tenant);
  return out;
}

bool Operations::finish_replay(bool must_agree) {
  for (const auto& [number, entry] : entries_) {
    require(!entry->covered, Code::kInvalid, "server: the journal has a snapshot behind '",
            entry->pending->request_id, "', which did not end");
    if (!entry->is_asked) ask(*entry, number);
  }
  require(!must_agree || differs_.empty(), Code::kInvalid, "server: '", differs_,
          "' ended otherwise when it was done again than the journal says; the state is not what "
          "clients were told");
  if (num_again() > 0) return false;
  std::vector<int64_t> ended;
  for (const auto& [number, entry] : entries_)
    if (entry->came) ended.push_back(number);
  for (const int64_t number : ended) write(number);
  return true;
}

}  // namespace twinkle::server
