// The adapters of all owners on one decoder: ragged ranks, one slot each. Implements the linears'
// seam: every sequence of a batch gets the delta of its owner's slot. Rank r costs r. Used by the
// decoder's thread alone.
#pragma once
#include <memory>
#include <vector>

#include "twinkle/lora/adapter.h"
#include "twinkle/model/decoder.h"
#include "twinkle/nn/linear.h"

namespace twinkle::lora {

class Pool {
 public:
  explicit Pool(model::Decoder& decoder);  // the decoder must outlive the pool
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Returns the slot: the lowest free one.
  int32_t add(std::unique_ptr<Adapter> adapter);
  void remove(int32_t slot);
  Adapter& at(int32_t slot);

  const std::vector<model::NamedLinear>& linears() const { return linears_; }

 private:
  class Seam;
  void attach();  // a linear that no adapter targets keeps no seam, and costs nothing

  std::vector<model::NamedLinear> linears_;
  std::vector<std::unique_ptr<Seam>> seams_;  // one per linear
  std::vector<std::unique_ptr<Adapter>> slots_;
};

}  // namespace twinkle::lora
