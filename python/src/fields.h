// A struct with a list of fields (twinkle/base/fields.h) or of options from Python's values, such
// as keyword arguments: what is absent keeps its default. An error names the place and the field.
#pragma once
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "python/src/json_caster.h"
#include "python/src/sequences.h"
#include "twinkle/base/fields.h"
#include "twinkle/base/fields/json_codec.h"
#include "twinkle/base/fields/options.h"

namespace twinkle::python {

namespace py = pybind11;

// Error kInvalid of all: a field that the struct does not have, a value of another type or out of
// range. `what` names the value in the text: "engine: sequence 1: labels".
template <class T>
void from_python(const py::handle& given, const std::string& what, T& value);

namespace detail {

inline std::string shown(const py::handle& value) {
  return py::str(py::module_::import("twinkle.checks").attr("short")(value));
}

// True and False; NumPy's too.
inline bool is_flag(const py::handle& value) {
  const std::string name = py::str(py::type::of(value).attr("__name__"));
  return py::isinstance<py::bool_>(value) || name == "bool_" || name == "bool";
}

// The name of one of a list.
inline const char* noun_of(const engine::Example&) { return "sequence"; }
inline const char* noun_of(const engine::SamplingParams&) { return "sampling parameters"; }
inline const char* noun_of(const sampler::PromptTarget&) { return "prompt target"; }
inline const char* noun_of(const std::vector<int32_t>&) { return "prompt"; }
inline const char* noun_of(const std::string&) { return "text"; }

template <HasFields T>
void read(const py::handle& given, const std::string& what, T& value) {
  require(py::isinstance<py::dict>(given), Code::kInvalid, what, ": it must be a dict");
  const auto dict = py::reinterpret_borrow<py::dict>(given);
  if constexpr (std::is_same_v<T, engine::Example>)
    require(dict.contains("input_ids"), Code::kInvalid, what, ": input_ids is missing");
  for (const auto& [key, item] : dict) {
    bool known = false;
    for_each_field(value, [&](const auto& field, auto& member) {
      if (known || !key.equal(py::str(field.name.data(), field.name.size()))) return;
      known = true;
      from_python(item, what + ": " + std::string(field.name), member);
    });
    require(known, Code::kInvalid, what, ": ", shown(key), " is not a field, it has ",
            names_of<T>());
  }
}
inline void read(const py::handle& given, const std::string& what, std::vector<int32_t>& value) {
  value = int32s(given, what);
}
inline void read(const py::handle& given, const std::string& what, std::vector<float>& value) {
  value = floats(given, what);
}
template <class T>
void read(const py::handle& given, const std::string& what, std::vector<T>& value) {
  require(py::isinstance<py::list>(given) || py::isinstance<py::tuple>(given), Code::kInvalid, what,
          " is ", shown(given), ", it must be a list");
  value.clear();
  value.reserve(py::len(given));
  for (const py::handle item : given) {
    const std::string place = std::string(noun_of(T{})) + " " + std::to_string(value.size());
    from_python(item, "engine: " + place, value.emplace_back());
  }
}
template <class T>
void read(const py::handle& given, const std::string& what, std::map<std::string, T>& value) {
  require(py::isinstance<py::dict>(given), Code::kInvalid, what, ": it must be a dict");
  value.clear();
  for (const auto& [key, item] : py::reinterpret_borrow<py::dict>(given)) {
    std::string name;
    from_python(key, what + ": a name", name);
    from_python(item, what + "." + name, value[name]);
  }
}

}  // namespace detail

template <class T>
void from_python(const py::handle& given, const std::string& what, T& value) {
  if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
    const bool is_text = py::isinstance<py::str>(given), is_flag = detail::is_flag(given);
    require(is_text || !std::is_same_v<T, std::string>, Code::kInvalid, what, " is ",
            detail::shown(given), ", it must be a text");
    require(is_flag || !std::is_same_v<T, bool>, Code::kInvalid, what, " is ", detail::shown(given),
            ", it must be True or False");
    require(!is_flag || !std::is_arithmetic_v<T> || std::is_same_v<T, bool>, Code::kInvalid, what,
            " is ", detail::shown(given), ", it must be a number");
    py::detail::make_caster<T> caster;
    require(caster.load(given, true), Code::kInvalid, what, " is ", detail::shown(given),
            ", which is of a wrong type or too large");
    value = py::detail::cast_op<T>(std::move(caster));
  } else {
    detail::read(given, what, value);
  }
}

template <class T>
T from_python(const py::handle& given, const std::string& what) {
  T out;
  from_python(given, what, out);
  return out;
}

// Null: it is none of the option's kind. NumPy's numbers are numbers, True is none.
inline Json value_of(const AnyOption& option, const py::handle& value) {
  const bool is_flag = detail::is_flag(value);
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
  if (number && !is_integer) return number.cast<double>();
  int overflow = 0;
  const int64_t integer = number ? PyLong_AsLongLongAndOverflow(number.ptr(), &overflow) : 0;
  if (number && overflow == 0) return integer;
  const uint64_t bits = overflow > 0 ? PyLong_AsUnsignedLongLong(number.ptr()) : 0;
  if (overflow > 0 && !PyErr_Occurred()) return bits;
  PyErr_Clear();
  return nullptr;
}

// Error kInvalid: a value of another kind or outside the limits. `what` is the option in the text:
// "engine: kv_tokens".
inline void set_option(const AnyOption& option, const py::handle& given, const std::string& what) {
  const Json value = value_of(option, given);
  require(option.allows(value), Code::kInvalid, what, " is ", detail::shown(given), ", it must be ",
          option.kind == OptionKind::kFlag ? "True or False" : option.must_be());
  option.set(value);
}

// "tenant="", version=0": the fields and their defaults, for a method's documentation.
template <class T>
std::string signature_of() {
  std::string out;
  const T defaults;
  for_each_field(defaults, [&](const auto& field, const auto& member) {
    if (!out.empty()) out += ", ";
    out += std::string(field.name) + '=' + boost::json::serialize(JsonOf::of(member));
  });
  return out;
}

}  // namespace twinkle::python
