#include "twinkle/serving/waiting/queues.h"

#include <algorithm>
#include <new>

#include "twinkle/base/error.h"

namespace twinkle::server::core {
namespace {

// The engine's room as units of a cost: an operation takes the largest of its parts of it.
constexpr int64_t kRoom = int64_t{1} << 30;
// The pause before the system is asked again for what it refused for want of files or memory.
constexpr std::chrono::milliseconds kReadAgain{1000};

void require_wanted(const Queued& queued) {
  require(!queued.is_cancelled, Code::kConflict,
          "server: the session has finished, and this sample was cancelled");
}

template <class Op>
void place(Op& op, const std::filesystem::path& state) {
  if constexpr (requires { op.directory; })
    if (!op.directory.empty()) op.directory = (state / op.directory).string();
}

// The rest is for what comes by other ways: snapshots, samplers' weights, runs that are parked.
int64_t most_of(int64_t total) { return total - total / 8; }

}  // namespace

Queues::Queues(const QueueOptions& options, Backend& backend, Threads threads, Log& log,
               std::filesystem::path state,
               std::function<store::Quota(const std::string& owner)> quota)
    : options_(options),
      backend_(backend),
      loop_(threads.loop),
      disk_(threads.disk),
      log_(log),
      state_(std::move(state)),
      max_places_(most_of(backend.stats().max_queued_total)),
      max_held_(most_of(backend.stats().max_queued_bytes_total)),
      waiting_(kRoom, threads.loop, std::move(quota), [this] { go_on(); }) {}

// A short request may take much of the engine's memory, as one for many samples does.
WaitList::Head Queues::head_of(const Queued& queued) const {
  const int64_t held = queued.operation ? backend_.bytes_of(*queued.operation) : queued.op.bytes;
  const auto part = [](int64_t of, int64_t all) {
    return static_cast<double>(of) / static_cast<double>(std::max<int64_t>(1, all));
  };
  const double cost = std::max(
      {part(1, max_places_), part(held, max_held_), part(queued.op.bytes, options_.max_bytes)});
  return {.key = (queued.op.samples ? "sample " : "train ") + queued.tenant,
          .owner = queued.owner,
          .is_sample = queued.op.samples,
          .is_rated = queued.is_rated && !queued.is_again && !queued.owner.empty(),
          .cost = std::max<int64_t>(1, static_cast<int64_t>(cost * kRoom)),
          .tokens = queued.op.used.trained + queued.op.used.prompt};
}

// Gives room to those whose turn it is.
void Queues::go_on() {
  while (const auto key = waiting_.take()) {
    Queued& next = *lines_.at(*key).front();
    next.has_room = true;
    loop_.post([wake = next.wake] { wake.set(true); });
  }
}

Task<> Queues::wait_for_turn(const std::shared_ptr<Queued>& queued) {
  queued->wake = {};
  waiting_.add(queued->head);
  go_on();
  co_await queued->wake;
  if (!queued->has_room) waiting_.remove(queued->head);
  require_wanted(*queued);
}

void Queues::make_absolute(engine::Operation& operation) const {
  std::visit([this](auto& op) { place(op, state_); }, operation);
}

// The engine reads a checkpoint's files where it is asked whether it takes the operation.
Task<engine::Accepted> Queues::check(const std::shared_ptr<Queued>& queued) {
  const auto beyond = queued->is_again ? engine::Beyond::kAlone : engine::Beyond::kRefused;
  const auto accepted = std::make_shared<std::optional<engine::Accepted>>();
  const auto ask = [this, queued, accepted, beyond] {
    accepted->emplace(backend_.check(std::move(*queued->operation), beyond, queued->hooks));
  };
  if (queued->op.reads.empty())
    ask();
  else
    co_await on(disk_, loop_, ask, queued->owner);
  co_return std::move(**accepted);
}

Task<engine::Accepted> Queues::accept(const std::shared_ptr<Queued>& queued) {
  for (;;) {
    std::chrono::milliseconds wait{0};
    try {
      require_wanted(*queued);
      if (!queued->operation) {
        wait = kReadAgain;
        const Record record = co_await log_.read(queued->op.sequence, queued->owner);
        const auto* submit = std::get_if<Submit>(&record);
        const auto* sample = std::get_if<Sample>(&record);
        require(submit || sample, Code::kInternal, "server: record ", queued->op.sequence,
                " of the journal is no operation; restore a backup");
        queued->operation = engine::from_bytes(submit ? submit->operation : sample->operation);
        if (auto* op = std::get_if<engine::Sample>(&*queued->operation)) {
          op->tenant = queued->tenant;
          op->version = queued->version;
        }
      }
      make_absolute(*queued->operation);
      wait = options_.again;
      co_return co_await check(queued);
    } catch (const Error& e) {
      if (e.code != Code::kBusy) throw;
    } catch (const std::bad_alloc&) {
      wait = kReadAgain;
    }
    co_await pause(loop_, wait);
  }
}

void Queues::leave_line(const std::shared_ptr<Queued>& queued) {
  const auto line = lines_.find(queued->head.key);
  if (line == lines_.end()) return;
  const bool was_first = line->second.front() == queued;
  if (std::erase(line->second, queued) == 0) return;
  --num_waiting_;
  if (line->second.empty())
    lines_.erase(line);
  else if (was_first)
    loop_.post([wake = line->second.front()->wake] { wake.set(true); });
}

Task<engine::Outcome> Queues::run(std::shared_ptr<Queued> queued) {
  queued->head = head_of(*queued);
  Line& line = lines_[queued->head.key];
  line.push_back(queued);
  ++num_waiting_;
  engine::Outcome outcome;
  try {
    queued->wake = {};
    if (line.size() > 1) {
      if (queued->op.sequence > 0) queued->operation.reset();
      co_await queued->wake;
      require_wanted(*queued);
    }
    co_await wait_for_turn(queued);
    engine::Accepted accepted = co_await accept(queued);
    require_wanted(*queued);
    const Later<engine::Outcome> ended;
    queued->engine_id = backend_.submit(std::move(accepted), [this, ended](engine::Outcome of) {
      const auto shared = std::make_shared<engine::Outcome>(std::move(of));
      loop_.post([ended, shared] { ended.set(std::move(*shared)); });
    });
    if (queued->on_given) queued->on_given();
    leave_line(queued);
    outcome = co_await ended;
    if (outcome.error) require_wanted(*queued);
  } catch (...) {
    outcome.error = std::current_exception();
  }
  leave_line(queued);
  if (std::exchange(queued->has_room, false)) {
    waiting_.give_back(queued->head);
    go_on();
  }
  co_return outcome;
}

void Queues::cancel(Queued& queued) {
  queued.is_cancelled = true;
  if (queued.engine_id > 0)
    backend_.cancel(queued.engine_id);
  else
    loop_.post([wake = queued.wake] { wake.set(false); });
}

void Queues::require_room(const Queued& queued) {
  if (waiting_.is_held(queued.owner)) return;  // it takes none of the engine's room meanwhile
  WaitList::Head head = head_of(queued);
  require(!lines_.contains(head.key), Code::kBusy, "server: the engine's queue of '", queued.tenant,
          "' is full; come again");
  head.key.clear();
  require(waiting_.would_go(head), Code::kBusy,
          "server: the engine has as much of this tenant as it leaves for others; come again");
}

int64_t Queues::num_held() const {
  int64_t out = 0;
  for (const auto& [key, line] : lines_)
    if (waiting_.is_held(line.front()->owner)) out += std::ssize(line);
  return out;
}

std::string Queues::why_held(const std::string& future) const {
  for (const auto& [key, line] : lines_) {
    const auto found = std::ranges::find(line, future, [](const auto& q) { return q->id; });
    if (found == line.end()) continue;
    int64_t before = 0;
    for (auto it = line.begin(); it != found; ++it) before += (*it)->head.tokens;
    return waiting_.reason((*found)->owner, std::distance(line.begin(), found) + 1,
                           std::ssize(line), before);
  }
  return "";
}

bool Queues::has_sample(const std::string& tenant, int64_t version) const {
  const auto line = lines_.find("sample " + tenant);
  return line != lines_.end() && std::ranges::any_of(line->second, [version](const auto& q) {
           return q->version == version;
         });
}

}  // namespace twinkle::server::core
