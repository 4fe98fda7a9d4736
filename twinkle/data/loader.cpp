#include "twinkle/data/loader.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "twinkle/base/error.h"

namespace twinkle::data {
namespace {

// SplitMix64's finaliser (Steele et al. 2014): 64 mixed bits of a counter.
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// Uniform below n, without bias (Lemire 2019); takes counters from `counter` on.
uint64_t below(uint64_t n, uint64_t key, uint64_t& counter) {
  const uint64_t reject = -n % n;
  while (true) {
    const auto product = static_cast<unsigned __int128>(mix(key ^ mix(counter++))) * n;
    if (static_cast<uint64_t>(product) >= reject) return static_cast<uint64_t>(product >> 64);
  }
}

}  // namespace

std::vector<int64_t> shuffled(int64_t n, uint64_t seed, uint64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  const uint64_t key = mix(mix(seed) + epoch);
  uint64_t counter = 0;
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[below(i, key, counter)]);
  return order;
}

Loader::Loader(int64_t num_rows, LoaderOptions options) : num_rows_(num_rows), options_(options) {
  LoaderOptions& o = options_;
  require(o.data_world_size >= 1, Code::kInvalid, "data: data_world_size is ", o.data_world_size,
          ", it must be at least 1");
  require(o.batch_size >= 1, Code::kInvalid, "data: batch_size is ", o.batch_size,
          ", it must be at least 1");
  require(o.batch_size % o.data_world_size == 0, Code::kInvalid, "data: batch_size is ",
          o.batch_size, ", it must be divisible by the ", o.data_world_size,
          " data ranks of the mesh");
  require(o.data_rank >= 0 && o.data_rank < o.data_world_size, Code::kInvalid,
          "data: data_rank is ", o.data_rank, ", it must be below the data_world_size of ",
          o.data_world_size);
  if (o.min_batch_size == 0) o.min_batch_size = o.data_world_size;
  require(o.min_batch_size >= 1 && o.min_batch_size <= o.batch_size, Code::kInvalid,
          "data: min_batch_size is ", o.min_batch_size,
          ", it must lie between 1 and the batch_size of ", o.batch_size);
  require(o.whole_batch || o.min_batch_size >= o.data_world_size, Code::kInvalid,
          "data: min_batch_size is ", o.min_batch_size, ", it must be at least the ",
          o.data_world_size, " data ranks, each of which needs a row");
  start(0);
}

int64_t Loader::rows_per_epoch() const {
  const int64_t tail = num_rows_ % options_.batch_size;
  return tail >= options_.min_batch_size ? num_rows_ : num_rows_ - tail;
}

int64_t Loader::num_batches() const {
  const int64_t rows = num_rows_ - begin_;
  return rows / options_.batch_size +
         (rows % options_.batch_size >= options_.min_batch_size ? 1 : 0);
}

void Loader::start(int64_t epoch) {
  if (options_.shuffle) {
    order_ = shuffled(num_rows_, options_.seed, static_cast<uint64_t>(epoch + epoch_shift_));
  } else if (order_.empty()) {
    order_.resize(static_cast<size_t>(num_rows_));
    std::iota(order_.begin(), order_.end(), 0);
  }
  if (!std::exchange(resuming_, false)) begin_ = 0;
  position_ = begin_;
}

std::vector<int64_t> Loader::next() {
  const int64_t size = std::min(options_.batch_size, num_rows_ - position_);
  if (size < options_.min_batch_size) return {};
  const int64_t begin = position_;
  position_ += size;
  consumed_ += size;
  // The first `size % world` ranks get one row more.
  const int64_t world = options_.whole_batch ? 1 : options_.data_world_size;
  const int64_t rank = options_.whole_batch ? 0 : options_.data_rank;
  const int64_t share = size / world, more = size % world;
  const int64_t from = begin + rank * share + std::min(rank, more);
  const auto first = order_.begin() + from;
  return {first, first + share + (rank < more ? 1 : 0)};
}

void Loader::skip(int64_t num_rows) {
  require(num_rows >= 0, Code::kInvalid, "data: consumed samples are ", num_rows,
          ", they must be at least 0");
  const int64_t epoch = rows_per_epoch();
  consumed_ = num_rows;
  epoch_shift_ = epoch > 0 ? num_rows / epoch : 0;
  begin_ = epoch > 0 ? num_rows % epoch : 0;
  resuming_ = true;
}

}  // namespace twinkle::data
