// The service as a value that a start goes on from.
#include <utility>

#include "twinkle/server/service/services.h"

namespace twinkle::server {
namespace {

constexpr std::string_view kSamplerPrefix = "sampler:";

std::vector<NumberedId> listed(const std::map<int64_t, std::string>& ids) {
  std::vector<NumberedId> out;
  for (const auto& [number, id] : ids) out.push_back({number, id});
  return out;
}

std::map<int64_t, std::string> by_number(const std::vector<NumberedId>& ids) {
  std::map<int64_t, std::string> out;
  for (const NumberedId& one : ids) out[one.number] = one.id;
  return out;
}

}  // namespace

std::optional<State> Services::take_state() const {
  auto of_runs = runs.state(state);
  if (!of_runs) return std::nullopt;
  State out{.sequence = history.sequence(),
            .time_ms = milliseconds_since_1970(),
            .starts = starts_,
            .snapshots = snapshots.all(),
            .runs = std::move(*of_runs),
            .promises = promises.state(),
            .num_promises = promises.num_ever(),
            .usage = usage.lines()};
  for (const auto& [id, s] : sessions)
    out.sessions.push_back({id, s.owner, listed(s.runs), listed(s.samplers), s.finished});
  for (const auto& [id, s] : samplers)
    out.samplers.push_back(
        {id, s.owner, s.base_model, s.model_path, s.tenant, s.version, s.came.ranges(), s.key_id});
  for (const auto& [path, c] : checkpoints)
    out.checkpoints.push_back({path, c.owner, c.base_model, c.rank,
                               c.folder.lexically_relative(state).string(), c.trains});
  return out;
}

void Services::restore(const State& from, int64_t kept_from_ms) {
  for (const SessionState& s : from.sessions)
    add(Session{s.id, s.owner, s.finished, by_number(s.runs), by_number(s.samplers)});
  for (const CheckpointState& c : from.checkpoints)
    checkpoints[c.path] = {c.owner, c.base_model, c.rank, state / c.folder, c.trains};
  for (const SamplerState& s : from.samplers) {
    Sampler& sampler = add(Sampler{s.id, s.owner, s.base_model, s.model_path, s.tenant, s.version,
                                   NumberSet(s.came), s.key_id});
    // The engine has no versions that were published before a snapshot.
    const auto folder = snapshots.version(s.tenant, s.version);
    if (s.version > 0 && folder) {
      sampler.tenant = tenant_of(*folder, s.owner, s.key_id);
      sampler.version = 0;
    } else if (s.tenant.starts_with(kSamplerPrefix)) {
      tenant_of(state / s.tenant.substr(kSamplerPrefix.size()), s.owner, s.key_id);
    } else if (s.version == 0) {
      tenant_of_base(s.owner);
    }
  }
  for (const RunState& run : from.runs) runs.restore(run, state);
  promises.restore(from);
  usage.restore(from.usage);
  for (const PromiseState& p : from.promises)
    if (p.read_ms > 0 && p.read_ms < kept_from_ms) promises.drop(p.id);
}

}  // namespace twinkle::server
