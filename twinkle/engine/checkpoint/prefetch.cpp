#include "twinkle/engine/checkpoint/prefetch.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "twinkle/base/guarded.h"
#include "twinkle/base/parallel.h"
#include "twinkle/lora/targets.h"

namespace twinkle::engine {

struct Prefetch::State {
  Mutex mutex{};
  std::map<std::string, TenantShape> tenants GUARDED_BY(mutex){};
  // Operations that have not ended. A shape may not be known before its Create runs.
  std::multimap<std::string, std::optional<TenantShape>> creates GUARDED_BY(mutex){};
  std::multiset<std::string> saves GUARDED_BY(mutex){};  // their folders, as they were named
  std::set<std::string> holders GUARDED_BY(mutex){};     // "load", "delete": of all weights
};

std::string resolved_name(const std::string& directory) {
  std::error_code error;
  const auto name = std::filesystem::weakly_canonical(directory, error);
  return (error ? std::filesystem::path(directory) : name).lexically_normal().string();
}

namespace {

// Calls read(reserve). Errors wait for the operation's turn, but for those of `reserve` and Ctrl-C,
// which refuse it.
template <class Read>
void attempt(Prefetched& out, TenantShape tenant, const Reserve& reserve, Read&& read) {
  out.tenant = std::move(tenant);
  bool refused = false;
  const auto asked = [&](int64_t bytes) {
    refused = true;
    if (reserve) reserve(bytes);
    refused = false;
  };
  try {
    out.loaded = read(asked);
  } catch (const Interrupted&) {
    throw;
  } catch (...) {
    if (refused) throw;
    out.error = std::current_exception();
  }
}

// Not null. Calls leave(*state) once, when the last copy is destroyed.
template <class State, class Leave>
std::shared_ptr<void> on_end(const std::shared_ptr<State>& state, Leave leave) {
  return {state.get(), [state, leave](void*) { leave(*state); }};
}

}  // namespace

Prefetch::Prefetch(const BaseModel& base) : base_(base), state_(std::make_shared<State>()) {}

void Prefetch::add(const std::string& tenant, TenantShape shape) {
  const Lock lock(state_->mutex);
  state_->tenants.insert_or_assign(tenant, std::move(shape));
}

void Prefetch::remove(const std::string& tenant) {
  const Lock lock(state_->mutex);
  state_->tenants.erase(tenant);
}

std::optional<TenantShape> Prefetch::shape_of(const std::string& tenant) const {
  const Lock lock(state_->mutex);
  const auto newest = state_->creates.upper_bound(tenant);
  if (newest != state_->creates.begin() && std::prev(newest)->first == tenant)
    return std::prev(newest)->second;
  const auto found = state_->tenants.find(tenant);
  return found == state_->tenants.end() ? std::nullopt : std::optional(found->second);
}

// Who reads waits for the disk anyway; a Save does not, so that the names of these are resolved
// here.
bool Prefetch::is_awaited(const std::string& directory) const {
  const std::multiset<std::string> saves = [&] {
    const Lock lock(state_->mutex);
    return state_->saves;
  }();
  if (saves.empty()) return false;
  const std::string name = resolved_name(directory);
  return std::ranges::any_of(saves, [&](const auto& save) { return resolved_name(save) == name; });
}

std::shared_ptr<void> Prefetch::hold_weights(const char* operation) const {
  const auto [holder, added] = [&] {
    const Lock lock(state_->mutex);
    return state_->holders.insert(operation);
  }();
  if (!added) return nullptr;
  return on_end(state_, [holder = holder](State& state) {
    const Lock lock(state.mutex);
    state.holders.erase(holder);
  });
}

std::shared_ptr<Prefetched> Prefetch::read_create(const Create& op, const Reserve& reserve) const {
  auto out = std::make_shared<Prefetched>();
  std::optional<TenantShape> shape;
  if (op.frozen) {
    shape = TenantShape{.mode = Mode::kFrozen};
  } else if (!op.directory.empty()) {
    if (!is_awaited(op.directory)) {
      attempt(*out, {.mode = Mode::kLora}, reserve, [&](const Reserve& asked) {
        return Loaded{.adapter = read_adapter(op.directory, base_, asked)};
      });
    }
    if (const auto& read = out->loaded.adapter)
      shape = TenantShape{Mode::kLora, lora::with_named_targets(read->config, base_.linears)};
  } else if (op.lora_json.empty()) {
    shape = TenantShape{.mode = Mode::kFull};
  } else {
    try {
      shape = TenantShape{Mode::kLora, lora::with_named_targets(config_of(op), base_.linears)};
    } catch (const Error&) {  // run() finds it, too
    }
  }
  const auto create = [&] {
    const Lock lock(state_->mutex);
    return state_->creates.emplace(op.tenant, std::move(shape));
  }();
  out->entry = on_end(state_, [create](State& state) {
    const Lock lock(state.mutex);
    state.creates.erase(create);
  });
  return out;
}

std::shared_ptr<Prefetched> Prefetch::read_load(const Load& op, const Reserve& reserve) const {
  const std::optional<TenantShape> tenant = shape_of(op.tenant);
  if (!tenant || tenant->mode == Mode::kFrozen || is_awaited(op.directory)) return nullptr;
  auto out = std::make_shared<Prefetched>();
  const bool all_weights = tenant->mode == Mode::kFull;
  if (all_weights && !(out->entry = hold_weights("load"))) return nullptr;
  attempt(*out, *tenant, all_weights ? Reserve() : reserve,
          [&](const Reserve& asked) { return read_checkpoint(op, *tenant, base_, asked); });
  return out;
}

std::shared_ptr<Prefetched> Prefetch::read_delete(const Delete& op) const {
  const std::optional<TenantShape> tenant = shape_of(op.tenant);
  if (!tenant || tenant->mode != Mode::kFull) return nullptr;
  auto out = std::make_shared<Prefetched>();
  if (!(out->entry = hold_weights("delete"))) return nullptr;
  attempt(*out, {.mode = Mode::kFull}, {}, [&](const Reserve&) { return read_base(op, base_); });
  return out;
}

std::shared_ptr<Prepared> Prefetch::prepare(const Operation& operation, const Reserve& reserve) {
  if (const auto* op = std::get_if<Create>(&operation)) return read_create(*op, reserve);
  if (const auto* op = std::get_if<Load>(&operation)) return read_load(*op, reserve);
  if (const auto* op = std::get_if<Delete>(&operation)) return read_delete(*op);
  const auto* op = std::get_if<Save>(&operation);
  if (!op) return nullptr;
  auto out = std::make_shared<Prefetched>();
  const auto save = [&] {
    std::error_code ignored;  // the working directory is gone: the Save finds it, too
    std::string name = std::filesystem::absolute(op->directory, ignored).string();
    const Lock lock(state_->mutex);
    return state_->saves.insert(std::move(name));
  }();
  out->entry = on_end(state_, [save](State& state) {
    const Lock lock(state.mutex);
    state.saves.erase(save);
  });
  return out;
}

}  // namespace twinkle::engine
