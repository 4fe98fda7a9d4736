// Batches of rows that have no index, such as those of a file that is larger than memory: a stream,
// which begins again for every epoch. Every rank reads every row, and gets its share of each batch.
// Skipped and consumed rows, and a short last batch, count as Loader's. Knows nothing of the rows.
// Not thread-safe.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/data/loader.h"

namespace twinkle::data {

template <class AnyRow>
class StreamLoader {
 public:
  using Reader = std::function<std::optional<AnyRow>()>;  // the next row; none at the end

  // `open` reads from the first row on; its errors, and the reader's, pass through. Options of a
  // shuffle count for nothing. Error kInvalid: as checked().
  StreamLoader(std::function<Reader()> open, const LoaderOptions& options)
      : open_(std::move(open)), options_(checked(options)) {}

  // Starts an epoch, behind the rows to skip in the first one started after a skip; an error leaves
  // these to the next. Error kInvalid: there are such, and an epoch has none.
  void start() {
    is_empty_ = true;
    reopen();
    for (int64_t rest = skip_; rest > 0;) {
      const std::optional<int64_t> held = pass(rest);
      if (!held) break;
      require(*held > 0, Code::kInvalid,
              "data: the dataset has no rows, so none can be skipped: leave the skip out, or lower "
              "min_batch_size");
      rest -= *held;
      reopen();
    }
    skip_ = 0;
  }

  // This rank's rows of the next batch; empty at the end. Error kInvalid: an epoch without rows.
  std::vector<AnyRow> next() {
    std::vector<AnyRow> batch;
    while (std::ssize(batch) < options_.batch_size) {
      std::optional<AnyRow> row = read();
      if (!row) break;
      batch.push_back(std::move(*row));
    }
    const int64_t size = std::ssize(batch);
    require(size > 0 || !is_empty_, Code::kInvalid, kNoRows);
    is_empty_ = false;
    num_dropped_ = size < options_.least() ? size : 0;
    if (size < options_.least()) return {};
    consumed_ += size;
    const auto [first, count] = share_of(size, options_);
    const auto begin = std::move_iterator(batch.begin() + first);
    return std::vector<AnyRow>(begin, begin + count);
  }

  // The next epoch begins behind `num_rows` rows of all ranks, which are read and discarded. More
  // rows than an epoch has: whole epochs are skipped. `num_rows` is at least 0.
  void skip(int64_t num_rows) { skip_ = consumed_ = num_rows; }

  // Rows consumed over all ranks since the beginning, skipped ones too.
  int64_t consumed() const { return consumed_; }
  // As remark_on, of the epoch that has ended.
  std::string remark() const { return remark_on(num_dropped_, options_); }

 private:
  void reopen() {
    ahead_.clear();
    reader_ = open_();
  }

  std::optional<AnyRow> read() {
    if (ahead_.empty()) return reader_ ? reader_() : std::nullopt;
    std::optional<AnyRow> row = std::move(ahead_.front());
    ahead_.pop_front();
    return row;
  }

  // Leaves out `count` rows of this epoch; or gives the number of rows in its batches, where those
  // are no more.
  std::optional<int64_t> pass(int64_t count) {
    const int64_t begin = count - count % options_.batch_size;           // the open batch's
    const int64_t last = std::max(count + 1, begin + options_.least());  // makes it one
    for (int64_t num_read = 0; num_read < last; ++num_read) {
      std::optional<AnyRow> row = reader_();
      if (!row) {
        const int64_t tail = num_read % options_.batch_size;
        return tail < options_.least() ? num_read - tail : num_read;
      }
      if (num_read >= count) ahead_.push_back(std::move(*row));
    }
    return std::nullopt;
  }

  std::function<Reader()> open_;
  Reader reader_;
  LoaderOptions options_;
  std::deque<AnyRow> ahead_;  // read to see whether a batch goes on
  int64_t skip_ = 0;
  int64_t consumed_ = 0, num_dropped_ = 0;
  bool is_empty_ = true;  // no row has been read in this epoch
};

}  // namespace twinkle::data
