// One rank's end of the way from a model's ranks to a sampler's. The ranks of both are one group,
// the model's first; each has an engine of its own or is a rank of an engine over its group. An
// adapter's factors travel, and the sampler's engine has them as an adapter: nothing is merged, so
// that no rounding stays in the base. The base model's weights travel where all of them are
// trained, or where the sampler has others, which is found out once. What arrives lies beside the
// weights in use until all of it is there; then one operation of the engine switches: see
// ReplaceWeights, which switches a base and its adapter together. One thread at a time, but for
// close().
#pragma once
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "twinkle/engine/engine.h"
#include "twinkle/mesh/comm.h"
#include "twinkle/sync/hello.h"
#include "twinkle/sync/plan.h"

namespace twinkle::sync {

struct Options {
  int num_senders = 1;  // ranks of the model: the first ones of the group
  int64_t bucket_bytes = Sizes().bucket_bytes;
};

struct Synced {
  int64_t num_bytes = 0;     // that this rank has sent or received
  bool has_base = false;     // all weights of the base model have travelled
  std::string adapter_name;  // as the sender has it
  std::string tenant;        // for a receiver: the tenant whose samples have the new weights
};

class Link {
 public:
  // Error kInvalid: a num_senders that leaves nobody to send or to receive, bucket_bytes below 1.
  Link(std::unique_ptr<mesh::Comm> comm, const Options& options);

  // Every rank calls one of both at a time; they return when every receiver has switched. Errors of
  // both, on every rank: kInvalid, tensors that the other side does not have, or has in another
  // shape or type; kInternal: what another rank's engine has refused. The link is as it was then,
  // and weights are as before. kInternal: a rank that has gone, or, of a group that no
  // watch knows, does not come within the group's timeout; the link is closed then. So it is after
  // anything else than an Error, as a lack of memory or an interrupt, of which the others hear by
  // an Error. An engine that is busy, and a switch that waits for samples that have begun, are
  // waited for however long they take.
  //
  // `tenant`'s adapter, or, without one, all weights. `name`: the receivers know an adapter by it.
  Synced send(engine::Engine& engine, const std::string& tenant, const std::string& name);
  // `frozen`: the engine's tenant of the base model as it is. An adapter gets a tenant of its own,
  // which is replaced when the adapter's config changes.
  Synced receive(engine::Engine& engine, const std::string& frozen);

  // As Channel's.
  void close(const std::string& why) noexcept { comm_->close(why); }

 private:
  struct Adapter {
    std::string tenant, lora_json;
  };
  struct Mine;

  void meet_engine(const engine::Engine& engine);
  Mine described(engine::Engine& engine, const std::string& tenant, bool sends);
  std::vector<Hello> meet(const std::function<Mine()>& describe, Mine& mine);
  Hello told(Hello hello, const std::exception_ptr& failed) const;
  bool same_base(engine::Engine& engine, const std::string& tenant, const Mine& mine,
                 const std::vector<Hello>& ranks, const Plan& plan);
  Plan plan_of(const std::vector<Manifest>& ranks) const;
  Plan plan_of_base(const std::vector<Hello>& ranks) const;
  Plan plan_of_adapter(const std::vector<Hello>& ranks) const;
  int64_t transferred(const Plan& plan, const Manifest& manifest,
                      const std::vector<engine::Weight>& tensors);
  void settle(const std::function<void()>& work = {});
  void leave(const std::exception_ptr& why);
  template <class Call>
  void or_close(const Call& call);
  template <class Call>
  Synced in_step(const Call& call);
  Synced sent(engine::Engine& engine, const std::string& tenant, const std::string& name);
  Synced received(engine::Engine& engine, const std::string& frozen);
  const std::string& adapter_tenant(engine::Engine& engine, const Hello& sender);

  const std::unique_ptr<mesh::Comm> comm_;
  const Options options_;
  const uint64_t meeting_;                   // drawn; of the first rank: part of tenants' names
  std::weak_ptr<const void> engine_;         // the life() of the last sync's, whose ...
  uint64_t compared_base_ = 0;               // ... base_version equalled the others'; 0: none
  std::map<std::string, Adapter> adapters_;  // ... tenants these are, by their senders' names
  std::vector<std::string> replaced_;        // ... tenants to delete
  int64_t num_tenants_ = 0;                  // that it has named
};

// Both ends for two engines of this process.
class Pair {
 public:
  Pair(int64_t bucket_bytes, double timeout_s);

  // Link's send of the first engine and receive of the second, at once. Throws the sender's error
  // rather than the receiver's, unless the sender was told of that.
  Synced sync(engine::Engine& from, const std::string& tenant, const std::string& name,
              engine::Engine& to, const std::string& frozen);

 private:
  Pair(std::vector<std::unique_ptr<mesh::Comm>> comms, const Options& options);

  Link sender_, receiver_;
};

}  // namespace twinkle::sync
