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

LoaderOptions checked(const LoaderOptions& o) {
  require(o.data_world_size >= 1, Code::kInvalid, "data: data_world_size is ", o.data_world_size,
          ", it must be at least 1");
  require(o.batch_size >= 1, Code::kInvalid, "data: batch_size is ", o.batch_size,
          ", it must be at least 1");
  require(o.batch_size % o.data_world_size == 0, Code::kInvalid, "data: batch_size is ",
          o.batch_size, ", it must be divisible by the ", o.data_world_size, " data ranks");
  require(o.data_rank >= 0 && o.data_rank < o.data_world_size, Code::kInvalid,
          "data: data_rank is ", o.data_rank, ", it must be below the data_world_size of ",
          o.data_world_size);
  require(o.least() >= 1 && o.least() <= o.batch_size, Code::kInvalid, "data: min_batch_size is ",
          o.least(), ", it must lie between 1 and the batch_size of ", o.batch_size);
  require(o.least() >= o.data_world_size, Code::kInvalid, "data: min_batch_size is ", o.least(),
          ", it must be at least the ", o.data_world_size,
          " data ranks, each of which needs a row");
  return o;
}

std::string remark_on(int64_t num_dropped, const LoaderOptions& o) {
  if (num_dropped == 0 || o.min_batch_size != 0) return "";
  const std::string ranks = std::to_string(o.data_world_size);
  return std::to_string(num_dropped) +
         " rows at the end of each epoch are left out, which one process would read: each of " +
         ranks + " data ranks needs a row of every batch; choose a batch_size, now " +
         std::to_string(o.batch_size) + ", that leaves none or " + ranks + " and more";
}

Share share_of(int64_t size, const LoaderOptions& options) {
  if (options.whole_batch) return {0, size};
  const int64_t share = size / options.data_world_size, more = size % options.data_world_size;
  const int64_t rank = options.data_rank;
  return {rank * share + std::min(rank, more), share + (rank < more ? 1 : 0)};
}

Loader::Loader(int64_t num_rows, LoaderOptions options)
    : num_rows_(num_rows), options_(checked(options)) {
  start(0);
}

int64_t Loader::rows_per_epoch() const {
  const int64_t tail = num_rows_ % options_.batch_size;
  return tail >= options_.least() ? num_rows_ : num_rows_ - tail;
}

int64_t Loader::num_batches() const {
  const int64_t rows = num_rows_ - begin_;
  return rows / options_.batch_size + (rows % options_.batch_size >= options_.least() ? 1 : 0);
}

std::string Loader::remark() const {
  if (rows_per_epoch() > 0) return remark_on(num_rows_ - rows_per_epoch(), options_);
  return std::to_string(num_rows_) + " rows make no batch of at least " +
         std::to_string(options_.least()) + ": a loop over this loader does nothing";
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
  if (size < options_.least()) return {};
  const auto [from, count] = share_of(size, options_);
  const auto first = order_.begin() + position_ + from;
  position_ += size;
  consumed_ += size;
  return {first, first + count};
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
