// The collectives of a group, on tensors. Every rank makes the same calls in the same order, with
// sizes that fit: who calls has agreed on them before, since some libraries end the process where
// they differ. Sums are added in the order of ranks, whatever carries the bytes: a library's ring
// adds an element in an order that depends on its place in the buffer, so on what else is in it. n
// ranks. Threads and errors as of a Channel.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "twinkle/mesh/channel.h"

namespace twinkle::mesh {

using Counts = std::span<const int64_t>;  // [n] elements, of or for each rank

// A send or recv that has begun. Its tensor stays as it is until wait() returns.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual void wait() = 0;  // once
};

class Comm : public Channel {
 public:
  using Channel::broadcast;
  // `in` [sum of to]: what each rank is to get, one rank's after the other. Returns [sum of from].
  virtual at::Tensor all_to_all(const at::Tensor& in, Counts to, Counts from) = 0;
  virtual void broadcast(at::Tensor& x, int root) = 0;
  // In pairs: a recv of the other rank for every send, in one order. Several may be on their way.
  // `x` is contiguous.
  virtual std::unique_ptr<Transfer> start_send(const at::Tensor& x, int to) = 0;
  virtual std::unique_ptr<Transfer> start_recv(const at::Tensor& x, int from) = 0;
  void send(const at::Tensor& x, int to) { start_send(x, to)->wait(); }
  void recv(at::Tensor& x, int from) { start_recv(x, from)->wait(); }

  // `x` [count of this rank], on all ranks of one type: all of them, [sum of counts].
  at::Tensor all_gather(const at::Tensor& x, Counts counts);
  // `x` [m] of every rank into `all` [n m], without a copy of either.
  virtual void gather_into(at::Tensor& all, const at::Tensor& x);
  // `x` [sum of counts] on each rank: the sums of this rank's part, [count]. Added in float32 (in
  // float64 where x is), rounded once.
  at::Tensor reduce_scatter(const at::Tensor& x, Counts counts);
  // `x` becomes the sum of all ranks', with the same bits on each.
  void all_reduce(at::Tensor& x);
  // Returns once every rank has called it.
  void barrier();
  std::vector<std::string> all_gather(const std::string& bytes) override;
  std::string broadcast(std::string bytes, int root) override;

 protected:
  Comm(int rank, int size) : Channel(rank, size) {}
};

// The Comm of one rank.
Comm& null_comm();

// A group of torch.distributed that Python has registered under this name, for tensors on the CPU.
// Takes it over: close(), or the end of the Comm, takes the name and the group's sockets away.
// Error kNotFound: no such group.
std::unique_ptr<Comm> c10d_comm(const std::string& name);

}  // namespace twinkle::mesh
