#include "twinkle/sync/plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "twinkle/base/error.h"

namespace twinkle::sync {
namespace {

using Route = std::pair<int, int>;  // from, to

class Planner {
 public:
  Planner(const std::vector<Manifest>& ranks, int num_senders, const Sizes& sizes)
      : ranks_(ranks),
        num_senders_(num_senders),
        sizes_(sizes),
        load_(static_cast<size_t>(num_senders)) {
    for (int r = 0; r < num_senders; ++r) {
      for (const Entry& entry : ranks_[static_cast<size_t>(r)])
        holders_[entry.name].push_back({r, &entry});
    }
  }

  Plan run() {
    for (int r = num_senders_; std::cmp_less(r, ranks_.size()); ++r) {
      for (const Entry& entry : ranks_[static_cast<size_t>(r)]) {
        const size_t tensor = number_of(entry);
        for (const Slice& wanted : entry.slices) bring(r, entry, tensor, wanted);
      }
    }
    // The routes take turns, so that no rank waits until another has all of its own.
    for (size_t i = 0, left = 1; left > 0; ++i) {
      left = 0;
      for (auto& [route, way] : ways_) {
        if (i >= way.buckets.size()) continue;
        ++left;
        out_.num_bytes += way.buckets[i].num_bytes;
        out_.buckets.push_back(std::move(way.buckets[i]));
      }
    }
    return std::move(out_);
  }

 private:
  struct Way {
    std::vector<Bucket> buckets;
    std::optional<size_t> open;  // the bucket that small pieces go into
  };
  struct Holder {
    int rank;
    const Entry* entry;
  };

  size_t number_of(const Entry& entry) {
    const auto [it, is_new] = numbers_.try_emplace(entry.name, out_.tensors.size());
    if (is_new) out_.tensors.push_back({entry.name, entry.element_size});
    return it->second;
  }

  // Where the slice goes on from `first`, at whom: the end of what the chosen sender holds.
  Slice next(const Entry& entry, const Slice& wanted, int& from) {
    const auto found = holders_.find(entry.name);
    Slice best{wanted.first, wanted.first};
    if (found != holders_.end()) {
      for (const Holder& holder : found->second) {
        for (const Slice& held : holder.entry->slices) {
          if (held.first > wanted.first || held.last <= wanted.first) continue;
          const bool is_better =
              best.last == best.first ||
              load_[static_cast<size_t>(holder.rank)] < load_[static_cast<size_t>(from)];
          if (!is_better) continue;
          from = holder.rank;
          best.last = std::min(held.last, wanted.last);
        }
      }
    }
    require(best.last > best.first, Code::kInvalid, "sync: no rank of the model holds element ",
            wanted.first, " of '", entry.name, "'");
    return best;
  }

  void bring(int to, const Entry& entry, size_t tensor, Slice wanted) {
    while (wanted.first < wanted.last) {
      int from = 0;
      const Slice slice = next(entry, wanted, from);
      load_[static_cast<size_t>(from)] += (slice.last - slice.first) * entry.element_size;
      add({from, to}, entry.element_size, {tensor, slice.first, slice.last});
      wanted.first = slice.last;
    }
  }

  // Cuts a piece where a bucket is full.
  void add(Route route, int64_t element_size, Piece piece) {
    Way& way = ways_[route];
    const bool is_alone = (piece.last - piece.first) * element_size >= sizes_.alone_bytes;
    while (piece.first < piece.last) {
      int64_t room = 0;  // elements
      if (!is_alone && way.open)
        room = (sizes_.bucket_bytes - way.buckets[*way.open].num_bytes) / element_size;
      size_t at = way.buckets.size();
      if (room > 0) {
        at = *way.open;
      } else {
        way.buckets.push_back({.from = route.first, .to = route.second});
        room = std::max<int64_t>(sizes_.bucket_bytes / element_size, 1);
        if (!is_alone) way.open = at;
      }
      Bucket& bucket = way.buckets[at];
      const int64_t last = std::min(piece.last, piece.first + room);
      bucket.pieces.push_back({piece.tensor, piece.first, last});
      bucket.num_bytes += (last - piece.first) * element_size;
      piece.first = last;
    }
  }

  const std::vector<Manifest>& ranks_;
  const int num_senders_;
  const Sizes sizes_;
  std::map<std::string_view, std::vector<Holder>> holders_;
  std::map<std::string_view, size_t> numbers_;
  std::vector<int64_t> load_;  // bytes, of each sender
  std::map<Route, Way> ways_;
  Plan out_;
};

}  // namespace

Plan plan(const std::vector<Manifest>& ranks, int num_senders, const Sizes& sizes) {
  require(sizes.bucket_bytes >= 1, Code::kInvalid, "sync: bucket_bytes is ", sizes.bucket_bytes,
          ", it must be at least 1");
  return Planner(ranks, num_senders, sizes).run();
}

}  // namespace twinkle::sync
