#include "twinkle/sync/transfer.h"

#include <ATen/ATen.h>

#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "twinkle/base/error.h"

namespace twinkle::sync {
namespace {

constexpr size_t kMaxFlying = 2;

class Transfers {
 public:
  Transfers(mesh::Comm& comm, const Plan& plan, const std::vector<Local>& locals)
      : comm_(comm), plan_(plan), locals_(locals) {}

  int64_t run() {
    int64_t bytes = 0;
    for (const Bucket& bucket : plan_.buckets) {
      const bool sends = bucket.from == comm_.rank();
      if (!sends && bucket.to != comm_.rank()) continue;
      if (flying_.size() == kMaxFlying) land();
      bytes += bucket.num_bytes;
      flying_.push_back(sends ? sent(bucket) : awaited(bucket));
    }
    while (!flying_.empty()) land();
    return bytes;
  }

 private:
  struct Flight {
    at::Tensor bytes;       // what is on its way
    const Bucket* unpacks;  // to be copied out of `bytes`, or null
    bool is_spare;          // `bytes` may carry another bucket afterwards
    std::unique_ptr<mesh::Transfer> transfer;
  };

  Flight sent(const Bucket& bucket) {
    const at::Tensor there = in_place(bucket);
    const at::Tensor bytes = there.defined() ? there : spare(bucket.num_bytes);
    if (!there.defined()) each(bucket, bytes, [](auto& ours, auto& wire) { wire.copy_(ours); });
    return {bytes, nullptr, !there.defined(), comm_.start_send(bytes, bucket.to)};
  }

  Flight awaited(const Bucket& bucket) {
    const at::Tensor there = in_place(bucket);
    const at::Tensor bytes = there.defined() ? there : spare(bucket.num_bytes);
    return {bytes, there.defined() ? nullptr : &bucket, !there.defined(),
            comm_.start_recv(bytes, bucket.from)};
  }

  void land() {
    Flight flight = std::move(flying_.front());
    flying_.pop_front();
    flight.transfer->wait();
    if (flight.unpacks)
      each(*flight.unpacks, flight.bytes, [](auto& ours, auto& wire) { ours.copy_(wire); });
    if (flight.is_spare) spare_.push_back(flight.bytes);
  }

  // Of `bytes` bytes; the memory of one that has landed where there is one.
  at::Tensor spare(int64_t bytes) {
    at::Tensor out = at::empty({0}, at::kByte);
    if (!spare_.empty()) out = std::exchange(spare_.back(), {}), spare_.pop_back();
    // A view of it; whole buckets come first, so that it seldom grows.
    if (out.storage().nbytes() < static_cast<size_t>(bytes)) return at::empty({bytes}, at::kByte);
    return out.as_strided({bytes}, {1}, 0);
  }

  // The bytes of this rank's part of a piece.
  at::Tensor bytes_of(const Piece& piece) const {
    const Local& local = locals_.at(piece.tensor);
    int64_t before = 0;
    for (const Slice& slice : local.slices) {
      if (piece.first >= slice.first && piece.last <= slice.last) {
        const int64_t size = plan_.tensors[piece.tensor].element_size;
        return local.values.view({-1}).view(at::kByte).narrow(
            0, (before + piece.first - slice.first) * size, (piece.last - piece.first) * size);
      }
      before += slice.last - slice.first;
    }
    fail(Code::kInternal, "sync: rank ", comm_.rank(), " has no elements [", piece.first, ", ",
         piece.last, ") of '", plan_.tensors[piece.tensor].name, "'");
  }

  // The bucket where its pieces lie one after the other in this rank's memory; else none.
  at::Tensor in_place(const Bucket& bucket) const {
    const at::Tensor first = bytes_of(bucket.pieces.front());
    if (!first.is_cpu()) return {};
    const auto* end = static_cast<const char*>(first.const_data_ptr());
    for (const Piece& piece : bucket.pieces) {
      const at::Tensor next = bytes_of(piece);
      if (!next.is_alias_of(first) || next.const_data_ptr() != end) return {};
      end += next.nbytes();
    }
    return first.as_strided({bucket.num_bytes}, {1});
  }

  template <class Copy>
  void each(const Bucket& bucket, const at::Tensor& wire, const Copy& copy) const {
    int64_t at = 0;
    for (const Piece& piece : bucket.pieces) {
      at::Tensor ours = bytes_of(piece), theirs = wire.narrow(0, at, ours.numel());
      copy(ours, theirs);
      at += ours.numel();
    }
  }

  mesh::Comm& comm_;
  const Plan& plan_;
  const std::vector<Local>& locals_;
  std::deque<Flight> flying_;
  std::vector<at::Tensor> spare_;
};

}  // namespace

int64_t transfer(mesh::Comm& comm, const Plan& plan, const std::vector<Local>& locals) {
  return Transfers(comm, plan, locals).run();
}

}  // namespace twinkle::sync
