// Arguments of the methods of Python's Template, checked by twinkle.checks: an error has the
// argument's name, its value and what it must be. Needs the GIL.
#pragma once
#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace twinkle::python {

// twinkle.checks.NAME("template: WHAT", value, ...).
template <class... More>
pybind11::object checked(const char* check, const std::string& what, const pybind11::handle& value,
                         More&&... more) {
  return pybind11::module_::import("twinkle.checks")
      .attr(check)("template: " + what, value, std::forward<More>(more)...);
}

bool given_flag(const char* what, const pybind11::handle& value);

// Token ids: one sequence of integers.
std::vector<int64_t> given_ids(const std::string& what, const pybind11::handle& value);

// The items of a list, or of another iterable that is no text, dict or class.
pybind11::list given_list(const std::string& what, const pybind11::handle& value);

// A row. Error kInvalid: no dict with names as keys; of a chat's list of messages, which is often
// passed in its place, it says so.
pybind11::dict given_row(const char* what, const pybind11::handle& value);

// The rows of a list, or of a dict of columns.
std::vector<pybind11::dict> given_rows(const pybind11::handle& value);

}  // namespace twinkle::python
