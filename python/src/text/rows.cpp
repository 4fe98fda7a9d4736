#include "python/src/text/rows.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "python/src/json_caster.h"
#include "twinkle/data/forms.h"
#include "twinkle/text/columns.h"
#include "twinkle/text/forms.h"
#include "twinkle/text/messages.h"

namespace py = pybind11;

namespace twinkle::python {
namespace {

// The names of a row's fields, for errors.
std::vector<std::string> fields_of(const py::dict& row) {
  std::vector<std::string> out;
  for (const auto& [key, value] : row)
    if (py::isinstance<py::str>(key))
      out.push_back(key.attr("encode")("utf-8", "replace").cast<std::string>());
  return out;
}

bool is_plain(const py::handle& value) {
  return py::isinstance<py::str>(value) || py::isinstance<py::list>(value) ||
         py::isinstance<py::dict>(value) || py::isinstance<py::bool_>(value) ||
         py::isinstance<py::int_>(value) || py::isinstance<py::float_>(value);
}

// The columns of a row that its form is known by, and their values.
data::Row known_columns(const py::dict& row) {
  data::Row out;
  for (const auto& [key, value] : row) {
    if (!py::isinstance<py::str>(key) || !is_plain(value)) continue;
    const std::string name = key.attr("encode")("utf-8", "replace").cast<std::string>();
    const bool is_chat = std::ranges::count(text::kChatColumns, name) > 0 ||
                         std::ranges::count(text::kMoreColumns, name) > 0;
    if (is_chat || data::is_read(name)) out[name] = to_json(value, "text: " + name);
  }
  return out;
}

// False for a row that is taken as it is: encoded, of trajectories, of messages with usual roles.
bool may_have_form(const py::dict& row) {
  if (row.contains("input_ids")) return false;
  if (!row.contains("messages") || row["messages"].is_none())
    return std::none_of(row.begin(), row.end(),
                        [](const auto& field) { return is_trajectory(field.second); });
  if (!py::isinstance<py::list>(row["messages"])) return false;
  for (const py::handle turn : row["messages"]) {
    if (!py::isinstance<py::dict>(turn)) return false;
    const auto fields = turn.cast<py::dict>();
    if (!fields.contains("role")) return fields.contains("from");
    if (!py::isinstance<py::str>(fields["role"])) return false;
    const std::string_view role = utf8(fields["role"], "text: role");
    if (text::usual_role(role) != role) return true;
  }
  return false;
}

}  // namespace

bool is_trajectory(const py::handle& value) {
  return py::isinstance<py::dict>(value) && value.cast<py::dict>().contains("messages");
}

Json trajectory_json(const py::dict& row, const std::string& where) {
  JsonObject out;
  const auto copy = [&](std::string_view name, bool only_plain) {
    const py::str key(name.data(), name.size());
    if (row.contains(key) && (!only_plain || is_plain(row[key])))
      out[name] = to_json(row[key], where + std::string(name));
  };
  for (const std::string_view name : text::kChatColumns) copy(name, false);
  for (const std::string_view name : text::kMoreColumns) copy(name, true);
  if (!row.contains("messages"))
    for (const std::string& name : fields_of(row)) out.emplace(name, nullptr);
  return out;
}

py::dict with_form(const text::Template& tmpl, const py::dict& row) {
  if (!may_have_form(row)) return row;
  data::Row fields = data::read_form(known_columns(row));
  if (fields.empty()) return row;
  if (Json* messages = fields.if_contains("messages"); messages && !tmpl.writes_calls())
    data::write_calls(messages->as_array());
  const py::dict out = row.attr("copy")();
  for (const auto& [key, value] : fields) out[py::str(std::string(key))] = from_json(value);
  return out;
}

void log_reading(const py::dict& row) {
  if (!may_have_form(row)) return;
  const auto forms = data::forms_of(known_columns(row));
  if (forms.size() != 1) return;
  const std::string said = "template: " + data::reading(forms.front());
  py::module_::import("twinkle.logger").attr("get_logger")().attr("info_once")(said);
}

bool is_read_as_chat(const py::dict& row) {
  if (!may_have_form(row)) return false;
  const auto forms = data::forms_of(known_columns(row));
  return !forms.empty() && forms.front().preprocessor != "PreferenceProcessor";
}

py::object in_place_of_messages(const py::dict& row) {
  const std::string text = text::in_place_of_messages(fields_of(row));
  return py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
      text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));  // names are cut
}

}  // namespace twinkle::python
