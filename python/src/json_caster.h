// Python values to JSON and back: None, bool, int, float, str, list, tuple, dict, and what offers
// .tolist() (NumPy's arrays and scalars). Needs the GIL. Error kInvalid: a value that JSON
// does not have, is too deep or too large, with its path.
#pragma once
#include <pybind11/pybind11.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/base/json.h"

namespace twinkle::python {

namespace py = pybind11;

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

// Reads one value. Python can nest without an end, or share one object at many places: both end in
// an Error, as in the parser of JSON texts.
class JsonReader {
 public:
  static constexpr size_t kMaxDepth = 128;
  static constexpr size_t kMaxBytes = size_t{256}
                                      << 20;  // limit of everything that is made of the value

  // `path` opens the text of errors: the folder, and which value it is.
  explicit JsonReader(const std::string& path) : path_(path) {}

  Json read(const py::handle& value) {
    count(sizeof(Json));
    if (value.is_none()) return nullptr;
    if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
    if (PyLong_Check(value.ptr())) return integer(value);
    if (PyFloat_Check(value.ptr())) return value.cast<double>();
    if (PyUnicode_Check(value.ptr())) {
      const std::string_view text = utf8(value, path_);
      count(text.size());
      return Json(text);
    }
    if (PyDict_Check(value.ptr())) return object(py::reinterpret_borrow<py::dict>(value));
    if (PyList_Check(value.ptr()) || PyTuple_Check(value.ptr())) return array(value);
    if (py::hasattr(value, "tolist")) {
      const py::object list = value.attr("tolist")();
      return inside("", list);
    }
    if (py::hasattr(value, "items"))
      return object(py::dict(py::reinterpret_borrow<py::object>(value)));
    fail(Code::kInvalid, path_, " is a ",
         std::string(py::str(py::type::of(value).attr("__name__"))), ", which has no JSON form");
  }

 private:
  void count(size_t bytes) {
    bytes_ += bytes;
    require(bytes_ <= kMaxBytes, Code::kInvalid, path_.substr(0, top()),
            " is larger than 256 MiB as JSON: does it hold one object at many places?");
  }

  // Where an error ends its path: some levels tell the place, a hundred do not.
  size_t top() const { return ends_.size() > kShownLevels ? ends_[kShownLevels] : path_.size(); }

  Json inside(std::string_view step, const py::handle& value) {
    ends_.push_back(path_.size());
    require(ends_.size() <= kMaxDepth, Code::kInvalid, path_.substr(0, top()),
            " is nested deeper than ", kMaxDepth, " levels: does it contain itself?");
    path_ += step;
    Json out = read(value);
    path_.resize(ends_.back());
    ends_.pop_back();
    return out;
  }

  Json integer(const py::handle& value) const {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    if (overflow == 0) return Json(static_cast<int64_t>(number));
    const unsigned long long large = overflow > 0 ? PyLong_AsUnsignedLongLong(value.ptr()) : 0;
    if (overflow < 0 || PyErr_Occurred()) {
      PyErr_Clear();
      fail(Code::kInvalid, path_, " is an integer that does not fit in 64 bits");
    }
    return Json(static_cast<uint64_t>(large));
  }

  Json array(const py::handle& value) {
    count(kContainer);
    JsonArray out;
    for (const py::handle item : value) {
      std::string step = std::to_string(out.size());
      out.push_back(inside(step.insert(0, 1, '[').append(1, ']'), item));
    }
    return out;
  }

  Json object(const py::dict& dict) {
    count(kContainer);
    JsonObject out;
    out.reserve(dict.size());
    for (const auto& [key, item] : dict) {
      const auto held = py::reinterpret_borrow<py::object>(item);  // a key's __str__ may drop it
      const std::string name(utf8(py::str(key), path_ + ": a key"));
      count(kContainer + name.size());
      out[name] = inside(std::string(1, '.').append(name), held);
    }
    return out;
  }

  static constexpr size_t kShownLevels = 2;
  static constexpr size_t kContainer = 32;  // bytes of a list itself, or of a field's place
  std::string path_;
  std::vector<size_t> ends_;  // length of path_ at each level
  size_t bytes_ = 0;
};

inline Json to_json(const py::handle& value, const std::string& path) {
  return JsonReader(path).read(value);
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
