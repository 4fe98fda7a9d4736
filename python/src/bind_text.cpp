// _core.Tokenizer and _core.Template: the same names and defaults as in twinkle/text, rows as
// dicts. Text work runs without the GIL.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "python/src/interruptible.h"
#include "python/src/json_caster.h"
#include "python/src/released_gil.h"
#include "python/src/text/given.h"
#include "python/src/text/rows.h"
#include "twinkle/base/error.h"
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

py::list batch_encode(const Template& self, const py::object& given, const py::object& prompt) {
  const bool generation = given_flag("add_generation_prompt", prompt);
  std::vector<py::dict> rows = given_rows(given);
  for (py::dict& row : rows) {
    if (generation) continue;
    log_reading(row);
    row = with_form(self, row);
  }
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

py::object encode(const Template& self, const py::object& given, const py::object& prompt) {
  const bool generation = given_flag("add_generation_prompt", prompt);
  py::dict row = given_row("trajectory", given);
  if (!generation) {
    log_reading(row);
    row = with_form(self, row);
  }
  require(self.options().truncation != text::Truncation::kSplit, Code::kInvalid,
          "text: truncation_strategy is 'split', which can give several samples: use batch_encode");
  const Json trajectory = trajectory_json(row);
  const auto features = interruptible([&] { return self.encode(trajectory, generation); });
  return features.empty() ? py::object(py::none()) : with_feature(row, features.front());
}

std::optional<std::string> why_not(const Template& self, const py::object& given) {
  const Json trajectory = trajectory_json(with_form(self, given_row("trajectory", given)));
  return interruptible([&] { return self.check(trajectory); });
}

py::object check(const Template& self, const py::object& given) {
  const py::object row = given_row("trajectory", given);
  try {
    return why_not(self, row) ? py::object(py::none()) : row;
  } catch (const Error& e) {  // JSON cannot hold it, such as a lone surrogate
    if (e.code != Code::kInvalid) throw;
    return py::none();
  }
}

std::string render(const Template& self, const py::object& row, const py::object& prompt) {
  const bool generation = given_flag("add_generation_prompt", prompt);
  const Json trajectory = trajectory_json(given_row("trajectory", row));
  return interruptible([&] { return self.render(trajectory, generation); });
}

// The row with its messages in their standard form, and the default system message before them.
py::dict format_trajectory(const Template& self, const py::object& given, const py::object& add) {
  const text::TemplateOptions& options = self.options();
  const bool adds = given_flag("add_default_system", add) && options.use_chat_template;
  const py::dict row = given_row("trajectory", given).attr("copy")();
  const py::object messages = row.attr("get")("messages");
  row["messages"] = from_json(text::standard_messages(to_json(messages, "text: messages"),
                                                      adds ? options.default_system : ""));
  return row;
}

std::string decode(const Template& self, const py::object& given, const py::object& skip) {
  const Ids ids = given_ids("ids", given);
  const bool skips = given_flag("skip_special_tokens", skip);
  const ReleasedGil released;
  return self.decode(ids, skips);
}

std::vector<std::string> batch_decode(const Template& self, const py::object& given,
                                      const py::object& skip) {
  std::vector<Ids> rows;
  for (const py::handle ids : given_list("rows", given)) rows.push_back(given_ids("ids", ids));
  const bool skips = given_flag("skip_special_tokens", skip);
  const ReleasedGil released;
  return self.batch_decode(rows, skips);
}

// The prompt's row with the reply's tokens, and, where it has messages, the reply as a message.
py::dict concat_input_feature(const Template& self, const py::object& given,
                              const py::object& new_tokens) {
  const py::dict row = given_row("feature", given);
  InputFeature prompt{given_ids("input_ids", row.attr("get")("input_ids")), {}};
  prompt.labels = row.contains("labels") ? given_ids("labels", row["labels"])
                                         : Ids(prompt.input_ids.size(), -100);
  const Ids reply_ids = given_ids("new_tokens", new_tokens);
  py::dict out = with_feature(row, self.concat_input_feature(prompt, reply_ids));
  if (!row.contains("messages") || row["messages"].is_none()) return out;
  py::list messages;
  for (const py::handle message : row["messages"]) messages.append(message);
  py::dict reply;
  reply["role"] = "assistant";
  reply["content"] = self.decode(reply_ids, true);
  messages.append(reply);
  out["messages"] = messages;
  return out;
}

std::unique_ptr<Template> make_template(const std::string& directory,
                                        const py::object& use_chat_template,
                                        const py::object& max_length, const py::object& strategy,
                                        const py::object& system, const py::object& thinking) {
  using namespace py::literals;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const py::object length = checked("integer", "max_length", max_length, 0, kMost, "none"_a = true);
  const py::object first =
      checked("text", "default_system", system, "none"_a = true, "empty"_a = true);
  text::TemplateOptions options{
      .use_chat_template = given_flag("use_chat_template", use_chat_template),
      .max_length = length.is_none() ? 0 : length.cast<int64_t>(),
      .truncation =
          text::truncation_of(checked("text", "truncation_strategy", strategy).cast<std::string>()),
      .default_system = first.is_none() ? "" : first.cast<std::string>(),
      .enable_thinking = given_flag("enable_thinking", thinking)};
  return interruptible([&] { return std::make_unique<Template>(directory, std::move(options)); });
}

std::vector<Ids> tokens_of(const Tokenizer& self, const std::vector<py::str>& texts, bool special) {
  std::vector<std::string> utf8s;
  utf8s.reserve(texts.size());
  for (const py::str& text : texts)
    utf8s.emplace_back(utf8(text, "text: texts[" + std::to_string(utf8s.size()) + "]"));
  return interruptible([&] { return self.batch_encode(utf8s, special); });
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
      .def("decode", &decode, py::arg("ids"), py::arg("skip_special_tokens") = false)
      .def("batch_decode", &batch_decode, py::arg("rows"), py::arg("skip_special_tokens") = false)
      .def("concat_input_feature", &concat_input_feature, py::arg("feature"), py::arg("new_tokens"),
           "The prompt's row with sampled tokens appended, which are trained.")
      .def("render", &render, py::arg("trajectory"), py::arg("add_generation_prompt") = false,
           "The text that encode tokenises.")
      .def("format_trajectory", &format_trajectory, py::arg("trajectory"),
           py::arg("add_default_system") = false,
           "The row with texts as contents, reasoning apart, and dicts of arguments.")
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

void bind_tool_formats(pybind11::module_& m);

void bind_text(py::module_& m) {
  twinkle::python::bind_tokenizer(m);
  twinkle::python::bind_template(m);
  bind_tool_formats(m);
  m.def("given_list", &twinkle::python::given_list, pybind11::arg("what"), pybind11::arg("value"),
        "The items of a list, or of what goes as one.");
  m.def("is_read_as_chat", &twinkle::python::is_read_as_chat, pybind11::arg("row"),
        "True if the columns of a row without messages are those of a chat.");
  m.def("in_place_of_messages", &twinkle::python::in_place_of_messages, pybind11::arg("row"),
        "The end of an error about a row without messages: its fields, and what makes messages.");
}
