// _core.refuse_misspelt: an InputFeature may have any fields, but none that is a slip of its own.
// _core.refuse_surrogate: a str may hold what no UTF-8 does.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

#include "python/src/json_caster.h"
#include "twinkle/base/error.h"

namespace py = pybind11;
using namespace py::literals;

namespace twinkle::python::names {
namespace {

// Another name of loss_scale. Rows may have a column of that name, if not one number per token.
constexpr std::string_view kWeights = "weights", kScale = "loss_scale";
constexpr std::string_view kFields[] = {"input_ids", "attention_mask",  "position_ids",
                                        "labels",    "completion_mask", "loss_scale",
                                        "length",    "routed_experts",  kWeights};
// Fields of the row that it was made of.
constexpr std::string_view kOthers[] = {"messages", "tools",  "user_data", "images",
                                        "videos",   "audios", "prompt"};

// Its letters and digits, in lower case.
std::string plain(std::string_view name) {
  std::string out;
  for (const unsigned char c : name)
    if (c < 0x80 && std::isalnum(c) != 0) out += static_cast<char>(std::tolower(c));
  return out;
}

// True if the words are equal except for a letter that is missing, too many or another, or for two
// that have changed places.
bool one_slip(std::string_view a, std::string_view b) {
  const auto same = static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  a.remove_prefix(same);
  b.remove_prefix(same);
  const auto rest = [](std::string_view word, size_t from) {
    return word.substr(std::min(from, word.size()));
  };
  const bool swapped = a.size() > 1 && b.size() > 1 && a[0] == b[1] && a[1] == b[0];
  return rest(a, 1) == rest(b, 1) || rest(a, 1) == b || a == rest(b, 1) ||
         (swapped && rest(a, 2) == rest(b, 2));
}

// The field that a name is one slip away from; empty: it is right, or none is.
std::string_view meant(std::string_view name) {
  const auto is_it = [&](std::string_view field) { return field == name; };
  const bool known = std::ranges::any_of(kFields, is_it) || std::ranges::any_of(kOthers, is_it);
  if (known && name != kWeights) return {};
  const std::string given = plain(name);
  for (const std::string_view field : kFields)
    if (one_slip(given, plain(field))) return field;
  return {};
}

// Entries of a list or an array; -1: it has none.
py::ssize_t length(const py::handle& values) {
  if (PyUnicode_Check(values.ptr()) || PyBytes_Check(values.ptr()) || PyDict_Check(values.ptr()))
    return -1;
  if (!py::hasattr(values, "shape"))
    return py::hasattr(values, "__len__") ? static_cast<py::ssize_t>(py::len(values)) : -1;
  const py::tuple shape(values.attr("shape"));
  return shape.empty() ? -1 : shape[0].cast<py::ssize_t>();
}

void refuse_misspelt(const std::string& where, const py::dict& feature) {
  const py::ssize_t tokens = length(feature["input_ids"]);
  for (const auto& [key, value] : feature) {
    Py_ssize_t size = 0;
    const char* text = nullptr;
    if (PyUnicode_Check(key.ptr())) text = PyUnicode_AsUTF8AndSize(key.ptr(), &size);
    PyErr_Clear();  // a lone surrogate has set it
    const std::string_view name = text ? meant({text, static_cast<size_t>(size)}) : "";
    if (name.empty()) continue;
    const bool is_other = name == kWeights;
    const py::str field(std::string(is_other ? kScale : name));
    const bool missing = !feature.contains(field) || feature[field].is_none();
    if ((is_other || !missing) && (tokens < 0 || length(value) != tokens)) continue;
    fail(Code::kInvalid, where, ": ", std::string(py::str(py::repr(key))),
         " is not a field, did you mean ", std::string(py::str(py::repr(field))),
         is_other || name == kScale ? ", the weights of the labels?" : "?");
  }
}

}  // namespace
}  // namespace twinkle::python::names

void bind_names(py::module_& m) {
  m.def("refuse_misspelt", &twinkle::python::names::refuse_misspelt, "where"_a, "feature"_a,
        "Raises where a field is one slip away from one of InputFeature's, which is missing, or of "
        "which it has the length too: 'label' may be a row's class in addition to 'labels'.");
  m.def(
      "refuse_surrogate",
      [](const std::string& what, const py::str& text) { twinkle::python::utf8(text, what); },
      "what"_a, "text"_a, "Raises where a text has a lone surrogate, and says at which character.");
}
