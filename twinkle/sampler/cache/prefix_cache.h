// An index from tokens to the pages that hold them, so that a sequence that begins like an earlier
// one takes its pages instead of computing them. A page is known by the weights that computed it,
// by the page before it and by its 64 tokens, all compared in full: equal hashes alone never match.
// Holds no share of a page: free pages keep their place here until the pool hands them out again,
// the one freed first before the others. Knows no requests. One thread; the pool outlives the
// cache.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "twinkle/sampler/cache/block_pool.h"

namespace twinkle::sampler {

// The parent of first pages, which no page has as its id. Those of different sharers are never the
// same page; nor are those whose keys are others for the same tokens (longrope's long sequences).
constexpr uint64_t root_of(uint64_t sharer, bool has_other_keys) {
  return uint64_t{1} << 63 | sharer << 1 | (has_other_keys ? 1 : 0);
}

struct PageKey {
  uint64_t version = 0;  // version of the weights
  uint64_t parent = 0;   // id of the page before, or of a root: this is the first
  std::array<int32_t, kPageTokens> tokens{};

  bool operator==(const PageKey&) const = default;
};

struct HashOfPage {
  uint64_t operator()(const PageKey& key) const;
};

class PrefixCache {
 public:
  explicit PrefixCache(BlockPool& pool);

  struct Found {
    uint64_t id = 0;  // its successors' parent; never given twice
    Block block;
  };

  // tokens: kPageTokens of them.
  std::optional<Found> find(uint64_t version, uint64_t parent, std::span<const int32_t> tokens);
  // Makes `block`, which holds these tokens, known. When another page is known for them, that one
  // is returned, whose content is the same.
  Found insert(uint64_t version, uint64_t parent, std::span<const int32_t> tokens, Block block);
  // Forgets everything.
  void clear();

 private:
  struct Entry {
    uint64_t id;
    Kept kept;
  };

  BlockPool& pool_;
  std::unordered_map<PageKey, Entry, HashOfPage> entries_;
  std::vector<const PageKey*> by_page_;  // the entry that names a page; a page has one at most
  uint64_t last_id_ = 0;
};

}  // namespace twinkle::sampler
