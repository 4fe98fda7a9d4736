#include "twinkle/mesh/counting_comm.h"

#include <ATen/ATen.h>

namespace twinkle::mesh {

at::Tensor CountingComm::all_to_all(const at::Tensor& in, Counts to, Counts from) {
  for (int r = 0; r < size(); ++r) {
    if (r != rank()) sent_.all_to_all += to[static_cast<size_t>(r)] * in.element_size();
  }
  return comm_.all_to_all(in, to, from);
}

void CountingComm::gather_into(at::Tensor& all, const at::Tensor& x) {
  sent_.all_to_all += static_cast<int64_t>(x.nbytes()) * (size() - 1);
  comm_.gather_into(all, x);
}

void CountingComm::broadcast(at::Tensor& x, int root) {
  if (rank() == root) sent_.broadcast += static_cast<int64_t>(x.nbytes()) * (size() - 1);
  comm_.broadcast(x, root);
}

std::unique_ptr<Transfer> CountingComm::start_send(const at::Tensor& x, int to) {
  sent_.send += static_cast<int64_t>(x.nbytes());
  return comm_.start_send(x, to);
}

}  // namespace twinkle::mesh
