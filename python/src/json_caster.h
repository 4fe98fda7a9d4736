// Python values to JSON and back: None, bool, int, float, str, list, tuple, dict, and what offers
// .tolist() (NumPy's arrays and scalars). Needs the GIL. Error kInvalid: a value that JSON
// does not have, with its path.
#pragma once
#include <pybind11/pybind11.h>

#include <cstdint>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>

#include "twinkle/base/json.h"

namespace twinkle::python {

namespace py = pybind11;

// `path` opens the text of errors: the folder, and which value it is.
inline Json to_json(const py::handle& value, const std::string& path);

// The bytes of a str, which live as long as it does. Error kInvalid: a lone surrogate, which a str
// can hold and UTF-8 cannot.
inline std::string_view utf8(const py::handle& text, const std::string& path) {
  Py_ssize_t size = 0;
  if (const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size))
    return {bytes, static_cast<size_t>(size)};
  if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) throw py::error_already_set();
  PyErr_Clear();
  Py_ssize_t at = 0;
  while ((PyUnicode_ReadChar(text.ptr(), at) & ~0x7FFu) != 0xD800) ++at;
  std::ostringstream code;
  code << std::hex << std::uppercase << PyUnicode_ReadChar(text.ptr(), at);
  fail(Code::kInvalid, path, " has a lone surrogate, U+", code.str(), ", at character ", at,
       ", which is no text: leave it out, or decode the text with errors='replace'");
}

inline Json integer_to_json(const py::handle& value, const std::string& path) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  if (overflow == 0) return Json(static_cast<int64_t>(number));
  const unsigned long long large = overflow > 0 ? PyLong_AsUnsignedLongLong(value.ptr()) : 0;
  if (overflow < 0 || PyErr_Occurred()) {
    PyErr_Clear();
    fail(Code::kInvalid, path, " is an integer that does not fit in 64 bits");
  }
  return Json(static_cast<uint64_t>(large));
}

inline Json dict_to_json(const py::dict& dict, const std::string& path) {
  JsonObject out;
  out.reserve(dict.size());
  for (const auto& [key, item] : dict) {
    const std::string name(utf8(py::str(key), path + ": a key"));
    out[name] = to_json(item, path + "." + name);
  }
  return out;
}

inline Json to_json(const py::handle& value, const std::string& path) {
  if (value.is_none()) return nullptr;
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
  if (PyLong_Check(value.ptr())) return integer_to_json(value, path);
  if (PyFloat_Check(value.ptr())) return value.cast<double>();
  if (PyUnicode_Check(value.ptr())) return Json(utf8(value, path));
  if (PyDict_Check(value.ptr())) return dict_to_json(py::reinterpret_borrow<py::dict>(value), path);
  if (PyList_Check(value.ptr()) || PyTuple_Check(value.ptr())) {
    JsonArray out;
    for (const py::handle item : value)
      out.push_back(to_json(item, path + "[" + std::to_string(out.size()) + "]"));
    return out;
  }
  if (py::hasattr(value, "tolist")) return to_json(value.attr("tolist")(), path);
  if (py::hasattr(value, "items"))
    return dict_to_json(py::dict(py::reinterpret_borrow<py::object>(value)), path);
  fail(Code::kInvalid, path, " is a ", std::string(py::str(py::type::of(value).attr("__name__"))),
       ", which has no JSON form");
}

inline py::object from_json(const Json& value) {
  switch (value.kind()) {
    case boost::json::kind::null:
      return py::none();
    case boost::json::kind::bool_:
      return py::bool_(value.get_bool());
    case boost::json::kind::int64:
      return py::int_(value.get_int64());
    case boost::json::kind::uint64:
      return py::int_(value.get_uint64());
    case boost::json::kind::double_:
      return py::float_(value.get_double());
    case boost::json::kind::string:
      return py::str(value.get_string().data(), value.get_string().size());
    case boost::json::kind::array: {
      py::list out;
      for (const Json& item : value.get_array()) out.append(from_json(item));
      return out;
    }
    case boost::json::kind::object: {
      py::dict out;
      for (const auto& [key, item] : value.get_object())
        out[py::str(key.data(), key.size())] = from_json(item);
      return out;
    }
  }
  return py::none();
}

}  // namespace twinkle::python
