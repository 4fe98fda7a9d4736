// Options as a Python dict, into a struct field by field: what is absent keeps its default.
#pragma once
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "twinkle/base/error.h"

namespace twinkle::python {

class Fields {
 public:
  // `what` opens the text of errors.
  Fields(pybind11::dict given, std::string what)
      : left_(given.attr("copy")()), what_(std::move(what)) {}

  template <class T>
  void take(const char* name, T& value) {
    if (!left_.contains(name)) return;
    const pybind11::object given = left_.attr("pop")(name);
    pybind11::detail::make_caster<T> caster;
    require(caster.load(given, true), Code::kInvalid, what_, ": ", name, " is ",
            std::string(pybind11::repr(given)).substr(0, 80),
            ", which is of a wrong type or too large");
    value = pybind11::detail::cast_op<T>(std::move(caster));
  }

  // Error kInvalid: a field that nobody took.
  void finish() const {
    for (const auto& [name, value] : left_)
      fail(Code::kInvalid, what_, ": unknown field ", std::string(pybind11::repr(name)));
  }

 private:
  pybind11::dict left_;
  std::string what_;
};

}  // namespace twinkle::python
