// Keys and values of every running sequence, by page. Implements the seam that mixers have for
// sampling: what a forward computes is stored in the pages of its sequences, and its queries see
// everything stored before; states lie in the sequences' slots. Knows pages and slots, not
// requests. One thread.
#pragma once
#include <vector>

#include "twinkle/kernels/attention/attention.h"
#include "twinkle/model/kv_cache.h"
#include "twinkle/model/spec.h"
#include "twinkle/sampler/cache/block_pool.h"
#include "twinkle/sampler/cache/state_pool.h"

namespace twinkle::sampler {

// A sequence's next tokens: positions [begin, end) of it, whose pages are blocks.
struct Chunk {
  const std::vector<Block>* blocks;  // page i holds positions [64 i, 64 (i + 1)); none shared from
                                     // begin's on
  int64_t begin = 0, end = 0;
  std::byte* state = nullptr;  // its slot, where layers keep a state
};

// The slots of layers that keep `states`.
StateLayout layout_of(const std::vector<model::StateSpec>& states);

class PagedCache final : public model::KvCache {
 public:
  // Memory for all pages of layers that keep `states`, on `device`; that of the CPU is handed out
  // as pages are first used.
  PagedCache(const std::vector<model::StateSpec>& states, at::ScalarType dtype, at::Device device,
             int64_t num_pages);
  // The bytes that they are.
  static int64_t num_bytes(const std::vector<model::StateSpec>& states, at::ScalarType dtype,
                           int64_t num_pages);

  // Says what the sequences of the next forward are, in its order. Rows that the forward has behind
  // those of the chunks are padding: nothing is kept of them, they attend to nothing and get 0.
  void start(const std::vector<Chunk>& chunks);
  // The same of rows as rows_of() makes them, on the cache's device.
  void start(const kernels::PagedRows& rows) { rows_ = rows; }
  // The rows of the chunks, on the CPU; tables of at least so many pages.
  static kernels::PagedRows rows_of(const std::vector<Chunk>& chunks, int64_t least_pages = 1);

  at::Tensor attend(size_t layer, const at::Tensor& q_THd, const at::Tensor& k_TKd,
                    const at::Tensor& v_TKd, const nn::Rows& rows,
                    const nn::AttentionOptions& options) override;
  std::span<const kernels::DeltaRun> states(size_t layer) override;

  // All of page `from` to page `to`, in every layer.
  void copy_page(int32_t from, int32_t to);

 private:
  std::vector<kernels::PagedKeys> layers_;  // undefined where a layer keeps a state
  const StateLayout layout_;
  // Runs of the next forward: slots_ have the states at slots, runs_ at one layer's parts of them.
  std::vector<kernels::DeltaRun> slots_, runs_;
  at::Device device_;
  kernels::PagedRows rows_;  // on the device
};

}  // namespace twinkle::sampler
