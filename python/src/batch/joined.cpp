#include "python/src/batch/joined.h"

#include <algorithm>
#include <numeric>
#include <ranges>

#include "python/src/batch/features.h"
#include "twinkle/base/error.h"

namespace twinkle::python::batch {
namespace {

using Values = std::vector<py::object>;  // one a rank
using Path = std::vector<py::object>;  // names, from that of an argument to that of an entry in it

constexpr size_t kMostDeep = 64;  // dicts in one another
// Arguments of Twinkle's losses with an entry for each row, which a loss of one's own need not
// name.
constexpr const char* kOfRows[] = {"advantages",         "old_logps", "old_values",
                                   "ref_chosen_logps",   "ref_logps", "ref_outputs",
                                   "ref_rejected_logps", "returns",   "rewards"};

bool is_a(const py::object& value, const char* module, const char* name) {
  return py::isinstance(value, py::module_::import(module).attr(name));
}

bool is_mapping(const py::object& value) { return is_a(value, "collections.abc", "Mapping"); }

bool is_plain(const py::object& value) {
  return value.is_none() || PyUnicode_Check(value.ptr()) || PyBytes_Check(value.ptr()) ||
         is_a(value, "numbers", "Number");
}

// Not a number, nor an array of one.
bool is_sized(const py::object& value) {
  return py::hasattr(value, "__len__") &&
         py::getattr(value, "ndim", py::int_(1)).cast<int64_t>() > 0 &&
         !PyUnicode_Check(value.ptr()) && !PyBytes_Check(value.ptr()) &&
         !PyAnySet_Check(value.ptr()) && !is_mapping(value);
}

// NumPy's or torch's; others with a dtype, as a DataFrame, are objects.
bool is_array(const py::object& value) {
  if (!py::hasattr(value, "ndim")) return false;
  const std::string module = py::str(py::type::of(value).attr("__module__"));
  const std::string package = module.substr(0, module.find('.'));
  return package == "numpy" || package == "torch";
}

bool same_type(const py::object& one, const py::object& other) {
  return py::type::of(one).is(py::type::of(other));
}

py::object compared(const py::object& one, const py::object& other, int how) {
  auto out = py::reinterpret_steal<py::object>(PyObject_RichCompare(one.ptr(), other.ptr(), how));
  if (!out) throw py::error_already_set();
  return out;
}

bool is_true(const py::object& value) { return py::bool_(value); }

bool is_nan(const py::object& value) { return is_true(compared(value, value, Py_NE)); }

// Lists may hold themselves.
class Nested {
 public:
  Nested() {
    if (Py_EnterRecursiveCall(" in the arguments of a loss") != 0) throw py::error_already_set();
  }
  ~Nested() { Py_LeaveRecursiveCall(); }
  Nested(const Nested&) = delete;
  Nested& operator=(const Nested&) = delete;
};

// True: two numbers, texts, arrays or lists of them differ (NaN is NaN's like); other objects do
// where they are of other types.
bool differ(const py::object& one, const py::object& other) {
  const Nested one_more;
  if (is_list(one) && is_list(other)) {
    if (py::len(one) != py::len(other)) return true;
    for (size_t i = 0; i < py::len(one); ++i)
      if (differ(one[py::int_(i)], other[py::int_(i)])) return true;
    return false;
  }
  if (is_plain(one) || is_plain(other)) {
    if (!is_plain(one) || !is_plain(other)) return true;
    return !is_true(compared(one, other, Py_EQ)) && !(is_nan(one) && is_nan(other));
  }
  if (!same_type(one, other)) return true;
  if (!is_array(one)) return false;
  if (!one.attr("shape").equal(other.attr("shape"))) return true;
  const py::object both_nan = compared(one, one, Py_NE) & compared(other, other, Py_NE);
  const py::object same = compared(one, other, Py_EQ) | both_nan;
  return !is_true(same.attr("all")());
}

// The second size of arrays [n, longest of the rank, ...] becomes that of the longest of all.
void widen(Values& values, bool is_numpy) {
  py::ssize_t longest = 0;
  const auto width = [](const py::object& value) {
    return value.attr("shape")[py::int_(1)].cast<py::ssize_t>();
  };
  for (const py::object& value : values) longest = std::max(longest, width(value));
  const auto rest = values[0].attr("ndim").cast<size_t>() - 2;
  for (py::object& value : values) {
    const py::ssize_t more = longest - width(value);
    if (is_numpy) {
      py::list sizes;
      for (size_t i = 0; i < rest + 2; ++i) sizes.append(py::make_tuple(0, i == 1 ? more : 0));
      value = numpy("pad")(value, sizes);
    } else {
      py::list sizes;  // from the last dimension on
      for (size_t i = 0; i < 2 * rest + 1; ++i) sizes.append(0);
      sizes.append(more);
      value = py::module_::import("torch.nn.functional").attr("pad")(value, sizes);
    }
  }
}

py::object concatenated(Values values) {
  const py::object& first = values[0];
  const bool are_alike =
      std::ranges::all_of(values, [&](const py::object& each) { return same_type(each, first); });
  if (!py::hasattr(first, "ndim") || !are_alike) {
    py::list out;
    for (const py::object& value : values)
      for (const py::handle item : value) out.append(item);
    if (are_alike && PyTuple_CheckExact(first.ptr())) return py::tuple(out);
    return out;
  }
  const bool is_numpy = py::isinstance<py::array>(first);
  if (first.attr("ndim").cast<int>() > 1) widen(values, is_numpy);
  const py::object join =
      is_numpy ? numpy("concatenate") : py::object(py::module_::import("torch").attr("cat"));
  py::list all;
  for (const py::object& value : values) all.append(value);
  return join(all);
}

class Joiner {
 public:
  Joiner(py::ssize_t rank, const std::vector<py::ssize_t>& counts, const py::object& named)
      : rank_(static_cast<size_t>(rank)), counts_(counts), named_(named) {}

