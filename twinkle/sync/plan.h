// The messages of a sync: which elements go from which rank to which. Every rank computes the same
// plan from all ranks' manifests, so that sender and receiver of a message agree on its size
// without a word. Values; knows no tensors.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "twinkle/sync/manifest.h"

namespace twinkle::sync {

// Elements [first, last) of tensor number `tensor` of the plan.
struct Piece {
  size_t tensor = 0;
  int64_t first = 0, last = 0;

  bool operator==(const Piece&) const = default;
};

// One message: its pieces one after the other. Large ones have a single piece.
struct Bucket {
  int from = 0, to = 0;  // ranks
  std::vector<Piece> pieces;
  int64_t num_bytes = 0;
};

struct Plan {
  struct Tensor {
    std::string name;
    int64_t element_size = 0;  // bytes
  };
  std::vector<Tensor> tensors;
  std::vector<Bucket> buckets;  // every rank sends and receives its own in this order
  int64_t num_bytes = 0;        // bytes of all
};

struct Sizes {
  int64_t bucket_bytes = int64_t{64} << 20;  // the most of one message, but for a single element
  // A slice of as many is not put into a bucket with others: it is sent from, and received, where
  // it lies. A message costs what a copy of some 100 KiB does.
  int64_t alone_bytes = int64_t{128} << 10;
};

// The plan for manifests that require_same_tensors takes. Every slice that a receiver wants comes
// once, from the sender that has it and has been given fewest bytes. Error kInvalid: elements that
// no sender holds; bucket_bytes below 1.
Plan plan(const std::vector<Manifest>& ranks, int num_senders, const Sizes& sizes);

}  // namespace twinkle::sync
