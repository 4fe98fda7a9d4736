// Rows of Python for a text::Template: dicts, which may also carry tensors, arrays and pictures.
// Needs the GIL.
#pragma once
#include <pybind11/pybind11.h>

#include <string>

#include "twinkle/base/json.h"
#include "twinkle/text/template.h"

namespace twinkle::python {

// True of a dict with messages.
bool is_trajectory(const pybind11::handle& value);

// The fields that the template and its errors look at. `where` opens the text of errors.
Json trajectory_json(const pybind11::dict& row, const std::string& where = "text: ");

// The row with the fields of its form's preprocessor, as data::encoder makes them.
pybind11::dict with_form(const text::Template& tmpl, const pybind11::dict& row);

// Logs, once in a process for each form, as what a row without messages is read.
void log_reading(const pybind11::dict& row);

// True if the columns of a row without messages are those of a chat.
bool is_read_as_chat(const pybind11::dict& row);

// The end of an error about a row without messages: its fields, and what makes messages of them.
pybind11::object in_place_of_messages(const pybind11::dict& row);

}  // namespace twinkle::python