  // One value of those of the ranks. is_cut: None, nobody knows.
  py::object of(const Path& path, const Values& values, const py::object& is_cut) const {
    const std::string what = name_of(path);
    if (std::ranges::any_of(values, is_mapping)) return of_mappings(what, path, values, is_cut);
    if (std::ranges::all_of(values, is_sized)) {
      const bool is_named = names_rows(path[0]);
      if (is_named) require_fit(what, values, is_cut.is(py::bool_(false)));
      if (is_true(is_cut) || (is_named && is_cut.is_none())) return concatenated(values);
      require(!named_.is_none() || !is_cut.is_none(), Code::kInvalid, "model: ", what, " is ",
              short_of(values[0]),
              ", which may have an entry for each row of a rank, or none: set row_arguments on the "
              "loss, the names of those that have one for each row, (",
              shown(py::repr(path[0])), ",) or ()");
    }
    for (size_t rank = 0; rank < values.size(); ++rank)
      require(!differ(values[0], values[rank]), Code::kInvalid, "model: ", what, " is ",
              short_of(values[0]), " on rank 0 and ", short_of(values[rank]), " on rank ", rank,
              ", it must be the same on all");
    return values[rank_];
  }

 private:
  static std::string short_of(const py::object& value) { return shown(checks("short")(value)); }

  static std::string name_of(const Path& path) {
    std::string out;
    for (const py::object& name : std::views::reverse(path)) out += shown(name) + " of ";
    return out + "the loss's arguments";
  }

  bool names_rows(const py::object& name) const {
    if (!named_.is_none()) return named_.contains(name);
    return std::ranges::any_of(kOfRows, [&](const char* row) { return name.equal(py::str(row)); });
  }

  py::object of_mappings(const std::string& what, const Path& path, const Values& values,
                         const py::object& is_cut) const {
    const auto is_same = [&](const py::object& value) {
      return is_mapping(value) && py::set(value).equal(py::set(values[0]));
    };
    require(is_mapping(values[0]) && std::ranges::all_of(values, is_same), Code::kInvalid,
            "model: ", what, " have other names on other ranks, they must be the same on all");
    require(path.size() < kMostDeep, Code::kInvalid, "model: ", what, ": ", kMostDeep,
            " dicts in one another");
    py::dict out;
    for (const py::handle each : values[0]) {
      const auto name = py::reinterpret_borrow<py::object>(each);
      Path further = path;
      further.push_back(name);
      Values entries;
      for (const py::object& value : values) entries.emplace_back(value[name]);
      const bool knows_each = py::isinstance<py::dict>(is_cut);
      out[name] = of(further, entries, knows_each ? is_cut.attr("get")(name) : is_cut);
    }
    return out;
  }

  void require_fit(const std::string& what, const Values& values, bool is_whole) const {
    const auto sum = std::accumulate(counts_.begin(), counts_.end(), py::ssize_t{0});
    const auto counts = is_whole ? std::vector{sum} : counts_;
    std::string entries, rows;
    bool one_each = true, two_each = true;  // an entry for a row, and for a pair
    for (size_t i = 0; i < counts.size(); ++i) {
      const auto length = static_cast<py::ssize_t>(py::len(values[i]));
      one_each = one_each && length == counts[i];
      two_each = two_each && 2 * length == counts[i];
      entries += (i > 0 ? " and " : "") + std::to_string(length);
      rows += (i > 0 ? " and " : "") + std::to_string(counts[i]);
    }
    require(one_each || two_each, Code::kInvalid, "model: ", what, " has ", entries,
            " entries for ", rows,
            " rows, but its loss has an entry of it for each row, or for each pair, by its "
            "row_arguments");
  }

  const size_t rank_;
  const std::vector<py::ssize_t>& counts_;
  const py::object& named_;
};

}  // namespace

py::object joined(const std::vector<py::object>& of_ranks, py::ssize_t rank,
                  const std::vector<py::ssize_t>& counts, const py::object& named,
                  const py::object& cut) {
  return Joiner(rank, counts, named).of({}, of_ranks, cut);
}

py::object part_of(const py::object& arguments, py::ssize_t begin, py::ssize_t size,
                   py::ssize_t total, const py::object& are_of_rows) {
  const Nested one_more;
  if (size == total) return arguments;
  if (PyDict_Check(arguments.ptr())) {
    py::dict out;
    const bool knows_each = PyDict_Check(are_of_rows.ptr());
    for (const auto& [name, value] : py::reinterpret_borrow<py::dict>(arguments))
      out[name] = part_of(py::reinterpret_borrow<py::object>(value), begin, size, total,
                          knows_each ? are_of_rows.attr("get")(name) : are_of_rows);
    return out;
  }
  const bool may_be = is_sized(arguments) && !are_of_rows.is(py::bool_(false));
  if (!may_be || static_cast<py::ssize_t>(py::len(arguments)) != total) return arguments;
  return arguments[py::slice(begin, begin + size, 1)];
}

}  // namespace twinkle::python::batch
