#include "twinkle/server/service/operations.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/fault/fault.h"
#include "twinkle/base/json.h"

namespace twinkle::server {
namespace {

using engine::Operation;
using engine::Outcome;

constexpr std::chrono::seconds kWriteAgain{1};

// A Save changes folders alone, and a recorded one has made its own.
bool changes_engine(const Operation& operation) {
  return !std::holds_alternative<engine::Forward>(operation) &&
         !std::holds_alternative<engine::Sample>(operation) &&
         !std::holds_alternative<engine::Save>(operation);
}

Response response_of(const Outcome& outcome, const Answered& answer) {
  if (outcome.error) return failure(outcome.error);
  try {
    return answer(outcome.result);
  } catch (...) {
    return failure(std::current_exception());
  }
}

}  // namespace

Response failure(const std::string& text, bool is_users) {
  return {.body = boost::json::serialize(
              JsonObject{{"error", text}, {"category", is_users ? "user" : "server"}})};
}

Response failure(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return failure(e.what(), e.code != Code::kInternal && e.code != Code::kBusy);
  } catch (const std::exception& e) {
    return failure(e.what(), false);
  }
}

void Operations::start(const std::string& request_id, engine::Accepted accepted, Answered answer,
                       OnEnd on_end, bool covered) {
  const int64_t number = next_++;
  const Operation& operation = accepted.operation();
  const auto entry = std::make_shared<Entry>();
  entry->request_id = request_id;
  entry->tenant = engine::tenant_of(operation);
  entry->changes_engine = changes_engine(operation);
  entry->samples = std::holds_alternative<engine::Sample>(operation);
  entry->answer = std::move(answer);
  entry->on_end = std::move(on_end);
  entry->covered = covered;
  if (!covered) entry->accepted.emplace(std::move(accepted));
  entries_[number] = entry;
  numbers_[request_id] = number;
  if (!history_.is_replaying()) give(*entry, number);
}

void Operations::give(Entry& entry, int64_t number) {
  if (closing_) return;
  engine::Accepted accepted = std::move(*entry.accepted);
  entry.accepted.reset();
  backend_.submit(std::move(accepted), [this, number](Outcome outcome) {
    const auto shared = std::make_shared<Outcome>(std::move(outcome));
    loop_.post([this, number, shared] { came(number, std::move(*shared)); });
  });
}

void Operations::came(int64_t number, Outcome outcome) {
  if (closing_) return;
  Entry& entry = *entries_.at(number);
  Response response = response_of(outcome, entry.answer);
  entry.came = Ended{.request_id = entry.request_id,
                     .failed = outcome.error != nullptr,
                     .content_type = std::move(response.content_type),
                     .body = std::move(response.body)};
  if (!history_.is_replaying()) return write(number);
  if (!entry.recorded) return;  // its record is still to come, or was never written
  compare(entry);
  entries_.erase(number);
}

// Until the disk takes it: the engine has done it, and nobody may be told before.
void Operations::write(int64_t number) {
  fault("before outcome");
  history_.append(*entries_.at(number)->came, [this, number](uint64_t, std::exception_ptr error) {
    if (error) return loop_.after(kWriteAgain, [this, number] { write(number); });
    const std::shared_ptr<Entry> entry = entries_.extract(number).mapped();
    numbers_.erase(entry->request_id);
    apply(*entry, *entry->came);
    fault("after outcome");
  });
}

void Operations::apply(const Entry& entry, const Ended& ended) {
  if (entry.on_end) entry.on_end(ended);
  promises_.settle(entry.request_id, {.body = ended.body, .content_type = ended.content_type});
}

void Operations::compare(const Entry& entry) {
  if (differs_.empty() && *entry.recorded != *entry.came) differs_ = entry.request_id;
}

void Operations::replay(const Ended& record) {
  const auto known = numbers_.find(record.request_id);
  require(known != numbers_.end(), Code::kInvalid, "server: the journal ends '", record.request_id,
          "', which its records did not begin");
  const int64_t number = known->second;
  numbers_.erase(known);
  const std::shared_ptr<Entry> entry = entries_.at(number);
  entry->recorded = record;
  if (entry->covered || (entry->accepted && (record.failed || !entry->changes_engine))) {
    entries_.erase(number);
  } else {
    for (const auto& [n, before] : entries_)
      if (n <= number && before->accepted && before->tenant == entry->tenant) give(*before, n);
    if (entry->came) {
      compare(*entry);
      entries_.erase(number);
    }
  }
  apply(*entry, record);
}

bool Operations::is_running() const {
  return std::ranges::any_of(entries_, [](const auto& e) {
    const Entry& entry = *e.second;
    return !entry.covered && !entry.accepted && !entry.came;
  });
}

std::set<std::string> Operations::waiting_samplers() const {
  std::set<std::string> out;
  for (const auto& [number, entry] : entries_)
    if (entry->accepted && entry->samples) out.insert(entry->tenant);
  return out;
}

bool Operations::finish_replay(bool must_agree) {
  for (const auto& [number, entry] : entries_) {
    require(!entry->covered, Code::kInvalid, "server: the journal has a snapshot behind '",
            entry->request_id, "', which did not end");
    if (entry->accepted) give(*entry, number);
  }
  require(!must_agree || differs_.empty(), Code::kInvalid, "server: '", differs_,
          "' ended otherwise when it was done again than the journal says; the state is not what "
          "clients were told");
  for (const auto& [number, entry] : entries_)
    if (entry->recorded) return false;
  std::vector<int64_t> ended;
  for (const auto& [number, entry] : entries_)
    if (entry->came) ended.push_back(number);
  for (const int64_t number : ended) write(number);
  return true;
}

}  // namespace twinkle::server
