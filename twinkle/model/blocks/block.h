// Half of a layer: a mixer, through which the tokens of a sequence see each other, or an MLP. A
// block owns its weights and names each of them once, to Parts (parts.h), when it is made; it alone
// knows what its backward pass keeps, and what sampling keeps of a sequence. Knows neither its
// neighbours nor the residual sum: what it gets is normed, what it returns is added. Used by the
// decoder's thread. T tokens, D width.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "twinkle/model/kv_cache.h"
#include "twinkle/model/spec.h"
#include "twinkle/nn/attention/rope.h"
#include "twinkle/nn/experts/routing.h"
#include "twinkle/nn/rows.h"

namespace twinkle::model {

// The inputs of a layer's blocks in one pass through the decoder.
struct Context {
  const nn::Rows& rows;
  const nn::RopeTable& rope;
  size_t layer = 0;
  KvCache* kv = nullptr;                           // not null: sampling
  std::shared_ptr<nn::Routing> routing = nullptr;  // as of Batch
  const nn::RopeTable* local_rope = nullptr;       // for attention that asks for it
};

class Block {
 public:
  Block() = default;
  Block(const Block&) = delete;  // Parts point into it
  Block& operator=(const Block&) = delete;
  virtual ~Block() = default;

  // x and the result [T, D]. Differentiable in x; trained weights' gradients go to their buffers.
  virtual at::Tensor forward(const at::Tensor& x_TD, const Context& context) const = 0;
  // Says that forward() comes next, as nn::prefetch says of a linear.
  virtual void prefetch() const = 0;
  // Bytes that forward() keeps for backward, with x where backward reads it, without the result.
  virtual int64_t saved_bytes(const nn::Rows& rows) const = 0;
  // The most that its backward keeps besides, of the size of its weights, until it has ended.
  virtual int64_t backward_bytes(const nn::Rows&) const { return 0; }
};

class Mixer : public Block {
 public:
  // The state that sampling must keep of a sequence for this block. Of its weights as they are
  // here: the spec's is of the whole model.
  virtual StateSpec state() const = 0;
};

}  // namespace twinkle::model
