#include "twinkle/data/dataset.h"

#include <algorithm>
#include <numeric>

#include "twinkle/base/file.h"
#include "twinkle/base/parallel.h"
#include "twinkle/data/rows/csv.h"
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

std::string extension_of(const std::filesystem::path& file) {
  std::string out = file.extension().string();
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
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

Dataset::Dataset(Table table)
    : sources_{{table.name, table.unit, table.note}}, rows_(std::move(table.rows)) {
  for (const int64_t place : table.places) origins_.push_back({0, place});
  for (size_t i = 0; i < table.lines.size(); ++i) origins_[i].line = table.lines[i];
  for (int64_t i = std::ssize(origins_); i < size(); ++i) origins_.push_back({0, i});
}

Dataset Dataset::read(const std::filesystem::path& file, const Renames& columns) {
  require(is_there(file), Code::kNotFound, "data: no file ", file.string());
  return Dataset(read_table(file, columns));
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

Dataset Dataset::concat(const std::vector<Dataset>& parts) {
  Dataset out;
  for (const Dataset& part : parts) {
    const int64_t first_source = std::ssize(out.sources_);
    out.sources_.insert(out.sources_.end(), part.sources_.begin(), part.sources_.end());
    for (int64_t i = 0; i < part.size(); ++i) out.take(part, i, first_source);
  }
  return out;
}

Dataset Dataset::interleave(const std::vector<Dataset>& parts) {
  Dataset out;
  if (parts.empty()) return out;
  std::vector<int64_t> first_source;
  int64_t turns = parts[0].size();
  for (const Dataset& part : parts) {
    first_source.push_back(std::ssize(out.sources_));
    out.sources_.insert(out.sources_.end(), part.sources_.begin(), part.sources_.end());
    turns = std::min(turns, part.size());
  }
  for (int64_t turn = 0; turn < turns; ++turn) {
    for (size_t p = 0; p < parts.size(); ++p) out.take(parts[p], turn, first_source[p]);
  }
  return out;
}

}  // namespace twinkle::data
