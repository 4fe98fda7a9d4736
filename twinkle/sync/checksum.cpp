#include "twinkle/sync/checksum.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "twinkle/base/random.h"

namespace twinkle::sync {
namespace {

uint64_t checksum(const at::Tensor& there) {
  const at::Tensor flat = there.cpu();
  const auto* bytes = static_cast<const unsigned char*>(flat.const_data_ptr());
  uint64_t hash = flat.nbytes();
  size_t i = 0;
  for (; i + sizeof(uint64_t) <= flat.nbytes(); i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, sizeof(word));
    hash = key_of(hash, word);
  }
  for (; i < flat.nbytes(); ++i) hash = key_of(hash, uint64_t{bytes[i]});
  return hash;
}

using Key = std::tuple<size_t, int64_t, int64_t>;
Key key(const Piece& piece) { return {piece.tensor, piece.first, piece.last}; }

}  // namespace

std::vector<uint64_t> checksums(const Plan& plan, int rank, const std::vector<Local>& locals) {
  const auto is_ours = [&](const Bucket& b) { return b.from == rank || b.to == rank; };
  // A sender has the same pieces for several receivers.
  std::map<Key, uint64_t> sums;
  for (const Bucket& bucket : plan.buckets) {
    if (!is_ours(bucket)) continue;
    for (const Piece& piece : bucket.pieces) sums[key(piece)] = 0;
  }
  std::vector<std::pair<at::Tensor, uint64_t*>> todo;
  for (auto& [piece, sum] : sums) {
    const auto& [tensor, first, last] = piece;
    todo.emplace_back(bytes_of({tensor, first, last}, plan, locals), &sum);
  }
  at::parallel_for(0, std::ssize(todo), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); std::cmp_less(i, end); ++i)
      *todo[i].second = checksum(todo[i].first);
  });
  std::vector<uint64_t> out;
  for (const Bucket& bucket : plan.buckets) {
    if (!is_ours(bucket)) continue;
    uint64_t hash = 0;
    for (const Piece& piece : bucket.pieces) hash = key_of(hash, sums.at(key(piece)));
    out.push_back(hash);
  }
  return out;
}

bool are_equal(const Plan& plan, const std::vector<std::vector<uint64_t>>& ranks) {
  std::vector<size_t> at(ranks.size());
  return std::ranges::all_of(plan.buckets, [&](const Bucket& bucket) {
    const auto from = static_cast<size_t>(bucket.from), to = static_cast<size_t>(bucket.to);
    return ranks[from].at(at[from]++) == ranks[to].at(at[to]++);
  });
}

}  // namespace twinkle::sync
