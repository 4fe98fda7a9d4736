// How the rows of one call are laid out, and whose they are: runs of consecutive tokens of
// sequences, one after the other, never padded. A run is a whole sequence, or what was gathered of
// one. Knows neither adapters nor tenants: a slot is a number that only a Delta understands. T
// tokens, S runs.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace twinkle::nn {

// True if a sequence learns. Copies share it, those in nodes of autograd too: a sequence that is
// found between a forward and its backward not to learn after all learns nothing.
class Learn {
 public:
  Learn(bool on = false) : on_(on ? std::make_shared<bool>(true) : nullptr) {}
  operator bool() const { return on_ && *on_; }
  bool operator==(const Learn& other) const { return bool{*this} == bool{other}; }
  // Shared by every copy. An assignment changes one.
  void end() const {
    if (on_) *on_ = false;
  }

 private:
  std::shared_ptr<bool> on_;
};

struct Segment {
  int32_t slot = -1;    // slot of its adapter; -1: no adapter, no delta
  uint64_t key = 0;     // key of its sequence's random streams; 0: none (no dropout)
  Learn learn = false;  // false: its gradients are not added to any buffer
  int64_t first = 0;    // its first row is this token of its sequence

  bool operator==(const Segment&) const = default;
};

struct Rows {
  // [T] int32 or int64: rows of rope's table (RopeSpec::first_row), usually 0, 1, ... per sequence;
  // undefined of gathered rows, which only linears take.
  at::Tensor position_ids = {};
  std::vector<int64_t> cu_seqlens = {0};  // [S + 1]: run s is rows cu_seqlens[s] ..< [s + 1]
  std::vector<Segment> segments = {};     // [S]

  int64_t num_segments() const { return static_cast<int64_t>(segments.size()); }
  int64_t num_tokens() const { return cu_seqlens.back(); }
  void add(int64_t num_tokens, const Segment& segment);
  size_t segment_of(int64_t row) const;

  // These rows, ascending, one after the other: a segment for each run of neighbours.
  Rows gather(std::span<const int64_t> rows) const;
  // The same, but a segment for each sequence, whose tokens are numbered anew from 0: an expert's
  // rows, of which few are neighbours, for linears that see all of a sequence's at once.
  Rows gather_sequences(std::span<const int64_t> rows) const;
  // `count` rows from `begin` on, all of one segment.
  Rows part(int64_t begin, int64_t count) const;
};

// Sequences of these lengths (tokens), positions counted from 0 in each, without adapters. Error
// kInvalid: a length below 1.
Rows pack(std::span<const int64_t> lengths);

}  // namespace twinkle::nn
