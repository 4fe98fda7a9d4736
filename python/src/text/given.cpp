#include "python/src/text/given.h"

#include <pybind11/stl.h>

#include <algorithm>

#include "twinkle/base/error.h"

namespace py = pybind11;

namespace twinkle::python {

bool given_flag(const char* what, const py::handle& value) {
  return checked("flag", what, value).cast<bool>();
}

std::vector<int64_t> given_ids(const std::string& what, const py::handle& value) {
  return checked("ids", what, value).cast<std::vector<int64_t>>();
}

py::list given_list(const std::string& what, const py::handle& value) {
  if (!py::hasattr(value, "__iter__") || py::isinstance<py::str>(value) ||
      py::isinstance<py::bytes>(value) || py::isinstance<py::dict>(value) ||
      py::isinstance<py::type>(value))
    checked("refuse", what, value, "a list");
  return py::list(py::reinterpret_borrow<py::object>(value));
}

py::dict given_row(const char* what, const py::handle& value) {
  if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
    const auto items = py::reinterpret_borrow<py::sequence>(value);
    const bool is_chat = py::len(items) > 0 && py::isinstance<py::dict>(items[0]) &&
                         items[0].cast<py::dict>().contains("role");
    require(!is_chat, Code::kInvalid, "template: ", what,
            " is a list: this is one chat's list of messages: pass {\"messages\": [...]}, or of "
            "batch_encode [{\"messages\": [...]}]");
  }
  return py::dict(checked("mapping", what, value));
}

std::vector<py::dict> given_rows(const py::handle& value) {
  std::vector<py::dict> rows;
  if (!py::isinstance<py::dict>(value)) {
    for (const py::handle row : given_list("trajectories", value))
      rows.push_back(given_row("trajectory", row));
    return rows;
  }
  for (const auto& [name, column] : value.cast<py::dict>()) {
    const py::object utf8 = py::str(name).attr("encode")("utf-8", "replace");
    const py::list items = given_list("column " + utf8.cast<std::string>(), column);
    rows.resize(std::max(rows.size(), items.size()));
    for (size_t i = 0; i < items.size(); ++i) rows[i][name] = items[i];
  }
  return rows;
}

}  // namespace twinkle::python
