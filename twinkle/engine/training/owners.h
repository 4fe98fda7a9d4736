// The parts of an adapter that each rank of a group keeps. The values of its factors are on every
// rank; each factor's sum of gradients and its optimizer's state are on one, its owner, so that
// they take 1/n of the memory. Factors are whole, which keeps the order of every sum and so its
// bits. Tensors are numbered as Adapter's. The engine's thread.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "twinkle/mesh/comm.h"
#include "twinkle/optim/optimizer.h"
#include "twinkle/optim/peers.h"

namespace twinkle::engine {

class Owners : public optim::Peers {
 public:
  Owners() = default;  // one rank has all
  // The same on every rank: from `sizes` [tensors], the elements of each, and from the tenant's
  // name, by which the few tensors of small adapters spread. `comm`: of the ranks, or null: there
  // is one. It outlives this.
  Owners(mesh::Comm* comm, std::string_view tenant, std::span<const int64_t> sizes);

  bool alone() const { return comm_ == nullptr; }
  int rank() const { return alone() ? 0 : comm_->rank(); }
  int num_ranks() const { return alone() ? 1 : comm_->size(); }
  int of(size_t tensor) const { return alone() ? 0 : owner_[tensor]; }
  bool has(size_t tensor) const { return alone() || owner_[tensor] == comm_->rank(); }
  // For several ranks: the tensors of one, in order, and their elements.
  std::span<const size_t> tensors_of(int rank) const { return tensors_[index(rank)]; }
  int64_t num_elements_of(int rank) const { return num_elements_[index(rank)]; }

  // All of these are called by every rank.
  void gather(std::vector<double>& of_params, bool largest) const override;
  std::optional<optim::Fault> first(std::optional<optim::Fault> mine) const override;
  // Every rank gets each parameter's value from its owner.
  void share_values(std::span<const optim::Param> params) const;
  // A float32 tensor of these sizes that the owner of `tensor` has; others give nothing.
  at::Tensor whole(size_t tensor, const at::Tensor& mine, at::IntArrayRef sizes) const;

 private:
  static size_t index(int rank) { return static_cast<size_t>(rank); }

  mesh::Comm* comm_ = nullptr;
  std::vector<int> owner_;
  std::vector<std::vector<size_t>> tensors_;  // [n]
  std::vector<int64_t> num_elements_;         // [n]
};

}  // namespace twinkle::engine
