#include "twinkle/engine/group/follower.h"

#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/engine/group/decided.h"
#include "twinkle/engine/memory/text_of_error.h"

namespace twinkle::engine {
namespace {

std::exception_ptr error_of(int32_t code, const std::string& text) {
  return std::make_exception_ptr(Error(static_cast<Code>(code), text));
}

}  // namespace

Follower::Follower(Executor& local, const Group& group)
    : local_(local), group_(group), thread_([this] { loop(); }) {}

void Follower::join() {
  if (thread_.joinable()) thread_.join();
  writer_.stop();
}

std::future<Result> Follower::submit(Door& door, const Operation& mine) {
  try {
    return result(door.enter(mine));
  } catch (const Error& error) {
    if (error.code == Code::kInternal) absent(error.what());
    throw;  // the others are the same on all ranks
  } catch (...) {
    absent(text_of(std::current_exception()));
    throw;
  }
}

std::future<Result> Follower::result(Door::Entry entry) {
  const Lock lock(mutex_);
  require(why_.empty(), Code::kInternal, "engine: ", entry.name, ": ", why_);
  const int64_t number = entry.number;
  Waiting& waiting = waiting_[number];
  waiting.entry = std::move(entry);
  std::future<Result> out = waiting.promise.get_future();
  entered_.notify_one();
  settle(number);
  return out;
}

// The leader may have other ranks' parts, and begin, before this rank's caller has them.
const Operation& Follower::operation(int64_t number) {
  Lock lock(mutex_);
  while (true) {
    const auto it = waiting_.find(number);
    if (it != waiting_.end() && it->second.entry) return it->second.entry->joined.operation;
    require(absent_.empty(), Code::kInternal, absent_);
    lock.wait(entered_);
  }
}

void Follower::absent(const std::string& why) {
  const Lock lock(mutex_);
  if (absent_.empty()) absent_ = why;
  entered_.notify_one();
}

void Follower::settle(int64_t number) {
  const auto it = waiting_.find(number);
  Waiting& waiting = it->second;
  if (!waiting.entry || !waiting.outcome) return;
  if (auto* result = std::get_if<Result>(&*waiting.outcome))
    waiting.promise.set_value(part_of(std::move(*result), waiting.entry->joined.part));
  else
    waiting.promise.set_exception(
        named(std::get<std::exception_ptr>(*waiting.outcome), waiting.entry->name));
  waiting_.erase(it);
}

void Follower::loop() {
  try {
    local_.begin();
    while (obey(command_from_bytes(group_.control->broadcast(std::string(), 0)))) {
    }
    end("engine: closed");
  } catch (const std::exception& error) {
    group_.close(text_of(error));
    end(text_of(error));
  }
}

void Follower::end(const std::string& why) {
  const Lock lock(mutex_);
  why_ = why;
  for (auto& [number, waiting] : waiting_) {
    if (waiting.entry)
      waiting.promise.set_exception(
          named(error_of(static_cast<int32_t>(Code::kInternal), why), waiting.entry->name));
  }
  waiting_.clear();
}

bool Follower::obey(const Command& command) {
  (void)writer_.take_ended();  // this thread gives back what they held
  take(command);
  if (command.kind == Command::kClose) return false;
  // An error that all ranks agree on is the leader's to tell.
  if (command.kind != Command::kNews) (void)agree(*group_.control, [&] { return run(command); });
  return true;
}

void Follower::take(const Command& command) {
  for (const Command::Finish& finish : command.finished) {
    if (finish.commit)
      results_[finish.id] = local_.commit(finish.id);
    else
      local_.undo(finish.id);
  }
  for (const Command::Told& t : command.told) told(t);
}

void Follower::told(const Command::Told& told) {
  auto has = results_.extract(told.id);
  const Lock lock(mutex_);
  auto& outcome = waiting_[told.number].outcome;
  if (told.code >= 0)
    outcome = error_of(told.code, told.error);
  else
    outcome = has ? std::move(has.mapped()) : result_from_bytes(told.result);
  settle(told.number);
}

void Follower::begin_to_write(const Command& command) {
  const int64_t number = command.work.at(0).id;
  const Rest rest = std::move(left_.at(number));
  left_.erase(number);
  if (command.folder.empty()) return;
  const auto write = [this, rest, folder = command.folder](const Writers&) -> Result {
    std::string said;
    try {
      rest({.folder = folder});
    } catch (const Error& e) {
      said = std::to_string(static_cast<int>(e.code)) + ' ' + e.what();
    } catch (const std::exception& e) {
      said = std::to_string(static_cast<int>(Code::kInternal)) + ' ' + text_of(e);
    }
    try {
      group_.saves->all_gather(said);
    } catch (const std::exception& e) {
      group_.close(text_of(e));
    }
    return Done{};
  };
  writer_.add(number, write);
}

std::string Follower::run(const Command& command) {
  const std::atomic<bool> goes_on = false;
  const auto prepared = [&](const Operation& op) { return local_.prepare(op, [](int64_t) {}); };
  BatchOutcome outcome;
  switch (command.kind) {
    case Command::kRun: {
      const Operation& op = operation(command.work.at(0).number);
      (void)local_.run(op, prepared(op).get());
      break;
    }
    case Command::kFirstPart: {
      const Command::Run& save = command.work.at(0);
      if (FirstPart first = local_.first_part(operation(save.number)); first.rest)
        left_[save.id] = std::move(first.rest);
      break;
    }
    case Command::kWrite:
      begin_to_write(command);
      break;
    case Command::kBatch: {
      std::vector<Work> batch;
      for (const Command::Run& w : command.work)
        batch.push_back({w.id, &operation(w.number), w.first, w.last, w.num_tokens});
      outcome.ended.reserve(batch.size());
      outcome.rewound.reserve(batch.size());
      local_.run_batch(batch, goes_on, outcome);
      break;
    }
    case Command::kStart: {
      const Command::Run& sample = command.work.at(0);
      const Operation& op = operation(sample.number);
      local_.start(sample.id, std::get<Sample>(op), {command.weight, command.priority}, {},
                   prepared(op).get());
      break;
    }
    case Command::kStep:
      outcome.ended = local_.step();
      break;
    default:
      fail(Code::kInternal, "engine: the leader has sent a command of kind ", command.kind);
  }
  return decided(outcome);
}

}  // namespace twinkle::engine
