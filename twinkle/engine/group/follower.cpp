#include "twinkle/engine/group/follower.h"

#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/engine/group/decided.h"

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
}

std::future<Result> Follower::result(const Door::Entry& entry) {
  const Lock lock(mutex_);
  require(why_.empty(), Code::kInternal, "engine: ", entry.name, ": ", why_);
  Waiting& waiting = waiting_[entry.number];
  waiting.part = entry.joined.part;
  waiting.name = entry.name;
  std::future<Result> out = waiting.promise.get_future();
  settle(entry.number);
  return out;
}

void Follower::settle(int64_t number) {
  const auto it = waiting_.find(number);
  Waiting& waiting = it->second;
  if (!waiting.part || !waiting.outcome) return;
  if (auto* result = std::get_if<Result>(&*waiting.outcome))
    waiting.promise.set_value(part_of(std::move(*result), *waiting.part));
  else
    waiting.promise.set_exception(
        named(std::get<std::exception_ptr>(*waiting.outcome), waiting.name));
  waiting_.erase(it);
}

void Follower::loop() {
  try {
    local_.begin();
    while (obey(command_from_bytes(group_.control->broadcast(std::string(), 0)))) {
    }
    end("engine: closed");
  } catch (const std::exception& error) {
    group_.close(error.what());
    end(error.what());
  }
}

void Follower::end(const std::string& why) {
  const Lock lock(mutex_);
  why_ = why;
  for (auto& [number, waiting] : waiting_) {
    if (waiting.part)
      waiting.promise.set_exception(
          named(error_of(static_cast<int32_t>(Code::kInternal), why), waiting.name));
  }
  waiting_.clear();
}

bool Follower::obey(const Command& command) {
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
    operations_.erase(finish.id);
  }
  for (const Command::NewOperation& op : command.operations)
    operations_[op.id] = from_bytes(op.bytes);
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
  Left& left = left_.at(command.work.at(0).id);
  left.written = std::async(std::launch::async, [&left, folder = command.folder] {
    return left.rest({.folder = folder});
  });
}

std::string Follower::written(int64_t number) {
  const auto it = left_.find(number);
  if (it == left_.end()) return {};
  std::future<Result>& written = it->second.written;
  if (written.valid() && written.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
    return kStillWriting;
  std::string out;
  try {
    if (written.valid()) written.get();
  } catch (const Error& e) {
    out = std::to_string(static_cast<int>(e.code)) + ' ' + e.what();
  } catch (const std::exception& e) {
    out = std::to_string(static_cast<int>(Code::kInternal)) + ' ' + e.what();
  }
  left_.erase(it);
  return out;
}

std::string Follower::run(const Command& command) {
  const std::atomic<bool> goes_on = false;
  const auto prepared = [&](const Operation& op) { return local_.prepare(op, [](int64_t) {}); };
  BatchOutcome outcome;
  switch (command.kind) {
    case Command::kRun: {
      const Operation operation = operations_.extract(0).mapped();
      (void)local_.run(operation, prepared(operation).get());
      break;
    }
    case Command::kFirstPart:
      if (FirstPart first = local_.first_part(operations_.extract(0).mapped()); first.rest)
        left_[command.work.at(0).id].rest = std::move(first.rest);
      break;
    case Command::kWrite:
      begin_to_write(command);
      break;
    case Command::kWritten:
      (void)group_.control->all_gather(written(command.work.at(0).id));
      break;
    case Command::kBatch: {
      std::vector<Work> batch;
      for (const Command::Run& w : command.work)
        batch.push_back({w.id, &operations_.at(w.id), w.first, w.last, w.num_tokens});
      outcome.ended.reserve(batch.size());
      outcome.rewound.reserve(batch.size());
      local_.run_batch(batch, goes_on, outcome);
      break;
    }
    case Command::kStart: {
      const int64_t id = command.work.at(0).id;
      const Operation& operation = operations_.at(id);
      local_.start(id, std::get<Sample>(operation), {command.weight, command.priority}, {},
                   prepared(operation).get());
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
