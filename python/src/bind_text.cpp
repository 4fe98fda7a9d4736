// _core.Tokenizer and _core.Template: the same names and defaults as in twinkle/text, rows as
// dicts. Text work runs without the GIL.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "python/src/interruptible.h"
#include "python/src/json_caster.h"
#include "python/src/released_gil.h"
#include "twinkle/data/forms.h"
#include "twinkle/text/columns.h"
#include "twinkle/text/forms.h"
#include "twinkle/text/messages.h"
#include "twinkle/text/template.h"

namespace py = pybind11;

namespace twinkle::python {
namespace {

using text::InputFeature;
using text::Template;
using text::Tokenizer;
using Ids = std::vector<int64_t>;
using NoGil = py::call_guard<ReleasedGil>;
using Features = std::vector<std::vector<InputFeature>>;

// Filled here: numpy's copy lets go of the GIL, and a thread that does not get it back because the
// interpreter ends would drop Python's objects without it.
py::array_t<int64_t> array(const Ids& ids) {
  py::array_t<int64_t> out(static_cast<py::ssize_t>(ids.size()));
  std::ranges::copy(ids, out.mutable_data());
  return out;
}

// A copy of the row with the fields of the feature.
py::dict with_feature(const py::dict& row, const InputFeature& feature) {
  py::dict out;
  for (const auto& [key, value] : row) out[key] = value;
  Ids positions(feature.input_ids.size());
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int64_t>(i);
  out["input_ids"] = array(feature.input_ids);
  out["labels"] = array(feature.labels);
  out["attention_mask"] = array(Ids(positions.size(), 1));
  out["position_ids"] = array(positions);
  out["length"] = feature.length();
  return out;
}

bool is_trajectory(const py::handle& value) {
  return py::isinstance<py::dict>(value) && value.cast<py::dict>().contains("messages");
}

// Rows of dicts from a dict of columns.
std::vector<py::dict> rows_of(const py::object& given) {
  std::vector<py::dict> rows;
  if (!py::isinstance<py::dict>(given)) {
    for (const py::handle row : given) rows.push_back(row.cast<py::dict>());
    return rows;
  }
  for (const auto& [name, column] : given.cast<py::dict>()) {
    const auto items = column.cast<py::sequence>();
    rows.resize(std::max(rows.size(), static_cast<size_t>(items.size())));
    for (size_t i = 0; i < static_cast<size_t>(items.size()); ++i) rows[i][name] = items[i];
  }
  return rows;
}

// The names of a row's fields, for errors.
std::vector<std::string> fields_of(const py::dict& row) {
  std::vector<std::string> out;
  for (const auto& [key, value] : row)
    if (py::isinstance<py::str>(key))
      out.push_back(key.attr("encode")("utf-8", "replace").cast<std::string>());
  return out;
}

py::object in_place_of_messages(const py::dict& row) {
  const std::string text = text::in_place_of_messages(fields_of(row));
  return py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
      text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));  // names are cut
}

bool is_plain(const py::handle& value) {
  return py::isinstance<py::str>(value) || py::isinstance<py::list>(value) ||
         py::isinstance<py::dict>(value) || py::isinstance<py::bool_>(value) ||
         py::isinstance<py::int_>(value) || py::isinstance<py::float_>(value);
}

