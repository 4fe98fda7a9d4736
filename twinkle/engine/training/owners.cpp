#include "twinkle/engine/training/owners.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "twinkle/base/random.h"
#include "twinkle/engine/training/run_peers.h"

namespace twinkle::engine {

// The largest tensor first, each to the rank that has least.
Owners::Owners(mesh::Comm* comm, std::string_view tenant, std::span<const int64_t> sizes) {
  if (comm == nullptr || comm->size() == 1) return;
  comm_ = comm;
  const auto n = static_cast<size_t>(comm->size());
  owner_.resize(sizes.size());
  tensors_.resize(n);
  num_elements_.resize(n);
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  std::vector<size_t> ranks(n);  // the first one here of those that have as much
  for (size_t i = 0; i < n; ++i) ranks[i] = (key_of(0, tenant) + i) % n;
  for (const size_t tensor : order) {
    const size_t rank = *std::ranges::min_element(
        ranks, [&](size_t a, size_t b) { return num_elements_[a] < num_elements_[b]; });
    owner_[tensor] = static_cast<int>(rank);
    num_elements_[rank] += sizes[tensor];
  }
  for (size_t i = 0; i < sizes.size(); ++i) tensors_[index(owner_[i])].push_back(i);
}

void Owners::gather(std::vector<double>& of_params, bool) const {
  if (alone()) return;
  std::vector<int64_t> counts;
  for (const auto& theirs : tensors_) counts.push_back(std::ssize(theirs));
  at::Tensor mine = at::empty({counts[index(rank())]}, at::kDouble);
  auto* to = mine.mutable_data_ptr<double>();
  for (const size_t tensor : tensors_of(rank())) *to++ = of_params[tensor];
  const at::Tensor all = comm_->all_gather(mine, counts);
  const auto* from = all.const_data_ptr<double>();
  for (const auto& theirs : tensors_)
    for (const size_t tensor : theirs) of_params[tensor] = *from++;
}

std::optional<optim::Fault> Owners::first(std::optional<optim::Fault> mine) const {
  return alone() ? mine : first_fault(*comm_, mine);
}

void Owners::share_values(std::span<const optim::Param> params) const {
  if (alone()) return;
  at::Tensor mine = at::empty({num_elements_of(rank())}, at::kFloat);
  int64_t at = 0;
  const auto part = [&](const at::Tensor& of, const at::Tensor& value) {
    at += value.numel();
    return of.narrow(0, at - value.numel(), value.numel()).view(value.sizes());
  };
  for (const size_t tensor : tensors_of(rank()))
    part(mine, params[tensor].value).copy_(params[tensor].value);
  const at::Tensor all = comm_->all_gather(mine, num_elements_);
  at = 0;
  for (const auto& theirs : tensors_) {
    for (const size_t tensor : theirs) {
      at::Tensor value = params[tensor].value;
      const at::Tensor told = part(all, value);
      if (!has(tensor)) value.copy_(told);
    }
  }
}

at::Tensor Owners::whole(size_t tensor, const at::Tensor& mine, at::IntArrayRef sizes) const {
  if (alone()) return mine;
  at::Tensor out = mine.defined() ? mine.contiguous() : at::zeros(sizes, at::kFloat);
  comm_->broadcast(out, of(tensor));
  return out;
}

}  // namespace twinkle::engine
