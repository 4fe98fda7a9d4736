#include "twinkle/serving/core/quotas.h"

#include <algorithm>
#include <cstdint>

#include "twinkle/base/error.h"
#include "twinkle/server/replay/brief.h"
#include "twinkle/serving/domain/clock.h"
#include "twinkle/store/keys/keys.h"

namespace twinkle::server::core {
namespace {

// With room for '@', a number and the name of a folder while it is written: files' names have at
// most 255 bytes.
constexpr size_t kMaxName = 200;
// Names, shapes and counts of steps of a linear's tensors, in headers and trainer_state.json, and
// the rest of these files: in bytes, at most.
constexpr int64_t kHeaderOfLinear = 2048, kHeader = int64_t{64} << 10;

void require_below(int64_t has, int64_t limit, const std::string& of, const std::string& remedy) {
  require(limit == 0 || has < limit, Code::kInvalid, "server: this tenant has ", has, " ", of,
          ", its limit is ", limit, "; ", remedy);
}

bool is_live(const Run& run) { return !run.finished && run.lost.empty(); }

// The session whose run's last request is the oldest, or "".
std::string most_silent_session(const Core& core, const std::string& owner) {
  const Run* oldest = nullptr;
  for (const auto& [id, run] : core.domain().runs())
    if (run.owner == owner && is_live(run) && (!oldest || run.last_ms < oldest->last_ms))
      oldest = &run;
  return oldest ? oldest->session : "";
}

template <class Visit>
void visit_modules(const ModelFacts& model, const Run& run, const Visit& visit) {
  for (const auto& [module, size] : model.adapter_sizes)
    if (run.targets.empty() || std::ranges::find(run.targets, module) != run.targets.end())
      visit(size);
}

// Saves that were accepted and have not ended.
struct Coming {
  int64_t num = 0, bytes = 0;
};
Coming coming(Core& core, const std::string& owner) {
  Coming out;
  for (const auto& [id, run] : core.domain().runs()) {
    if (run.owner != owner) continue;
    for (const auto& [seq_id, work] : run.work) {
      const Op* const op = core.domain().op(work.sequence);
      if (!op || work.state == Work::kEnded || (!op->saves && !op->publishes)) continue;
      ++out.num;
      if (op->saves)
        out.bytes += most_bytes(core.backend().model(), run,
                                op->saves_as.path.find("/weights/") != std::string::npos);
    }
  }
  return out;
}

}  // namespace

void require_session(const Core& core, const std::string& owner) {
  const int64_t limit = core.options().max_sessions, has = core.domain().num_sessions(owner);
  require(has < limit, Code::kInvalid, "server: this tenant has ", has,
          " sessions, max_sessions is ", limit,
          "; use those that are there, or ask the operator for a higher limit");
}

void require_sampler(const Core& core, const std::string& owner) {
  const int64_t limit = core.options().max_samplers, has = core.domain().num_samplers(owner);
  require(has < limit, Code::kInvalid, "server: this tenant has ", has,
          " samplers, max_samplers is ", limit,
          "; use those that are there, or ask the operator for a higher limit");
}

int64_t num_runs(const Core& core, const std::string& owner) {
  const double hours = core.options().silent_hours;
  const auto heard_from =
      hours > 0 ? milliseconds_since_1970() - static_cast<int64_t>(hours * 3600e3) : INT64_MIN;
  return std::ranges::count_if(core.domain().runs(), [&](const auto& at) {
    const Run& run = at.second;
    return run.owner == owner && is_live(run) && run.last_ms >= heard_from;
  });
}

// Float32 numbers: weights, gradients and the optimizer's two moments.
void require_run(Core& core, const Run& run) {
  const store::Quota quota = core.quota_of(run.owner);
  const std::string silent = most_silent_session(core, run.owner);
  require_below(num_runs(core, run.owner), quota.max_runs, "runs",
                "finish a session whose runs are done (ServiceClient.close(\"success\")" +
                    (silent.empty() ? ""
                                    : ", or, of a client that has gone, POST /api/v1/sessions/" +
                                          silent + "/finish") +
                    "), or ask the operator for a higher limit");
  require_below(core.domain().num_disk_bytes(run.owner), quota.max_disk,
                "bytes of checkpoints and snapshots",
                "delete checkpoints or runs, or ask the operator for a higher limit");
  int64_t bytes = 0;
  visit_modules(core.backend().model(), run, [&](const engine::AdapterSize& size) {
    bytes += int64_t{4 * sizeof(float)} * run.rank * size.numbers;
  });
  const int64_t limit = core.backend().parking().limit;
  require(limit == 0 || bytes <= limit, Code::kInvalid, "server: lora_config.rank is ", run.rank,
          ", with which a run takes up to ", bytes, " bytes of memory, resident_bytes is ", limit,
          " for all runs; ask for a lower rank or fewer modules, or ask the operator to raise it");
}

// Float32 numbers: the adapter's, and with the optimizer its two moments.
int64_t most_bytes(const ModelFacts& model, const Run& run, bool optimizer) {
  int64_t out = kHeader + model.carried_bytes;
  visit_modules(model, run, [&](const engine::AdapterSize& size) {
    const int64_t bytes = int64_t{sizeof(float)} * run.rank * size.numbers;
    out += bytes * (optimizer ? 3 : 1) + kHeaderOfLinear * size.linears;
  });
  return out;
}

void require_save(Core& core, const Run& run, bool optimizer, bool named) {
  const store::Quota quota = core.quota_of(run.owner);
  const Coming more = coming(core, run.owner);
  if (!optimizer)
    require_below(core.domain().num_adapters(run.owner) + more.num, quota.max_adapters,
                  "adapters that are kept to be sampled",
                  "delete checkpoints or runs, or ask the operator for a higher limit");
  const int64_t has = core.domain().num_disk_bytes(run.owner);
  require_below(has, quota.max_disk, "bytes of checkpoints and snapshots",
                "delete checkpoints or runs, or ask the operator for a higher limit");
  const int64_t own = named ? most_bytes(core.backend().model(), run, optimizer) : 0;
  require(quota.max_disk == 0 || has + more.bytes + own <= quota.max_disk, Code::kInvalid,
          "server: this tenant has ", has,
          " bytes of checkpoints and snapshots, this save may add ", own,
          " and those that have not ended ", more.bytes, ", its limit is ", quota.max_disk,
          "; wait until they have ended, delete checkpoints or runs, or ask the operator for a "
          "higher limit");
}

void require_name(const std::string& name) {
  require(store::is_plain_name(name, kMaxName) && name != "." && name != "..", Code::kInvalid,
          "server: the name '", quoted(name), "' of a checkpoint must be 1 to ", kMaxName,
          " letters, digits, '.', '_' and '-'");
  require(!name.starts_with('.'), Code::kInvalid, "server: the name '", name,
          "' of a checkpoint must not begin with '.'; choose another");
}

Checkpoint new_checkpoint(const Core&, const Run& run, int64_t seq_id, const std::string& kind,
                          const std::string& name) {
  const std::string path = run.id + "/" + kind + "/" + name;
  // The folder that an earlier save of the name wrote, or will write, stays: a start may need it.
  const bool again = std::ranges::find(run.saved, kind + "/" + name) != run.saved.end();
  std::string folder = "checkpoints/";
  folder += path;
  if (again) folder.append("@").append(std::to_string(seq_id));
  return {.path = path,
          .owner = run.owner,
          .run = run.id,
          .base_model = run.base_model,
          .rank = run.rank,
          .trains = run.trains,
          .targets = run.targets,
          .folder = std::move(folder),
          .created_ms = milliseconds_since_1970()};
}

bool is_taken(const Core& core, const Run& run, const std::string& path) {
  if (core.domain().checkpoint(path)) return true;
  return std::ranges::any_of(run.work, [&](const auto& at) {
    const Op* const op = core.domain().op(at.second.sequence);
    return op && op->saves && op->saves_as.path == path;
  });
}

}  // namespace twinkle::server::core
