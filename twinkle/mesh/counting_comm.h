// Counts the bytes that this rank hands to other ranks over another group, by kind of call: what a
// parallel strategy promises to send is compared with what it sends.
#pragma once
#include <cstdint>

#include "twinkle/mesh/comm.h"

namespace twinkle::mesh {

struct SentBytes {
  int64_t all_to_all =
      0;  // gather_into too; all_gather, reduce_scatter, all_reduce and barrier are made of these
  int64_t broadcast = 0;  // bytes of the root: once for each other rank
  int64_t send = 0;
};

class CountingComm : public Comm {
 public:
  explicit CountingComm(Comm& comm) : Comm(comm.rank(), comm.size()), comm_(comm) {}

  const SentBytes& sent() const { return sent_; }

  at::Tensor all_to_all(const at::Tensor& in, Counts to, Counts from) override;
  void gather_into(at::Tensor& all, const at::Tensor& x) override;
  void broadcast(at::Tensor& x, int root) override;
  std::unique_ptr<Transfer> start_send(const at::Tensor& x, int to) override;
  std::unique_ptr<Transfer> start_recv(const at::Tensor& x, int from) override {
    return comm_.start_recv(x, from);
  }
  void close(const std::string& why) noexcept override { comm_.close(why); }

 private:
  Comm& comm_;  // outlives it
  SentBytes sent_;
};

}  // namespace twinkle::mesh
