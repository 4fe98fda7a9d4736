#include "python/src/values/arrays.h"

#include <cstdint>
#include <limits>

#include "twinkle/base/error.h"

namespace py = pybind11;
using namespace py::literals;

namespace twinkle::python {
namespace values {
namespace {

[[noreturn]] void refuse(const std::string& what, const py::handle& given,
                         const std::string& must) {
  py::module_::import("twinkle.checks").attr("refuse")(what, given, must);
  throw py::error_already_set();  // refuse() has raised
}

// Token ids, [L] integers of at most 2^63 - 1.
py::object ids(const std::string& what, const py::handle& given) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const std::string must = "one sequence of integers of at most " + std::to_string(kMost);
  const py::array values = array_of(what, given, must);
  const char kind = values.dtype().kind();
  const bool right = values.ndim() == 1 && (values.size() == 0 || kind == 'i' || kind == 'u');
  if (!right ||
      (kind == 'u' && values.size() > 0 && values.attr("max")().attr("__gt__")(kMost).cast<bool>()))
    refuse(what, given, must);
  return values.attr("tolist")();
}

}  // namespace
}  // namespace values

py::array array_of(const std::string& what, const py::handle& given, const std::string& must) {
  const py::module_ numpy = py::module_::import("numpy");
  if (py::type::of(given).is(numpy.attr("ndarray")))
    return py::reinterpret_borrow<py::array>(given);
  require(!py::isinstance(given, numpy.attr("ma").attr("MaskedArray")), Code::kInvalid, what,
          " is a masked array, it must be one without a mask: pass what its filled() or "
          "compressed() returns");
  const py::object convert = numpy.attr("asarray");
  const auto made =
      py::reinterpret_steal<py::object>(PyObject_CallOneArg(convert.ptr(), given.ptr()));
  if (made) return py::reinterpret_borrow<py::array>(made);
  if (!PyErr_ExceptionMatches(PyExc_ValueError) && !PyErr_ExceptionMatches(PyExc_TypeError))
    throw py::error_already_set();
  PyErr_Clear();
  values::refuse(what, given, must);
}

}  // namespace twinkle::python

void bind_arrays(py::module_& m) {
  m.def("ids", &twinkle::python::values::ids, "what"_a, "given"_a,
        "A list of token ids. Raises where it is not one sequence of integers, or one is above "
        "2^63 - 1.");
}
