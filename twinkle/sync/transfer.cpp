#include "twinkle/sync/transfer.h"

#include <ATen/ATen.h>

#include <deque>
#include <memory>
#include <utility>

#include "twinkle/base/error.h"

namespace twinkle::sync {
namespace {

class Transfers {
 public:
  Transfers(mesh::Comm& comm, const Plan& plan, const std::vector<Local>& locals)
      : comm_(comm), plan_(plan), locals_(locals) {}

  int64_t run(int64_t most_flying) {
    int64_t bytes = 0;
    for (const Bucket& bucket : plan_.buckets) {
      const bool sends = bucket.from == comm_.rank();
      if (!sends && bucket.to != comm_.rank()) continue;
      while (!flying_.empty() && num_flying_ + bucket.num_bytes > most_flying) land();
      bytes += bucket.num_bytes;
      num_flying_ += bucket.num_bytes;
      flying_.push_back(begun(bucket, sends));
    }
    while (!flying_.empty()) land();
    return bytes;
  }

 private:
  struct Flight {
    const Bucket& bucket;
    at::Tensor bytes;  // bytes on their way
    bool is_copied;    // to be copied out of `bytes`, where this rank receives
    std::unique_ptr<mesh::Transfer> transfer;
  };

  Flight begun(const Bucket& bucket, bool sends) {
    at::Tensor bytes = in_place(bucket);
    const bool is_copied = !bytes.defined();
    if (is_copied) bytes = at::empty({bucket.num_bytes}, at::kByte);
    if (sends && is_copied) each(bucket, bytes, [](auto& ours, auto& wire) { wire.copy_(ours); });
    auto transfer =
        sends ? comm_.start_send(bytes, bucket.to) : comm_.start_recv(bytes, bucket.from);
    return {bucket, bytes, is_copied && !sends, std::move(transfer)};
  }

  void land() {
    const Flight flight = std::move(flying_.front());
    flying_.pop_front();
    num_flying_ -= flight.bucket.num_bytes;
    flight.transfer->wait();
    if (flight.is_copied)
      each(flight.bucket, flight.bytes, [](auto& ours, auto& wire) { ours.copy_(wire); });
  }

  // The message where it lies in this rank's memory; none: its pieces lie apart, or on a device.
  at::Tensor in_place(const Bucket& bucket) const {
    const at::Tensor first = bytes_of(bucket.pieces.front(), plan_, locals_);
    return bucket.pieces.size() == 1 && first.is_cpu() ? first : at::Tensor();
  }

  template <class Copy>
  void each(const Bucket& bucket, const at::Tensor& wire, const Copy& copy) const {
    int64_t at = 0;
    for (const Piece& piece : bucket.pieces) {
      at::Tensor ours = bytes_of(piece, plan_, locals_), theirs = wire.narrow(0, at, ours.numel());
      copy(ours, theirs);
      at += ours.numel();
    }
  }

  mesh::Comm& comm_;
  const Plan& plan_;
  const std::vector<Local>& locals_;
  std::deque<Flight> flying_;
  int64_t num_flying_ = 0;  // bytes
};

}  // namespace

at::Tensor bytes_of(const Piece& piece, const Plan& plan, const std::vector<Local>& locals) {
  const Plan::Tensor& tensor = plan.tensors[piece.tensor];
  const Local& local = locals.at(piece.tensor);
  int64_t before = 0;
  for (const Slice& slice : local.slices) {
    if (piece.first >= slice.first && piece.last <= slice.last) {
      const int64_t size = tensor.element_size;
      return local.values.view({-1}).view(at::kByte).narrow(
          0, (before + piece.first - slice.first) * size, (piece.last - piece.first) * size);
    }
    before += slice.last - slice.first;
  }
  fail(Code::kInternal, "sync: this rank has no elements [", piece.first, ", ", piece.last,
       ") of '", tensor.name, "'");
}

int64_t transfer(mesh::Comm& comm, const Plan& plan, const std::vector<Local>& locals,
                 int64_t bucket_bytes) {
  return Transfers(comm, plan, locals).run(2 * bucket_bytes);
}

}  // namespace twinkle::sync
