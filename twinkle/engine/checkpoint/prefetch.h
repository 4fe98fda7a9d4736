// Reads the files of operations on the thread that submits them, so that the engine's thread need
// not wait for them. Any thread, but where it says otherwise.
#pragma once
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "twinkle/engine/checkpoint/load.h"
#include "twinkle/engine/schedule/executor.h"

namespace twinkle::engine {

struct Prefetched : Prepared {
  std::optional<TenantShape> tenant;  // that the files were read for; none: not read
  Loaded loaded;
  std::exception_ptr error;     // why they could not be read; or null
  std::shared_ptr<void> entry;  // in Prefetch's lists, until the operation has ended
};

// Returns what prepare() has read for an operation on `tenant`. Reads now if prepare() has read
// nothing, or has read for another tenant of the name: a Create or Delete that was queued before
// the operation has failed or was cancelled since.
template <class Read>
Loaded take(Prepared* prepared, const TenantShape& tenant, Read&& read) {
  auto* const found = dynamic_cast<Prefetched*>(prepared);
  if (!found || found->tenant != tenant) return read();
  if (found->error) std::rethrow_exception(found->error);
  return std::move(found->loaded);
}

// The form that all names of a folder have in common.
std::string resolved_name(const std::string& directory);

class Prefetch {
 public:
  explicit Prefetch(const BaseModel& base);  // it outlives this

  // As Executor::prepare. run() reads for itself in a folder that a queued Save is still to write,
  // and for a tenant that is not known yet. An adapter's bytes are reserved. All weights of the
  // model are not, since they may exceed every limit of the queue: one Load and one Delete at a
  // time may hold them, and run() reads for others, whose tenant is alone on the engine.
  std::shared_ptr<Prepared> prepare(const Operation& operation, const Reserve& reserve);

  // The engine's thread, when a tenant is created and deleted.
  void add(const std::string& tenant, TenantShape shape);
  void remove(const std::string& tenant);

  // The tenant as it will be when what is submitted now runs, as far as that is known.
  std::optional<TenantShape> shape_of(const std::string& tenant) const;

 private:
  struct State;
  std::shared_ptr<Prefetched> read_create(const Create& operation, const Reserve& reserve) const;
  std::shared_ptr<Prefetched> read_load(const Load& operation, const Reserve& reserve) const;
  std::shared_ptr<Prefetched> read_delete(const Delete& operation) const;
  bool is_awaited(const std::string& directory) const;
  std::shared_ptr<void> hold_weights(const char* operation) const;  // null: another one does

  const BaseModel& base_;
  const std::shared_ptr<State> state_;
};

}  // namespace twinkle::engine
