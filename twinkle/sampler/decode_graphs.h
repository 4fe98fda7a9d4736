// Steps that give every sequence of a batch one more token, recorded as graphs of launches on a
// device: starting their launches one by one takes longer than they run. A graph is for one list of
// owners and the width of its page tables; ids, positions and pages are copied into the memory that
// it reads. Its numbers are those of the same step without it. One thread, the sampler's.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "twinkle/kernels/cuda/graph.h"
#include "twinkle/model/decoder.h"
#include "twinkle/sampler/cache/paged_cache.h"
#include "twinkle/sampler/sequence.h"

namespace twinkle::sampler {

class DecodeGraphs {
 public:
  // Both outlive it. No row of rope's table that a batch names is at or beyond num_rows.
  DecodeGraphs(model::Decoder& decoder, PagedCache& cache, int64_t num_rows);

  // Logits [R, V] of the batch's sequences, good until the next call; undefined, and nothing has
  // been done: the decoder is on the CPU, a sequence has more than one token to compute or a
  // prompt's to score, weights have no version to know them by, or a recording has failed.
  at::Tensor logits(const std::vector<Sequence*>& batch);

  // Lets go of the memory that graphs hold, adapters' among it.
  void forget() { steps_.clear(); }
  int64_t num_replays() const { return num_replays_; }
  // The error of a recording that failed: from then on there is none. Else null.
  const std::shared_ptr<const std::string>& failure() const { return failure_; }

 private:
  static constexpr size_t kMax = 16;  // graphs that are kept, those used last
  struct Key {
    int64_t width;                                     // columns of the page tables
    std::vector<std::pair<int32_t, uint64_t>> owners;  // slot and version of each row
    auto operator<=>(const Key&) const = default;
  };
  struct Step;

  std::shared_ptr<Step> make(const Key& key) const;
  void fill(Step& step, const Key& key, const std::vector<Sequence*>& batch) const;
  void make_room();

  model::Decoder& decoder_;
  PagedCache& cache_;
  std::map<Key, std::shared_ptr<Step>> steps_;
  int64_t num_calls_ = 0, num_replays_ = 0;
  std::shared_ptr<const std::string> failure_;
};

}  // namespace twinkle::sampler
