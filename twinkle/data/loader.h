// Batches of indices over a dataset: which rows come next, nothing of the rows. Every row is asked
// for once an epoch. A value: copy it to look ahead. Not thread-safe. Rows without an index:
// stream_loader.h.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace twinkle::data {

struct LoaderOptions {
  int64_t batch_size = 1;  // rows over all data ranks; a multiple of data_world_size
  int64_t min_batch_size =
      0;  // a last batch below it is dropped; 0: data_world_size; = batch_size: drop_last
  bool shuffle = false;
  uint64_t seed = 0;            // the shuffle's; one seed and epoch give one order on every machine
  int64_t data_world_size = 1;  // data ranks
  int64_t data_rank = 0;        // slice of each batch that `next` gives; ignored with whole_batch
  bool whole_batch =
      false;  // true: every rank gets the whole batch (a driver that hands out slices)

  // Rows of the smallest batch.
  int64_t least() const { return min_batch_size == 0 ? data_world_size : min_batch_size; }
};

// The same. Error kInvalid: a size below 1, a batch_size that data_world_size does not divide, a
// min_batch_size above batch_size or below data_world_size, a rank outside the world.
LoaderOptions checked(const LoaderOptions& options);

// A line about rows at an epoch's end that no batch holds, where min_batch_size does not ask for
// that; empty: none.
std::string remark_on(int64_t num_dropped, const LoaderOptions& options);

inline constexpr const char* kNoRows =
    "data: the dataset has no rows: its source is empty, or a filter, check or encode dropped all";

// The rows of a batch that a data rank gets: `count` from `first` on.
struct Share {
  int64_t first, count;
};
// A share of a batch of `size` rows: the first `size % data_world_size` ranks get one row more.
Share share_of(int64_t size, const LoaderOptions& options);

// The permutation of 0 .. n-1 that Fisher and Yates's shuffle draws from a counter-based stream
// keyed by (seed, epoch).
std::vector<int64_t> shuffled(int64_t n, uint64_t seed, uint64_t epoch);

class Loader {
 public:
  // Error kInvalid: as checked().
  Loader(int64_t num_rows, LoaderOptions options);

  // Batches of the epoch that was started last, or skipped into; without the skipped rows.
  int64_t num_batches() const;
  // Starts epoch `epoch` from its first row, or behind the rows to skip in the first one started
  // after a skip.
  void start(int64_t epoch);
  // This rank's indices of the next batch; empty at the end.
  std::vector<int64_t> next();

  // The next epoch begins behind the first `num_rows` rows of its order, which are never read.
  // Error kInvalid: negative. More rows than an epoch has: whole epochs are skipped.
  void skip(int64_t num_rows);
  // As remark_on; or that there is no batch at all.
  std::string remark() const;
  // Rows consumed over all ranks since the beginning, skipped ones too; a short batch counts what
  // it held.
  int64_t consumed() const { return consumed_; }

 private:
  int64_t rows_per_epoch() const;  // rows that batches cover: without the dropped tail

  int64_t num_rows_;
  LoaderOptions options_;
  std::vector<int64_t> order_;
  int64_t begin_ = 0;        // rows that the epoch begins behind
  bool resuming_ = true;     // begin_ is for the epoch to start next
  int64_t epoch_shift_ = 0;  // whole epochs skipped
  int64_t position_ = 0;
  int64_t consumed_ = 0;
};

}  // namespace twinkle::data
