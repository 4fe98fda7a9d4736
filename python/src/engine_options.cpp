#include "python/src/engine_options.h"

#include <algorithm>
#include <string>

#include "python/src/json_caster.h"
#include "twinkle/base/error.h"

namespace twinkle::python {

namespace py = pybind11;

namespace {

bool is_numpy_bool(const py::handle& value) {
  const std::string name = py::str(py::type::of(value).attr("__name__"));
  return name == "bool_" || name == "bool";
}

// Null: it is none of the kind. NumPy's numbers are numbers, True is none.
Json value_of(const AnyOption& option, const py::handle& value) {
  const bool is_flag = py::isinstance<py::bool_>(value) || is_numpy_bool(value);
  if (option.kind == OptionKind::kFlag) {
    return is_flag ? Json(PyObject_IsTrue(value.ptr()) == 1) : Json(nullptr);
  }
  if (option.kind == OptionKind::kText || option.kind == OptionKind::kTexts) {
    if (PyUnicode_Check(value.ptr()))
      return Json(utf8(value, "engine: " + std::string(option.name)));
    if (!py::hasattr(value, "__fspath__")) return nullptr;
    const py::object path = value.attr("__fspath__")();
    return PyUnicode_Check(path.ptr()) ? value_of(option, path) : Json(nullptr);
  }
  if (is_flag || PyUnicode_Check(value.ptr())) return nullptr;
  const bool is_integer = option.kind == OptionKind::kInteger;
  if (is_integer ? PyIndex_Check(value.ptr()) == 0 : PyNumber_Check(value.ptr()) == 0)
    return nullptr;
  const auto number = py::reinterpret_steal<py::object>(is_integer ? PyNumber_Index(value.ptr())
                                                                   : PyNumber_Float(value.ptr()));
  int overflow = 0;
  const int64_t integer =
      number && is_integer ? PyLong_AsLongLongAndOverflow(number.ptr(), &overflow) : 0;
  if (!number || overflow != 0) {
    PyErr_Clear();
    return nullptr;
  }
  return is_integer ? Json(integer) : Json(number.cast<double>());
}

void set(const AnyOption& option, const py::handle& given) {
  const Json value = value_of(option, given);
  require(option.allows(value), Code::kInvalid, "engine: ", option.name, " is ",
          std::string(py::str(py::module_::import("twinkle.checks").attr("short")(given))),
          ", it must be ", option.kind == OptionKind::kFlag ? "True or False" : option.must_be());
  option.set(value);
}

const char* noun_of(OptionKind kind) {
  switch (kind) {
    case OptionKind::kFlag:
      return "bool";
    case OptionKind::kInteger:
      return "int";
    case OptionKind::kNumber:
      return "float";
    default:
      return "str";
  }
}

// The tenants of a script's engine are all its own: no prompt is another's secret.
engine::EngineOptions of_scripts() {
  engine::EngineOptions out;
  out.sampler.share_prefixes = true;
  return out;
}

}  // namespace

engine::EngineOptions engine_options_of(const py::dict& given) {
  engine::EngineOptions out = of_scripts();
  const auto all = options_of(out);
  for (const auto& [key, value] : given) {
    const std::string name(utf8(py::str(key), "engine: an option's name"));
    const auto found =
        std::ranges::find_if(all, [&](const AnyOption& one) { return one.name == name; });
    if (found == all.end()) refuse_name(name, names_of(all), "engine: ", "option");
    if (!value.is_none()) set(*found, value);
  }
  return out;
}

py::list described_engine_options() {
  const engine::EngineOptions defaults = of_scripts();
  py::list out;
  for (const AnyOption& one : options_of(defaults)) {
    py::dict row;
    row["name"] = std::string(one.name);
    row["default"] = from_json(one.get());
    row["kind"] = noun_of(one.kind);
    row["range"] = one.range();
    row["help"] = std::string(one.help);
    out.append(row);
  }
  return out;
}

}  // namespace twinkle::python
