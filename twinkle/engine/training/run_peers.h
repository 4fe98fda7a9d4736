// Ranks that have a part of each parameter: what they tell each other in a step. The engine's
// thread.
#pragma once
#include <optional>
#include <vector>

#include "twinkle/mesh/comm.h"
#include "twinkle/optim/peers.h"

namespace twinkle::engine {

// The fault of the first parameter that has one, on any rank of `comm`.
std::optional<optim::Fault> first_fault(mesh::Comm& comm, const std::optional<optim::Fault>& mine);

class RunPeers : public optim::Peers {
 public:
  // `comm`: of the ranks; outlives it.
  explicit RunPeers(mesh::Comm& comm) : comm_(comm) {}

  // In the order of ranks, so with the same bits on each.
  void gather(std::vector<double>& of_params, bool largest) const override;
  std::optional<optim::Fault> first(std::optional<optim::Fault> mine) const override {
    return first_fault(comm_, mine);
  }

 private:
  mesh::Comm& comm_;
};

}  // namespace twinkle::engine
