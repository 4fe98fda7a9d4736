// _core.Dataset, _core.Loader, files of rows and the built-in preprocessors: the same names as in
// twinkle/data, rows as dicts. Work on rows runs without the GIL.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "python/src/data/pictures.h"
#include "python/src/interruptible.h"
#include "python/src/json_caster.h"
#include "python/src/released_gil.h"
#include "twinkle/base/file.h"
#include "twinkle/data/dataset.h"
#include "twinkle/data/encode.h"
#include "twinkle/data/forms.h"
#include "twinkle/data/loader.h"
#include "twinkle/data/packing.h"
#include "twinkle/data/preprocessors/preprocessor.h"
#include "twinkle/data/rows/files.h"
#include "twinkle/data/rows/line_rows.h"
#include "twinkle/data/stream_loader.h"
#include "twinkle/data/writer.h"
#include "twinkle/io/atomic.h"

namespace py = pybind11;

namespace twinkle::python {
namespace {

using data::Dataset;
using data::LineRows;
using data::LineWriter;
using data::Loader;
using data::LoaderOptions;
using data::Mixture;
using data::Row;
using data::Rows;
using data::Table;
using NoGil = py::call_guard<ReleasedGil>;

// `where` opens the text of errors.
Row to_row(const py::handle& value, const std::string& where) {
  Json json = to_json(value, where);
  require(json.is_object(), Code::kInvalid, where, " is a ",
          std::string(py::str(py::type::of(value).attr("__name__"))), ", it must be a dict");
  return std::move(json.get_object());
}

Rows to_rows(const py::iterable& values) {
  Rows rows;
  for (const py::handle value : values)
    rows.push_back(to_row(value, "data: row " + std::to_string(rows.size())));
  return rows;
}

// An error names the row that a new one comes from.
Dataset replaced(const Dataset& self, const py::iterable& values,
                 const std::vector<int64_t>& origins) {
  Rows rows;
  for (const py::handle value : values) {
    const bool known = rows.size() < origins.size();  // else `replaced` refuses them
    const int64_t origin = known ? origins[rows.size()] : self.size();
    const std::string where = origin >= 0 && origin < self.size() ? self.where(origin) : "a row";
    rows.push_back(to_row(value, "data: " + where + ": row"));
  }
  return self.replaced(std::move(rows), origins);
}

py::list from_rows(const Dataset& self, int64_t begin, int64_t end) {
  py::list out;
  for (int64_t i = begin; i < end; ++i) out.append(from_json(Json(self.row(i))));
  return out;
}

Dataset encode(const Dataset& self, const text::Template& tmpl, bool add_generation_prompt) {
  return interruptible([&] { return self.encode(data::encoder(tmpl, add_generation_prompt)); });
}

Dataset check(const Dataset& self, const text::Template& tmpl) {
  const auto fits = [&tmpl](const Row& row) { return !data::why_not(tmpl, row).has_value(); };
  return interruptible([&] { return self.filter(fits); });
}

void bind_dataset(py::module_& m) {
  py::class_<Mixture>(m, "Mixture", "Which row of which part comes at each index.")
      .def(py::init([](std::vector<int64_t> sizes, bool in_turn) {
             using Order = Mixture::Order;
             return Mixture(std::move(sizes), in_turn ? Order::kUntilLongest : Order::kOneByOne);
           }),
           py::arg("sizes"), py::arg("in_turn"), "in_turn: until the longest part is used up.")
      .def("__len__", &Mixture::size)
      .def(
          "at",
          [](const Mixture& self, int64_t index) {
            const auto [part, row] = self.at(index);
            return std::pair(part, row);
          },
          py::arg("index"), "(part, row in it).");
  py::class_<Dataset>(m, "Dataset",
                      "Rows that know their file and line; every operation gives a new one.")
      .def_static("read", &Dataset::read, py::arg("file"), py::arg("columns") = data::Renames(),
                  NoGil(), "Reads a .jsonl, .json, .csv, .tsv or .txt file.")
      .def_static(
          "of",
          [](const py::iterable& rows, const std::string& name) {
            return Dataset(Table{.name = name, .rows = to_rows(rows)});
          },
          py::arg("rows"), py::arg("name") = "memory", "A dataset of dicts.")
      .def_static("concat", &Dataset::concat, py::arg("parts"), NoGil())
      .def_static("interleave", &Dataset::interleave, py::arg("parts"), NoGil(),
                  "One row of each in turn until the shortest is used up.")
      .def("__len__", &Dataset::size)
      .def(
          "row", [](const Dataset& self, int64_t i) { return from_json(Json(self.row(i))); },
          py::arg("index"))
      .def("rows", &from_rows, py::arg("begin"), py::arg("end"))
      .def(
          "where", [](const Dataset& self, int64_t i) { return (void)self.row(i), self.where(i); },
          py::arg("index"), "The row's file and line, for errors.")
      .def("slice", &Dataset::slice, py::arg("indices"), NoGil(),
           "Rows at the indices, modulo the length.")
      .def(
          "map",
          [](const Dataset& self, const std::string& name, const py::dict& arguments) {
            const auto preprocess =
                data::make_preprocessor(name, to_row(arguments, "data: arguments"));
            const ReleasedGil released;
            return self.map(preprocess);
          },
          py::arg("preprocessor"), py::arg("arguments"),
          "Runs a built-in preprocessor on all cores.")
      .def("encode", &encode, py::arg("template"), py::arg("add_generation_prompt") = false)
      .def("readings", &data::readings, NoGil(),
           "A line for each file that is read by the form of its rows.")
      .def("remarks", &data::remarks, py::arg("template"), NoGil(),
           "Lines about encoded rows that may teach something else than is meant.")
      .def("check", &check, py::arg("template"), "Without the rows that cannot be encoded.")
      .def("packed", &data::packed, py::arg("limit"), py::arg("chunk"), NoGil(),
           "Rows of several encoded ones, of at most `limit` tokens each.")
      .def("replaced", &replaced, py::arg("rows"), py::arg("origins"),
           "These rows, row i in the place of row origins[i].")
      .def(
          "save",
          [](const Dataset& self, const std::filesystem::path& file, const std::string& format) {
            data::write_rows(self.rows(), file, format);
          },
          py::arg("file"), py::arg("format") = "", NoGil(),
          "Writes jsonl, json (which is jsonl) or csv, whole or not at all.");
}

std::string kind_of(const std::filesystem::path& file) {
  switch (data::kind_of_file(file)) {
    case data::FileKind::kLines:
      return "lines";
    case data::FileKind::kWhole:
      return "whole";
    case data::FileKind::kTable:
      return "table";
    case data::FileKind::kOther:
      break;
  }
  return "";
}

py::tuple next_line(LineRows& self) {
  std::optional<Row> row = self.next();
  if (!row) throw py::stop_iteration();
  return py::make_tuple(self.where(), from_json(Json(std::move(*row))));
}

void bind_files(py::module_& m) {
  py::class_<LineRows>(m, "LineRows", "Pairs of a place and a row of a .jsonl or .txt file.")
      .def(py::init<const std::filesystem::path&>(), py::arg("file"))
      .def("__iter__", [](const py::object& self) { return self; })
      .def("__next__", &next_line);
  py::class_<LineWriter>(m, "LineWriter", "Rows added to a file of JSON lines, in batches.")
      .def(py::init<std::filesystem::path, int64_t>(), py::arg("file"), py::arg("batch_size"))
      .def(
          "add",
          [](LineWriter& self, const py::handle& row) { self.add(to_row(row, "data: the row")); },
          py::arg("row"), "Keeps a row as it is now.")
      .def("flush", &LineWriter::flush, NoGil());
  m.def("kind_of_data", &kind_of, py::arg("file"),
        "By its extension: 'lines', 'whole', 'table', of which Arrow is the reader, or ''.");
  m.def("data_files", &data::files_at, py::arg("path"), py::arg("split"),
        "The files of rows at a path that have the split: data/rows/files.h.");
  m.def(
      "check_file", [](const std::filesystem::path& file) { (void)File(file, "data"); },
      py::arg("file"), "InvalidError: it is no regular file, or cannot be opened.");
  m.def("make_place", &data::make_place, py::arg("file"),
        "Makes the folder of a file that is to be written.");
  m.def(
      "write_file",
      [](const std::filesystem::path& file, const py::buffer& bytes) {
        const py::buffer_info held = bytes.request();
        const auto size = static_cast<size_t>(held.size * held.itemsize);
        const ReleasedGil released;
        write_file_atomically(file, {static_cast<const char*>(held.ptr), size});
      },
      py::arg("file"), py::arg("bytes"), "Replaces a file, whole or not at all.");
}

void bind_preprocessors(py::module_& m) {
  m.def(
      "preprocessors",
      [] {
        py::dict out;
        for (const auto& kind : data::preprocessor_kinds()) {
          out[py::str(kind.name)] = py::make_tuple(from_json(Json(kind.defaults)), kind.about);
        }
        return out;
      },
      "The built-in preprocessors' names, with their arguments' defaults and what they do.");
  m.def(
      "preprocess",
      [](const std::string& name, const py::dict& arguments, const py::iterable& rows) {
        const auto preprocess = data::make_preprocessor(name, to_row(arguments, "data: arguments"));
        py::list out;
        for (const py::handle row : rows) {
          Pictures pictures;
          const std::string where = "data: row " + std::to_string(out.size());
          Row fields = preprocess(to_row(pictures.taken_out_of(row), where));
          out.append(pictures.put_into(from_json(Json(std::move(fields)))));
        }
        return out;
      },
      py::arg("preprocessor"), py::arg("arguments"), py::arg("rows"),
      "The fields that a built-in preprocessor sets on each row.");
}

using StreamLoader = data::StreamLoader<py::object>;

StreamLoader::Reader reader_of(const py::object& rows) {
  return [iterator = py::iter(rows)]() -> std::optional<py::object> {
    PyObject* const row = PyIter_Next(iterator.ptr());
    if (!row && PyErr_Occurred()) throw py::error_already_set();
    if (!row) return std::nullopt;
    return py::reinterpret_steal<py::object>(row);
  };
}

void bind_loader(py::module_& m) {
  const LoaderOptions defaults;
  py::class_<LoaderOptions>(m, "LoaderOptions")
      .def(py::init([](int64_t batch_size, int64_t min_batch_size, bool shuffle, uint64_t seed,
                       std::pair<int64_t, int64_t> data_rank_and_world, bool whole_batch) {
             return LoaderOptions{.batch_size = batch_size,
                                  .min_batch_size = min_batch_size,
                                  .shuffle = shuffle,
                                  .seed = seed,
                                  .data_world_size = data_rank_and_world.second,
                                  .data_rank = data_rank_and_world.first,
                                  .whole_batch = whole_batch};
           }),
           py::kw_only(), py::arg("batch_size") = defaults.batch_size,
           py::arg("min_batch_size") = defaults.min_batch_size,
           py::arg("shuffle") = defaults.shuffle, py::arg("seed") = defaults.seed,
           py::arg("data_rank_and_world") = std::pair<int64_t, int64_t>(0, 1),
           py::arg("whole_batch") = defaults.whole_batch);
  py::class_<Loader>(m, "Loader", "Which rows come next.")
      .def(py::init([](int64_t num_rows, const LoaderOptions& options) {
             require(num_rows > 0, Code::kInvalid, data::kNoRows);
             return Loader(num_rows, options);
           }),
           py::arg("num_rows"), py::arg("options"))
      .def("__len__", &Loader::num_batches)
      .def("start", &Loader::start, py::arg("epoch"))
      .def("next", &Loader::next, "This rank's rows of the next batch; empty at the end.")
      .def("skip", &Loader::skip, py::arg("num_rows"))
      .def_property_readonly("remark", &Loader::remark)
      .def_property_readonly("consumed", &Loader::consumed);
  py::class_<StreamLoader>(m, "StreamLoader", "Batches of rows that have no index.")
      .def(py::init([](const py::object& rows, const LoaderOptions& options) {
             return StreamLoader([rows] { return reader_of(rows); }, options);
           }),
           py::arg("rows"), py::arg("options"), "`rows` are read anew for every epoch.")
      .def(
          "start", [](StreamLoader& self, int64_t) { self.start(); }, py::arg("epoch"))
      .def("next", &StreamLoader::next, "This rank's rows of the next batch; empty at the end.")
      .def("skip", &StreamLoader::skip, py::arg("num_rows"))
      .def_property_readonly("consumed", &StreamLoader::consumed)
      .def_property_readonly("remark", &StreamLoader::remark);
}

}  // namespace
}  // namespace twinkle::python

void bind_data(py::module_& m) {
  twinkle::python::bind_dataset(m);
  twinkle::python::bind_files(m);
  twinkle::python::bind_preprocessors(m);
  twinkle::python::bind_loader(m);
}
