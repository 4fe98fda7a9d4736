// Rows from one or several files, as a value: every operation returns a new Dataset and leaves this
// one as it was. Each row remembers its file and line, so that a bad one can be found. Not
// thread-safe while written; reads may be shared.
#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "twinkle/data/rows/renames.h"
#include "twinkle/data/rows/row.h"

namespace twinkle::data {

// One row into one. Called from several threads at a time.
using Preprocessor = std::function<Row(const Row&)>;
// Keeps the rows it returns true for. Called from several threads at a time.
using Filter = std::function<bool(const Row&)>;
// One row into none (dropped), one or several (split). Called from several threads at a time.
using Encoder = std::function<Rows(const Row&)>;

// Several parts put together: the row and its part that come at each index.
class Mixture {
 public:
  enum class Order {
    kOneByOne,       // the parts one after the other
    kUntilShortest,  // a row of each in turn until the shortest part is used up
    kUntilLongest    // the same until the longest is used up; shorter ones begin again
  };
  // Error kInvalid: kUntilLongest of a part without rows among others with some.
  Mixture(std::vector<int64_t> sizes, Order order);

  int64_t size() const { return size_; }
  struct Place {
    int64_t part, row;
  };
  // Error kInvalid: index outside [0, size).
  Place at(int64_t index) const;

 private:
  std::vector<int64_t> sizes_;
  Order order_;
  int64_t size_ = 0;
};

class Dataset {
 public:
  struct Source {
    std::string name, unit, note;  // as Table has them
  };

  Dataset() = default;
  explicit Dataset(Table table);
  // By the file's extension, in any case: .json, .jsonl, .csv, .tsv, .txt (a row {"text": line} for
  // every line). Of a folder the rows of files_at(), one file after the other. Error kNotFound: no
  // such file; kInvalid: another extension, a bad row with its line; names of columns that a file
  // does not have.
  static Dataset read(const std::filesystem::path& file, const Renames& columns = {});

  int64_t size() const { return std::ssize(rows_); }
  const Rows& rows() const { return rows_; }
  // Error kInvalid: index outside [-size, size); negative ones count from the end.
  const Row& row(int64_t index) const;
  // "data.jsonl line 7", "data.json line 7, row 3" or "memory row 3", for errors.
  std::string where(int64_t index) const;
  // The file or the memory that a row comes from; its address is that of all of its rows.
  const Source& source(int64_t index) const { return sources_[origins_.at(index).source]; }

  // The rows at `indices`, modulo the size, so that a slice longer than the data repeats it. Error
  // kInvalid: negative index, or an empty dataset.
  Dataset slice(const std::vector<int64_t>& indices) const;
  // The fields that `preprocess` returns are set on the row; the row's other fields stay, as in
  // `datasets`. An error carries the row's place. All cores.
  Dataset map(const Preprocessor& preprocess) const;
  Dataset filter(const Filter& keep) const;
  Dataset encode(const Encoder& encode) const;
  // The same rows in the same places, with `rows[i]` coming from row `origins[i]` of this one.
  Dataset replaced(Rows rows, const std::vector<int64_t>& origins) const;

  static Dataset concat(const std::vector<Dataset>& parts);
  // One row of each in turn until the shortest is used up (first_exhausted, as in `datasets`).
  static Dataset interleave(const std::vector<Dataset>& parts);

 private:
  struct Origin {
    int64_t source, place;
    int64_t line = 0;  // the file's line, where `place` is none; 0: not known
  };
  void take(const Dataset& from, int64_t index, int64_t first_source);
  static Dataset mixed(const std::vector<Dataset>& parts, Mixture::Order order);

  std::vector<Source> sources_;
  Rows rows_;
  std::vector<Origin> origins_;  // one per row
};

}  // namespace twinkle::data
