#include "twinkle/data/dataset.h"

#include <algorithm>
#include <numeric>

#include "twinkle/base/file.h"
#include "twinkle/base/parallel.h"
#include "twinkle/data/rows/csv.h"
#include "twinkle/data/rows/files.h"
#include "twinkle/data/rows/json_rows.h"
#include "twinkle/data/rows/text_rows.h"
#include "twinkle/text/rows.h"

namespace twinkle::data {
namespace {

// Applies `work` to every row, on all cores. An error gets the row's place in front: the worker
// below knows the cause and only the dataset knows the place, hence a catch here.
template <class Result, class Work>
std::vector<Result> each(const Dataset& dataset, const Work& work) {
  std::vector<Result> results(dataset.rows().size());
  parallel_ranges(dataset.size(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Interrupt::check();
      try {
        results[i] = work(dataset.rows()[i]);
      } catch (const Error& error) {
        fail(error.code, "data: ", dataset.where(i), ": ", text::without_folder(error.what()));
      }
    }
  });
  return results;
}

Table read_table(const std::filesystem::path& file, const Renames& columns) {
  const std::string extension = extension_of(file);
  if (extension == ".csv" || extension == ".tsv") return read_csv_rows(file, columns);
  Table table;
  if (extension == ".jsonl")
    table = read_jsonl_rows(file);
  else if (extension == ".json")
    table = read_json_rows(file);
  else if (extension == ".txt")
    table = read_text_rows(file);
  else
    fail(Code::kInvalid, "data: ", file.string(), " has extension '", file.extension().string(),
         "', it must be .jsonl, .json, .csv, .tsv or .txt");
  rename(table, columns);
  return table;
}

}  // namespace

Mixture::Mixture(std::vector<int64_t> sizes, Order order)
    : sizes_(std::move(sizes)), order_(order) {
  if (sizes_.empty()) return;
  const auto [shortest, longest] = std::ranges::minmax(sizes_);
  require(order != Order::kUntilLongest || shortest > 0 || longest == 0, Code::kInvalid,
          "data: a part without rows cannot begin again, until one of ", longest, " rows ends");
  const int64_t turns = order == Order::kUntilShortest ? shortest : longest;
  size_ = order == Order::kOneByOne ? std::accumulate(sizes_.begin(), sizes_.end(), int64_t{0})
                                    : turns * std::ssize(sizes_);
}

Mixture::Place Mixture::at(int64_t index) const {
  require(index >= 0 && index < size_, Code::kInvalid, "data: row ", index,
          " is outside the mixture of ", size_, " rows");
  if (order_ != Order::kOneByOne) {
    const int64_t part = index % std::ssize(sizes_);
    return {part, index / std::ssize(sizes_) % sizes_[part]};
  }
  int64_t part = 0;
  for (; index >= sizes_[part]; ++part) index -= sizes_[part];
  return {part, index};
}

Dataset::Dataset(Table table)
    : sources_{{table.name, table.unit, table.note}}, rows_(std::move(table.rows)) {
  for (const int64_t place : table.places) origins_.push_back({0, place});
  for (size_t i = 0; i < table.lines.size(); ++i) origins_[i].line = table.lines[i];
  for (int64_t i = std::ssize(origins_); i < size(); ++i) origins_.push_back({0, i});
}

Dataset Dataset::read(const std::filesystem::path& file, const Renames& columns) {
  require(is_there(file), Code::kNotFound, "data: no file ", file.string());
  std::error_code ignored;
  if (!std::filesystem::is_directory(file, ignored)) return Dataset(read_table(file, columns));
  std::vector<Dataset> parts;
  for (const auto& part : files_at(file)) parts.push_back(Dataset(read_table(part, columns)));
  return concat(parts);
}

const Row& Dataset::row(int64_t index) const {
  require(index >= -size() && index < size(), Code::kInvalid, "data: row ", index,
          " is outside the dataset of ", size(), " rows");
  return rows_[index < 0 ? index + size() : index];
}

std::string Dataset::where(int64_t index) const {
  const Origin& origin = origins_.at(index);
  const Source& source = sources_[origin.source];
  const std::string place = source.unit + " " + std::to_string(origin.place);
  if (origin.line == 0) return source.name + " " + place;
  return source.name + " line " + std::to_string(origin.line) + ", " + place;
}

void Dataset::take(const Dataset& from, int64_t index, int64_t first_source) {
  rows_.push_back(from.rows_[index]);
  const Origin& origin = from.origins_[index];
  origins_.push_back({first_source + origin.source, origin.place, origin.line});
}

Dataset Dataset::slice(const std::vector<int64_t>& indices) const {
  require(size() > 0 || indices.empty(), Code::kInvalid, "data: cannot slice an empty dataset");
  Dataset out;
  out.sources_ = sources_;
  for (const int64_t index : indices) {
    require(index >= 0, Code::kInvalid, "data: data_slice has index ", index,
            ", it must be at least 0");
    out.take(*this, index % size(), 0);
  }
  return out;
}

Dataset Dataset::map(const Preprocessor& preprocess) const {
  Dataset out = *this;
  out.rows_ = each<Row>(*this, [&](const Row& row) {
    Row merged = row;
    for (auto& field : preprocess(row)) merged[field.key()] = std::move(field.value());
    return merged;
  });
  return out;
}

Dataset Dataset::filter(const Filter& keep) const {
  const auto kept = each<char>(*this, [&](const Row& row) { return keep(row) ? 1 : 0; });
  Dataset out;
  out.sources_ = sources_;
  for (int64_t i = 0; i < size(); ++i) {
    if (kept[i]) out.take(*this, i, 0);
  }
  return out;
}

Dataset Dataset::encode(const Encoder& encode) const {
  auto encoded = each<Rows>(*this, encode);
  Dataset out;
  out.sources_ = sources_;
  for (int64_t i = 0; i < size(); ++i) {
    for (Row& row : encoded[i]) {
      out.rows_.push_back(std::move(row));
      out.origins_.push_back(origins_[i]);
    }
  }
  return out;
}

Dataset Dataset::replaced(Rows rows, const std::vector<int64_t>& origins) const {
  require(rows.size() == origins.size(), Code::kInvalid, "data: ", rows.size(), " rows have ",
          origins.size(), " origins");
  Dataset out;
  out.sources_ = sources_;
  for (const int64_t origin : origins) {
    require(origin >= 0 && origin < size(), Code::kInvalid, "data: origin ", origin,
            " is outside the dataset of ", size(), " rows");
    out.origins_.push_back(origins_[origin]);
  }
  out.rows_ = std::move(rows);
  return out;
}

Dataset Dataset::mixed(const std::vector<Dataset>& parts, Mixture::Order order) {
  Dataset out;
  std::vector<int64_t> sizes, first_source;
  for (const Dataset& part : parts) {
    sizes.push_back(part.size());
    first_source.push_back(std::ssize(out.sources_));
    out.sources_.insert(out.sources_.end(), part.sources_.begin(), part.sources_.end());
  }
  const Mixture mixture(std::move(sizes), order);
  for (int64_t i = 0; i < mixture.size(); ++i) {
    const auto [part, row] = mixture.at(i);
    out.take(parts[part], row, first_source[part]);
  }
  return out;
}

Dataset Dataset::concat(const std::vector<Dataset>& parts) {
  return mixed(parts, Mixture::Order::kOneByOne);
}

Dataset Dataset::interleave(const std::vector<Dataset>& parts) {
  return mixed(parts, Mixture::Order::kUntilShortest);
}

}  // namespace twinkle::data
