#include "python/src/batch/features.h"

#include <cstring>
#include <limits>

#include "twinkle/base/error.h"

namespace twinkle::python::batch {
namespace {

constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();

void refuse_size(const std::string& what, const py::handle& value, py::ssize_t position) {
  const bool large = value.attr("__gt__")(0).cast<bool>();
  fail(Code::kInvalid, what, " is ",
       shown(checks("short")(py::int_(py::reinterpret_borrow<py::object>(value)))), " at position ",
       position, ", it must be ", large ? "at most " : "at least -", kInt64Max);
}

bool beyond_int64(const py::handle& value) {
  if (!PyIndex_Check(value.ptr())) return false;
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  int overflow = 0;
  const int64_t found = number ? PyLong_AsLongLongAndOverflow(number.ptr(), &overflow) : int64_t{0};
  PyErr_Clear();
  return overflow != 0 || found < -kInt64Max;
}

// Error kInvalid: an integer that int64 does not hold. Of a list with one, NumPy makes fractions or
// objects; of uint64, in any byte order, int64 would make another number.
void check_size(const std::string& what, const py::object& given, const py::array& values) {
  const char kind = values.dtype().kind();
  if (kind == 'u' && values.itemsize() == 8) {
    const py::array_t<uint64_t, py::array::c_style | py::array::forcecast> wide(values);
    for (py::ssize_t i = 0; i < wide.size(); ++i)
      if (wide.data()[i] > static_cast<uint64_t>(kInt64Max))
        refuse_size(what, py::int_(wide.data()[i]), i);
    return;
  }
  if (kind != 'O' && !(kind == 'f' && is_list(given))) return;
  const py::object suspects = kind == 'f' ? given : values.attr("reshape")(-1);
  py::ssize_t i = 0;
  for (const py::handle value : suspects) {
    if (beyond_int64(value)) refuse_size(what, value, i);
    ++i;
  }
}

std::optional<std::vector<int64_t>> mask_in(const py::dict& feature, size_t index) {
  const auto values = vector_in(feature, kMask, index);
  if (!values) return std::nullopt;
  std::vector<int64_t> mask = int64s(*values);
  for (size_t i = 0; i < mask.size(); ++i)
    require(mask[i] == 0 || mask[i] == 1, Code::kInvalid, what_of(kMask.name, index), " is ",
            mask[i], " at position ", i, ", it must be 0 or 1");
  return mask;
}

py::ssize_t size_of(const py::object& values) {
  if (!values || !py::hasattr(values, "__len__")) return 0;
  if (!py::getattr(values, "ndim", py::int_(1)).equal(py::int_(1))) return 0;
  return static_cast<py::ssize_t>(py::len(values));
}

}  // namespace

py::object numpy(const char* name) { return py::module_::import("numpy").attr(name); }
py::object checks(const char* name) { return py::module_::import("twinkle.checks").attr(name); }

std::string what_of(const char* name, size_t index) {
  return "model: " + std::string(name) + " of inputs[" + std::to_string(index) + "]";
}

std::string shown(const py::handle& value) { return py::str(value); }

py::object entry(const py::dict& feature, const char* name) {
  if (!feature.contains(name)) return {};
  py::object value = feature[name];
  return value.is_none() ? py::object() : value;
}

std::string shape_of(const py::array& values) {
  return shown(py::list(py::tuple(values.attr("shape"))));
}

std::optional<py::array> vector_in(const py::dict& feature, const Field& field, size_t index) {
  const py::object given = entry(feature, field.name);
  if (!given) return std::nullopt;
  const std::string what = what_of(field.name, index);
  py::array values = array_of(what, given, "one sequence [L] of numbers");
  if (field.name != kScale.name) check_size(what, given, values);
  if (values.size() > 0 && !std::strchr(field.kinds, values.dtype().kind()))
    checks("refuse")(what, values.attr("tolist")(), "one sequence [L] of integers");
  require(values.ndim() == 1, Code::kInvalid, what, " has shape ", shape_of(values),
          ", it must be one sequence [L]");
  if (values.dtype().attr("isnative").cast<bool>()) return values;
  return py::array(values.attr("astype")(values.dtype().attr("newbyteorder")("=")));
}

std::vector<int64_t> int64s(const py::array& values) {
  const py::array_t<int64_t, py::array::c_style | py::array::forcecast> wide(values);
  return {wide.data(), wide.data() + wide.size()};
}

std::optional<Routes> routes_in(const py::dict& feature, py::ssize_t num_tokens, size_t index) {
  const py::object given = entry(feature, kRoutes);
  if (!given) return std::nullopt;
  const std::string what = what_of(kRoutes, index);
  const py::array values = array_of(what, given, "an array [L, layers, k] of integers");
  check_size(what, given, values);
  const char kind = values.dtype().kind();
  require((kind == 'i' || kind == 'u') && values.ndim() == 3, Code::kInvalid, what, " is ",
          shown(values.dtype()), " ", shape_of(values), ", it must be [L, layers, k] integers");
  Routes routes(values);
  const py::object rest = routes[py::slice(num_tokens, std::nullopt, 1)];
  if (rest.attr("__eq__")(-1).attr("all")().cast<bool>())  // as a model's forward pads them
    routes = Routes(routes[py::slice(0, num_tokens, 1)]);
  if (routes.shape(0) == num_tokens - 1) {
    const py::object last = numpy("full")(py::make_tuple(1, routes.shape(1), routes.shape(2)), -1);
    routes = Routes(numpy("concatenate")(py::make_tuple(routes, last)));
  }
  require(routes.shape(0) == num_tokens, Code::kInvalid, what, " has ", routes.shape(0),
          " entries, input_ids has ", num_tokens,
          ", they must be equally many, or one fewer, without the last token's");
  return routes;
}

py::dict copied(const py::dict& feature) {
  py::dict out;
  if (PyDict_Update(out.ptr(), feature.ptr()) != 0) throw py::error_already_set();
  return out;
}

std::vector<py::ssize_t> starts_in(const py::dict& feature, size_t index) {
  const auto positions = vector_in(feature, kPositions, index);
  const auto ids = vector_in(feature, kIds, index);
  const auto mask = mask_in(feature, index);
  if (!positions || !ids || positions->size() != ids->size()) return {};
  const std::vector<int64_t> at = int64s(*positions);
  const bool masked = mask && mask->size() == at.size();  // padding may have any position
  std::vector<py::ssize_t> starts;
  bool first = true;
  for (size_t i = 0; i < at.size(); ++i) {
    if (masked && (*mask)[i] == 0) continue;
    if (!first && at[i] == 0) starts.push_back(static_cast<py::ssize_t>(i));
    first = false;
  }
  const auto labels = starts.empty() ? std::nullopt : vector_in(feature, kLabels, index);
  if (!labels || labels->size() != ids->size()) return starts;
  const std::vector<int64_t> wanted = int64s(*labels);
  for (const py::ssize_t start : starts)
    require(wanted[static_cast<size_t>(start) - 1] == kIgnored, Code::kInvalid,
            what_of(kPositions.name, index),
            " do not count up from 0, and where they begin again the label before is not -100, as "
            "that of a packed sample's last token is");
  return starts;
}

py::dict with_mark(const py::dict& feature) {
  const py::object labels = entry(feature, kLabels.name);
  const py::ssize_t length = size_of(entry(feature, kIds.name));
  if (size_of(labels) != 1 || length <= 1) return feature;
  py::list marked(labels);
  for (py::ssize_t i = 1; i < length; ++i) marked.append(kIgnored);
  py::dict out = copied(feature);
  out[kLabels.name] = marked;
  return out;
}

std::string roles_of(const py::dict& feature) {
  const py::object messages = entry(feature, "messages");
  if (!messages || !is_list(messages)) return {};
  py::dict roles;
  for (const py::handle message : messages) {
    if (!py::isinstance<py::dict>(message)) continue;
    const py::object role = entry(py::reinterpret_borrow<py::dict>(message), "role");
    if (role && py::isinstance<py::str>(role)) roles[role] = true;
  }
  std::string out;
  for (const auto& [role, seen] : roles)
    out += (out.empty() ? "" : ", ") + std::string(py::repr(role));
  return out;
}

}  // namespace twinkle::python::batch