// The fields that the template and its errors look at, of a row that may also carry tensors and
// arrays. `where` opens the text of errors.
Json trajectory_json(const py::dict& row, const std::string& where = "text: ") {
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

// "prompt, completion: read as PromptCompletionProcessor", or "" of a row that has no such form.
std::string reading(const py::dict& row) {
  if (!may_have_form(row)) return "";
  const auto forms = data::forms_of(known_columns(row));
  return forms.size() == 1 ? data::reading(forms.front()) : "";
}

bool is_read_as_chat(const py::dict& row) {
  if (!may_have_form(row)) return false;
  const auto forms = data::forms_of(known_columns(row));
  return !forms.empty() && forms.front().preprocessor != "PreferenceProcessor";
}

// The row with the fields of its form's preprocessor, as data::encoder makes them.
py::dict with_form(const Template& self, const py::dict& row) {
  if (!may_have_form(row)) return row;
  data::Row fields = data::read_form(known_columns(row));
  if (fields.empty()) return row;
  if (Json* messages = fields.if_contains("messages"); messages && !self.writes_calls())
    data::write_calls(messages->as_array());
  const py::dict out = row.attr("copy")();
  for (const auto& [key, value] : fields) out[py::str(std::string(key))] = from_json(value);
  return out;
}

Features encode_all(const Template& self, const std::vector<py::dict>& rows, bool generation) {
  std::vector<Json> trajectories;
  trajectories.reserve(rows.size());
  for (const py::dict& row : rows)
    trajectories.push_back(
        trajectory_json(row, "text: row " + std::to_string(trajectories.size()) + ": "));
  return interruptible([&] { return self.batch_encode(trajectories, generation); });
}

// Rows whose fields are trajectories (positive and negative, say): each of those fields is encoded.
py::list encode_nested(const Template& self, std::vector<py::dict> rows,
                       const std::vector<std::string>& fields, bool generation) {
  std::vector<bool> whole(rows.size(), true);
  std::vector<py::dict> out(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) out[i] = rows[i].attr("copy")();
  for (const std::string& field : fields) {
    std::vector<py::dict> inner;
    for (const py::dict& row : rows) inner.push_back(row[field.c_str()].cast<py::dict>());
    const Features features = encode_all(self, inner, generation);
    for (size_t i = 0; i < rows.size(); ++i) {
      require(features[i].size() < 2, Code::kInvalid, "text: row ", i, ": field '", field,
              "' was split in ", features[i].size(), "; nested samples cannot be split");
      whole[i] = whole[i] && !features[i].empty();
      if (!features[i].empty()) out[i][field.c_str()] = with_feature(inner[i], features[i].front());
    }
  }
  py::list kept;
  for (size_t i = 0; i < rows.size(); ++i)
    if (whole[i]) kept.append(out[i]);
  return kept;
}

py::list batch_encode(const Template& self, const py::object& given, bool generation) {
  std::vector<py::dict> rows = rows_of(given);
  if (!generation)
    for (py::dict& row : rows) row = with_form(self, row);
  std::vector<std::string> nested;
  if (!rows.empty() && !is_trajectory(rows[0]))
    for (const auto& [name, value] : rows[0])
      if (is_trajectory(value)) nested.push_back(name.cast<std::string>());
  if (!nested.empty()) return encode_nested(self, std::move(rows), nested, generation);
  const Features features = encode_all(self, rows, generation);
  py::list out;
  for (size_t i = 0; i < rows.size(); ++i)
    for (const InputFeature& feature : features[i]) out.append(with_feature(rows[i], feature));
  return out;
}

py::object encode(const Template& self, const py::dict& given, bool generation) {
  const py::dict row = generation ? given : with_form(self, given);
  require(self.options().truncation != text::Truncation::kSplit, Code::kInvalid,
          "text: truncation_strategy is 'split', which can give several samples: use batch_encode");
  const Json trajectory = trajectory_json(row);
  const auto features = interruptible([&] { return self.encode(trajectory, generation); });
  return features.empty() ? py::object(py::none()) : with_feature(row, features.front());
}

std::optional<std::string> why_not(const Template& self, const py::dict& row) {
  const Json trajectory = trajectory_json(with_form(self, row));
  return interruptible([&] { return self.check(trajectory); });
}

py::object check(const Template& self, const py::dict& row) {
  return why_not(self, row) ? py::object(py::none()) : py::object(row);
}

std::string render(const Template& self, const py::dict& row, bool generation) {
  const Json trajectory = trajectory_json(row);
  return interruptible([&] { return self.render(trajectory, generation); });
}

// The prompt's row with the reply's tokens, and, where it has messages, the reply as a message.
py::dict concat_input_feature(const Template& self, const py::dict& row, const Ids& new_tokens) {
  InputFeature prompt{row["input_ids"].cast<Ids>(), {}};
  prompt.labels =
      row.contains("labels") ? row["labels"].cast<Ids>() : Ids(prompt.input_ids.size(), -100);
  py::dict out = with_feature(row, self.concat_input_feature(prompt, new_tokens));
  if (!row.contains("messages") || row["messages"].is_none()) return out;
  py::list messages;
  for (const py::handle message : row["messages"]) messages.append(message);
  py::dict reply;
  reply["role"] = "assistant";
  reply["content"] = self.decode(new_tokens, true);
  messages.append(reply);
  out["messages"] = messages;
  return out;
}

std::unique_ptr<Template> make_template(const std::string& directory, bool use_chat_template,
                                        std::optional<int64_t> max_length,
                                        const std::string& truncation_strategy,
                                        std::optional<std::string> default_system,
                                        bool enable_thinking) {
  text::TemplateOptions options{.use_chat_template = use_chat_template,
                                .max_length = max_length.value_or(0),
                                .truncation = text::truncation_of(truncation_strategy),
                                .default_system = default_system.value_or(""),
                                .enable_thinking = enable_thinking};
  return interruptible([&] { return std::make_unique<Template>(directory, std::move(options)); });
}

std::vector<Ids> tokens_of(const Tokenizer& self, const std::vector<py::str>& texts, bool special) {
  std::vector<std::string> utf8s;
  utf8s.reserve(texts.size());
  for (const py::str& text : texts)
    utf8s.emplace_back(utf8(text, "text: texts[" + std::to_string(utf8s.size()) + "]"));
  return interruptible([&] { return self.batch_encode(utf8s, special); });
}

py::object standard_messages(const py::object& messages, const std::string& system) {
  return from_json(text::standard_messages(to_json(messages, "text: messages"), system));
}

void bind_tokenizer(py::module_& m) {
  py::class_<Tokenizer>(m, "Tokenizer", "The tokenizer of a model directory (tokenizer.json).")
      .def(py::init(
               [](const std::string& directory) { return std::make_unique<Tokenizer>(directory); }),
           py::arg("directory"), NoGil())
      .def(
          "encode",
          [](const Tokenizer& self, const py::str& text, bool special) {
            const std::string_view bytes = utf8(text, "text: the text");
            const ReleasedGil released;
            return self.encode(bytes, special);
          },
          py::arg("text"), py::arg("add_special_tokens") = false, "Token ids of a text.")
      .def("batch_encode", &tokens_of, py::arg("texts"), py::arg("add_special_tokens") = false,
           "Token ids of many texts, on all cores.")
      .def(
          "decode",
          [](const Tokenizer& self, const Ids& ids, bool skip) { return self.decode(ids, skip); },
          py::arg("ids"), py::arg("skip_special_tokens") = false, NoGil())
      .def(
          "batch_decode",
          [](const Tokenizer& self, const std::vector<Ids>& rows, bool skip) {
            return self.batch_decode(rows, skip);
          },
          py::arg("rows"), py::arg("skip_special_tokens") = false, NoGil())
      .def("id", &Tokenizer::id, py::arg("token"), "The token's id, or None.")
      .def("token", &Tokenizer::token, py::arg("id"), "The token as the vocabulary spells it.")
      .def_property_readonly("vocab_size", &Tokenizer::vocab_size)
      .def_property_readonly("bos_id", &Tokenizer::bos_id)
      .def_property_readonly("eos_id", &Tokenizer::eos_id)
      .def_property_readonly("pad_id", &Tokenizer::pad_id)
      .def_property_readonly(
          "special_tokens", [](const Tokenizer& self) { return from_json(self.special_tokens()); });
}

void bind_template(py::module_& m) {
  py::class_<Template, std::shared_ptr<Template>>(
      m, "Template", "Rows of messages to tokens and labels, and back.")
      .def(py::init(&make_template), py::arg("directory"), py::arg("use_chat_template") = true,
           py::arg("max_length") = 8192, py::arg("truncation_strategy") = "raise",
           py::arg("default_system") = py::none(), py::arg("enable_thinking") = true)
      .def("encode", &encode, py::arg("trajectory"), py::arg("add_generation_prompt") = false,
           "The row with input_ids, labels (already shifted), attention_mask, position_ids and "
           "length; "
           "None when it is too long and truncation_strategy is 'delete'.")
      .def("batch_encode", &batch_encode, py::arg("trajectories"),
           py::arg("add_generation_prompt") = false,
           "encode of a list of rows, or a dict of columns, on all cores; a list of rows.")
      .def("check", &check, py::arg("trajectory"), "The row, or None when it cannot be encoded.")
      .def("why_not", &why_not, py::arg("trajectory"), "Why the row cannot be encoded, or None.")
      .def(
          "decode",
          [](const Template& self, const Ids& ids, bool skip) { return self.decode(ids, skip); },
          py::arg("ids"), py::arg("skip_special_tokens") = false, NoGil())
      .def(
          "batch_decode",
          [](const Template& self, const std::vector<Ids>& rows, bool skip) {
            return self.batch_decode(rows, skip);
          },
          py::arg("rows"), py::arg("skip_special_tokens") = false, NoGil())
      .def("concat_input_feature", &concat_input_feature, py::arg("feature"), py::arg("new_tokens"),
           "The prompt's row with sampled tokens appended, which are trained.")
      .def("render", &render, py::arg("trajectory"), py::arg("add_generation_prompt") = false,
           "The text that encode tokenises.")
      .def_property_readonly("tokenizer", &Template::tokenizer,
                             py::return_value_policy::reference_internal)
      .def_property_readonly(
          "directory",
          [](const Template& self) {
            return std::filesystem::absolute(self.tokenizer().directory()).string();
          })
      .def_property_readonly("max_length",
                             [](const Template& self) { return self.options().max_length; });
}

}  // namespace
}  // namespace twinkle::python

void bind_tool_formats(py::module_& m);

void bind_text(py::module_& m) {
  twinkle::python::bind_tokenizer(m);
  twinkle::python::bind_template(m);
  bind_tool_formats(m);
  m.def("reading", &twinkle::python::reading, pybind11::arg("row"),
        "By which columns a row without messages is read, and as what; '' of one that is not.");
  m.def("is_read_as_chat", &twinkle::python::is_read_as_chat, pybind11::arg("row"),
        "True if the columns of a row without messages are those of a chat.");
  m.def("standard_messages", &twinkle::python::standard_messages, pybind11::arg("messages"),
        pybind11::arg("system"),
        "Messages with texts as contents, reasoning apart, and dicts of arguments.");
  m.def("in_place_of_messages", &twinkle::python::in_place_of_messages, pybind11::arg("row"),
        "The end of an error about a row without messages: its fields, and what makes messages.");
}
