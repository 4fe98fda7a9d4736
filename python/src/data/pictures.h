// The pictures of a row that a preprocessor of the core reads: of Python they may be any object,
// which has no JSON form and is not looked at. Needs the GIL.
#pragma once
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

namespace twinkle::python {

class Pictures {
 public:
  // The row, with a text in place of each picture that is none.
  pybind11::object taken_out_of(const pybind11::handle& row);
  // The row that was made of that one, with the pictures in its messages.
  pybind11::object put_into(pybind11::object made) const;

 private:
  static std::string mark(size_t index) {
    return std::string("\0picture ", 9) + std::to_string(index);
  }

  std::vector<pybind11::object> taken_;
};

}  // namespace twinkle::python
