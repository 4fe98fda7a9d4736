#include "twinkle/sampler/cache/prefix_cache.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace twinkle::sampler {
namespace {

PageKey key_of(uint64_t version, uint64_t parent, std::span<const int32_t> tokens) {
  PageKey key{version, parent, {}};
  std::copy_n(tokens.begin(), kPageTokens, key.tokens.begin());
  return key;
}

}  // namespace

uint64_t HashOfPage::operator()(const PageKey& key) const {
  uint64_t hash = key.version * 0x9e3779b97f4a7c15 + key.parent;
  for (const int32_t token : key.tokens) {
    hash = std::rotl((hash ^ static_cast<uint32_t>(token)) * 0xff51afd7ed558ccd, 29);
  }
  return hash;
}

PrefixCache::PrefixCache(BlockPool& pool)
    : pool_(pool), by_page_(static_cast<size_t>(pool.num_pages()), nullptr) {}

std::optional<PrefixCache::Found> PrefixCache::find(uint64_t version, uint64_t parent,
                                                    std::span<const int32_t> tokens) {
  const auto entry = entries_.find(key_of(version, parent, tokens));
  if (entry == entries_.end()) return std::nullopt;
  std::optional<Block> block = pool_.revive(entry->second.kept);
  if (!block) return std::nullopt;
  return Found{entry->second.id, *std::move(block)};
}

PrefixCache::Found PrefixCache::insert(uint64_t version, uint64_t parent,
                                       std::span<const int32_t> tokens, Block block) {
  if (std::optional<Found> known = find(version, parent, tokens)) return *std::move(known);
  const PageKey*& mine = by_page_[static_cast<size_t>(block.page())];
  if (mine) entries_.erase(entries_.find(*std::exchange(mine, nullptr)));  // the page's old entry
  const PageKey key = key_of(version, parent, tokens);
  const auto stale = entries_.find(key);
  if (stale != entries_.end()) {
    by_page_[static_cast<size_t>(stale->second.kept.page)] = nullptr;
    entries_.erase(stale);
  }
  const auto entry = entries_.try_emplace(key).first;
  entry->second = {++last_id_, pool_.keep(block)};
  mine = &entry->first;
  return {last_id_, std::move(block)};
}

void PrefixCache::clear() {
  for (const auto& [key, entry] : entries_) pool_.drop(entry.kept);
  entries_.clear();
  std::fill(by_page_.begin(), by_page_.end(), nullptr);
}

}  // namespace twinkle::sampler
