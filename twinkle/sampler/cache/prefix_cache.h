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

// The parent of first pages with other keys for the same tokens (longrope's long sequences); no
// page has this id.
inline constexpr uint64_t kOtherRoot = ~uint64_t{0};

struct PageKey {
  uint64_t version = 0;  // of the weights
  uint64_t parent = 0;   // id of the page before; 0 or kOtherRoot: this is the first
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
