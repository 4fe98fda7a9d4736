#include "twinkle/engine/group/group_executor.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/engine/group/decided.h"
#include "twinkle/engine/memory/text_of_error.h"

namespace twinkle::engine {
namespace {

// Followers have what they have computed; other results are small.
bool followers_have(const Result& result) {
  return std::holds_alternative<ForwardResult>(result) ||
         std::holds_alternative<SampleResult>(result);
}

Command::Told told_of(int64_t number, const Outcome& outcome) {
  Command::Told out{.number = number, .id = outcome.id};
  if (!outcome.error) {
    if (!followers_have(outcome.result)) out.result = to_bytes(outcome.result);
    return out;
  }
  try {
    std::rethrow_exception(outcome.error);
  } catch (const Error& e) {
    // The other ranks' scripts did not cause what rank 0 has cancelled.
    const bool is_cancelled = e.code == Code::kConflict && e.what() == std::string_view(kCancelled);
    out.code = static_cast<int32_t>(is_cancelled ? Code::kInternal : e.code);
    out.error = is_cancelled ? "engine: rank 0 has cancelled it, as an interrupt of its script does"
                             : e.what();
  } catch (...) {
    out.code = static_cast<int32_t>(Code::kInternal);
    out.error = text_of(outcome.error);
  }
  return out;
}

const void* place_of(const Operation& operation) {
  return std::visit([](const auto& held) { return static_cast<const void*>(&held); }, operation);
}
const void* place_of(const Sample& sample) { return &sample; }

// Empty: it is done; else the code and the text of the error.
void require_written(const std::string& said, size_t rank) {
  if (said.empty()) return;
  const size_t space = said.find(' ');
  throw Error(static_cast<Code>(std::stoi(said.substr(0, space))),
              "engine: rank " + std::to_string(rank) + ": " + said.substr(space + 1));
}

}  // namespace

GroupExecutor::GroupExecutor(Executor& local, const Group& group) : local_(local), group_(group) {}

void GroupExecutor::close() {
  {
    const Lock lock(mutex_);
    if (std::exchange(closing_, true)) return;
  }
  try {
    call({.kind = Command::kClose}, [] { return std::string(); });
  } catch (...) {
    // Broken: the followers have ended.
  }
}

// ---- who talks to the followers

void GroupExecutor::acquire() {
  Lock lock(mutex_);
  const int64_t before = num_came_++;
  while (num_left_ < before) lock.wait(next_);
  if (why_.empty()) return;
  pass_on();
  fail(Code::kInternal, why_);
}

void GroupExecutor::pass_on() {
  ++num_left_;
  next_.notify_all();
}

// Sends first what has come meanwhile, if nobody's command will: a follower's caller waits for it.
void GroupExecutor::release() {
  while (true) {
    Command news;
    {
      const Lock lock(mutex_);
      if (news_.told.empty() || !why_.empty() || num_came_ > num_left_ + 1) return pass_on();
      news = std::exchange(news_, {});
    }
    try {
      group_.control->broadcast(to_bytes(news), 0);
    } catch (...) {  // whatever it is: the next one waits for this one
      broken(text_of(std::current_exception()));
    }
  }
}

void GroupExecutor::broken(const std::string& why) {
  {
    const Lock lock(mutex_);
    if (why_.empty()) why_ = why;
  }
  group_.close(why);
}

void GroupExecutor::call(Command command, const std::function<std::string()>& run) {
  acquire();
  std::exception_ptr failed;
  try {
    {
      const Lock lock(mutex_);
      command.finished = std::exchange(news_.finished, {});
      command.told = std::exchange(news_.told, {});
    }
    group_.control->broadcast(to_bytes(command), 0);
    if (command.kind != Command::kClose) failed = agree(*group_.control, run);
  } catch (...) {
    broken(text_of(std::current_exception()));
    release();
    throw;
  }
  release();
  if (failed) std::rethrow_exception(failed);
}

void GroupExecutor::entered(int64_t number, const Operation& operation) {
  const Lock lock(mutex_);
  numbers_[place_of(operation)] = number;
}

void GroupExecutor::tell(int64_t number, const Outcome& outcome) {
  {
    const Lock lock(mutex_);
    std::erase_if(numbers_, [&](const auto& entered) { return entered.second == number; });
    news_.told.push_back(told_of(number, outcome));
    if (num_came_ > num_left_ || !why_.empty()) return;  // who is talking sends it
    ++num_came_;
  }
  release();
}

// ---- the calls

template <class Content>
Command::Run GroupExecutor::named(int64_t id, const Content& content) {
  const Lock lock(mutex_);
  return {.id = id, .number = numbers_.at(place_of(content))};
}

// Every rank holds what it has of a save; some have nothing to write.
FirstPart GroupExecutor::first_part(const Operation& operation) {
  if (!std::holds_alternative<Save>(operation)) return local_.first_part(operation);
  const int64_t number = ++num_saves_;
  Command command{.kind = Command::kFirstPart};
  command.work.push_back(named(number, operation));
  FirstPart first;
  call(std::move(command), [&] {
    first = local_.first_part(operation);
    return std::string();
  });
  if (!first.rest) return first;
  first.rest = [this, rest = std::move(first.rest), number](const Writers&) {
    return write(rest, number);
  };
  return first;
}

// The writers of all ranks meet when each has done its part of what the leader has begun, Saves one
// after the other; meanwhile the followers go on with other calls.
Result GroupExecutor::write(const Rest& rest, int64_t number) {
  enum { kHeld, kBegun, kWritten } others = kHeld;
  const auto begin = [&](const std::string& folder) {
    Command command{.kind = Command::kWrite, .folder = folder};
    command.work.push_back({.id = number});
    call(std::move(command), [] { return std::string(); });
    others = folder.empty() ? kWritten : kBegun;
  };
  const auto wait = [&] {
    others = kWritten;
    std::vector<std::string> said;
    try {
      said = group_.saves->all_gather(std::string());
    } catch (...) {
      broken(text_of(std::current_exception()));
      throw;
    }
    for (size_t r = 0; r < said.size(); ++r) require_written(said[r], r);
  };
  const auto end = [&] {
    if (others == kHeld) begin("");
    if (others == kBegun) wait();
  };
  try {
    Result out = rest({.begin = begin, .wait = wait});
    end();
    return out;
  } catch (...) {
    try {
      end();
    } catch (const std::exception&) {
      // The first error is told.
    }
    throw;
  }
}

// Files are read now, as the followers read them, not as they were when it was submitted.
Result GroupExecutor::run(const Operation& operation, Prepared*) {
  Command command{.kind = Command::kRun};
  command.work.push_back(named(0, operation));
  Result result;
  call(std::move(command), [&] {
    result = local_.run(operation, nullptr);
    return std::string();
  });
  return result;
}

void GroupExecutor::run_batch(std::span<const Work> batch, const std::atomic<bool>&,
                              BatchOutcome& outcome) {
  // One that is not wanted any more goes on to its end: a rank alone can't leave it.
  const std::atomic<bool> goes_on = false;
  Command command{.kind = Command::kBatch};
  for (const Work& work : batch) {
    Command::Run run = named(work.id, *work.operation);
    run.first = work.first;
    run.last = work.last;
    run.num_tokens = work.num_tokens;
    command.work.push_back(run);
  }
  call(std::move(command), [&] {
    local_.run_batch(batch, goes_on, outcome);
    return decided(outcome);
  });
}

void GroupExecutor::start(int64_t id, const Sample& sample, Share share, SampleHooks hooks,
                          Prepared* prepared) {
  Command command{.kind = Command::kStart, .weight = share.weight, .priority = share.priority};
  command.work.push_back(named(id, sample));
  call(std::move(command), [&] {
    local_.start(id, sample, share, std::move(hooks), prepared);
    return std::string();
  });
}

std::vector<Ended> GroupExecutor::step() {
  BatchOutcome outcome;
  call({.kind = Command::kStep}, [&] {
    outcome.ended = local_.step();
    return decided(outcome);
  });
  return std::move(outcome.ended);
}

Result GroupExecutor::commit(int64_t id) {
  Result result = local_.commit(id);
  const Lock lock(mutex_);
  news_.finished.push_back({id, true});
  return result;
}

void GroupExecutor::undo(int64_t id) {
  local_.undo(id);
  const Lock lock(mutex_);
  news_.finished.push_back({id, false});
}

}  // namespace twinkle::engine
