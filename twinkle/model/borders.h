// Hooks at the borders of a decoder's pieces: the head, the layers, and the embedding where
// it is not the head's. One rank does nothing there; several may hold a part of a piece's weights
// each, and bring them together before it is used. Knows no mesh. The decoder's thread.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/model/weights/weight_source.h"

namespace twinkle::model {

// A weight while the decoder is made.
struct PieceWeight {
  size_t piece;
  std::string name;
  std::vector<int64_t> shape;
};

class Borders {
 public:
  virtual ~Borders() = default;

  // The decoder's weight: its size is the whole one's from here on, its values are there when
  // `loaded` has returned, or, of a matrix, while its piece is in use. Errors are the source's.
  virtual at::Tensor weight(const WeightSource& source, const PieceWeight& weight,
                            WeightMemory* memory) {
    return source.read(weight.name, weight.shape, {}, memory);
  }
  // All weights have been asked for. Errors are the source's.
  virtual void loaded(const WeightSource&) {}

  // The piece's weights are there until done(), which follows once for each. `next`: the piece that
  // is expected after it, which may be asked for already. Ranks make the same calls in the same
  // order, each whether it has anything to compute or not. Error kInternal: another rank has gone.
  virtual void use(size_t, std::optional<size_t> next [[maybe_unused]]) {}
  virtual void done(size_t) noexcept {}
  // True if the piece's weights are there now, in use or not.
  virtual bool has(size_t) const { return true; }
};

// The borders of one rank.
Borders& no_borders();

// A piece in use.
class InUse {
 public:
  InUse(Borders& borders, size_t piece, std::optional<size_t> next = {})
      : borders_(borders), piece_(piece) {
    borders.use(piece, next);
  }
  ~InUse() { borders_.done(piece_); }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

 private:
  Borders& borders_;
  const size_t piece_;
};

}  // namespace twinkle::model
