// NumPy arrays of what users give, checked. What is refused is refused by its name.
#pragma once
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>

namespace twinkle::python {

// A list or a tuple.
inline bool is_list(const pybind11::handle& value) {
  return PyList_Check(value.ptr()) || PyTuple_Check(value.ptr());
}

// An array of a sequence; an array as it is. Error kInvalid: not of one shape, or no sequence at
// all (`must` says what it must be); a masked array, whose mask would be lost.
pybind11::array array_of(const std::string& what, const pybind11::handle& given,
                         const std::string& must);

}  // namespace twinkle::python
