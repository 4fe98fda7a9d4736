// twinkle._core.Turn: what rewards read of a trajectory, and the marks of answers in its reply.
// Replies are what models write: nothing here takes longer than in proportion to their length.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "python/src/values/arrays.h"
#include "twinkle/base/error.h"
#include "twinkle/base/json.h"

namespace py = pybind11;
using namespace py::literals;

namespace twinkle::python::rewards {
namespace {

[[noreturn]] void refuse(const std::string& what, const py::handle& value, const char* must) {
  py::module_::import("twinkle.checks").attr("refuse")(what, value, must);
  throw py::error_already_set();  // refuse() has raised
}

bool is_dict(const py::handle& value) {
  return PyDict_Check(value.ptr()) ||
         py::isinstance(value, py::module_::import("collections.abc").attr("Mapping"));
}
// True of a list whose entries all are.
bool is_list_of(const py::handle& values, bool (*is)(const py::handle&)) {
  if (!is_list(values)) return false;
  for (const py::handle value : values)
    if (!is(value)) return false;
  return true;
}

py::object stripped(const py::handle& text) { return text.attr("strip")(); }

// ---- marks in a text

// (start, end) of the contents of each \boxed{...} that is closed, in characters and in order; of
// boxes in boxes the outer ones. A box that a cut reply left open holds nothing.
std::vector<std::pair<size_t, size_t>> boxes(const py::str& given) {
  std::vector<Py_UCS4> text(py::len(given));
  if (text.empty()) return {};
  PyUnicode_AsUCS4(given.ptr(), text.data(), static_cast<Py_ssize_t>(text.size()), 0);
  constexpr std::u32string_view kBox = U"\\boxed";
  std::vector<std::optional<size_t>> opened;  // nothing: by a brace alone
  std::vector<std::pair<size_t, size_t>> found;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == U'\\') {
      const bool is_box =
          text.size() - i > kBox.size() &&
          std::equal(kBox.begin(), kBox.end(), text.begin() + static_cast<std::ptrdiff_t>(i));
      size_t brace = i + kBox.size();
      while (is_box && brace < text.size() && Py_UNICODE_ISSPACE(text[brace])) ++brace;
      const bool opens = is_box && brace < text.size() && text[brace] == U'{';
      if (opens) opened.emplace_back(brace + 1);
      i = opens ? brace : i + 1;  // another character after a backslash marks nothing
    } else if (text[i] == U'{') {
      opened.emplace_back();
    } else if (text[i] == U'}' && !opened.empty()) {
      const std::optional<size_t> start = opened.back();
      opened.pop_back();
      if (!start) continue;
      while (!found.empty() && found.back().first > *start) found.pop_back();
      found.emplace_back(*start, i);
    }
  }
  return found;
}

py::object last_box(const py::str& text) {
  const auto found = boxes(text);
  if (found.empty()) return py::none();
  const auto [start, end] = found.back();
  return stripped(
      text[py::slice(static_cast<py::ssize_t>(start), static_cast<py::ssize_t>(end), 1)]);
}

py::object between(const py::str& text, const std::string& tag) {
  const auto end = text.attr("rfind")("</" + tag + ">").cast<py::ssize_t>();
  const auto before = std::max(end, py::ssize_t{0});
  const auto start = text.attr("rfind")("<" + tag + ">", 0, before).cast<py::ssize_t>();
  if (start < 0 || start >= end) return py::none();
  return stripped(text[py::slice(start + static_cast<py::ssize_t>(tag.size()) + 2, end, 1)]);
}

py::str text_of(const py::handle& message) {
  const py::object content = message.attr("get")("content");
  if (content.is_none()) return py::str("");
  if (py::isinstance<py::str>(content)) return content;
  if (!is_list(content))
    refuse("reward: a message's content", content, "a text or a list of parts");
  py::list texts;
  for (const py::handle part : content) {
    const py::object text = is_dict(part) ? py::object(part.attr("get")("text"))
                                          : py::reinterpret_borrow<py::object>(part);
    if (py::isinstance<py::str>(text)) texts.append(text);
  }
  return py::str("").attr("join")(texts);
}

// ---- a model's turn

bool is_pair(const py::handle& value) { return is_list(value) && py::len(value) == 2; }

// JSON text of a text, or of a list of texts, decoded; other text is not: [1, 2] may be an
// interval.
py::object decoded(const py::handle& value) {
  const auto as_it_is = py::reinterpret_borrow<py::object>(value);
  Py_ssize_t size = 0;
  const char* text =
      PyUnicode_Check(value.ptr()) ? PyUnicode_AsUTF8AndSize(value.ptr(), &size) : nullptr;
  PyErr_Clear();  // a lone surrogate has set it
  const std::string_view json(text ? text : "", static_cast<size_t>(size));
  if (!json.starts_with('"') && !json.starts_with("[\"")) return as_it_is;
  const std::optional<Json> found = json_in(json);
  if (!found) return as_it_is;
  const auto str = [](const Json& one) {
    return py::str(one.get_string().data(), one.get_string().size());
  };
  if (found->is_string()) return str(*found);
  py::list texts;
  for (const Json& one : found->as_array()) {
    if (!one.is_string()) return as_it_is;
    texts.append(str(one));
  }
  return texts;
}

py::object shown(const py::handle& value) {
  if (py::isinstance<py::str>(value)) return py::reinterpret_borrow<py::object>(value);
  const py::object str = py::module_::import("builtins").attr("str");
  return py::module_::import("json").attr("dumps")(value, "ensure_ascii"_a = false,
                                                   "default"_a = str);
}

class Turn {
 public:
  Turn(const py::handle& trajectory, std::string what, std::string reader)
      : what_(std::move(what)), reader_(std::move(reader)) {
    if (!is_dict(trajectory)) refuse(what_, trajectory, "a Trajectory, a dict");
    const py::object all = trajectory.attr("get")("messages");
    if (!is_list_of(all, is_dict) || py::len(all) == 0)
      refuse(what_ + ": messages", all, "a list of messages, the last the reply");
    py::object role, last;
    for (const py::handle message : all) {
      role = message.attr("get")("role");
      messages.append(message);
      if (role.equal(py::str("assistant"))) last = py::reinterpret_borrow<py::object>(message);
      if (!role.equal(py::str("user"))) continue;
      messages = py::list();
      last = py::object();
    }
    require(last.ptr() != nullptr, Code::kInvalid, what_,
            " has no reply: its last message is of role ", std::string(py::repr(role)),
            ", after the user's last there must be one of role 'assistant'");
    reply = text_of(last);
    const py::object given = last.attr("get")("reasoning_content");
    if (py::isinstance<py::str>(given)) thought = given;
    user_data_ = trajectory.attr("get")("user_data");
  }

  py::list messages;
  py::str reply, thought;

  py::list user_data(const std::string& key) const {
    py::object pairs = py::list();
    if (is_dict(user_data_))
      pairs = py::list(user_data_.attr("items")());
    else if (py::bool_(user_data_))
      pairs = user_data_;
    if (!is_list_of(pairs, is_pair))
      refuse(what_ + ": user_data", user_data_, "a list of pairs (key, value)");
    py::list out;
    for (const py::handle pair : pairs)
      if (py::str(key).equal(pair[py::int_(0)])) out.append(decoded(pair[py::int_(1)]));
    return out;
  }

  py::list truths(const std::string& key) const {
    py::list out;
    for (const py::handle texts : texts_of(key)) out.attr("extend")(texts);
    return out;
  }

  py::object truth(const std::string& key) const {
    return py::str(", ").attr("join")(py::list(texts_of(key))[0]);
  }

 private:
  // The texts that are not empty of each pair named `key`, where there are any.
  py::list texts_of(const std::string& key) const {
    py::list out;
    for (const py::handle value : user_data(key)) {
      py::list texts;
      const py::object all = is_list(value) ? py::reinterpret_borrow<py::object>(value)
                                            : py::object(py::make_tuple(value));
      for (const py::handle one : all) {
        const py::object text = one.is_none() ? py::object(py::str("")) : shown(one);
        if (py::len(stripped(text)) > 0) texts.append(text);
      }
      if (!texts.empty()) out.append(texts);
    }
    require(!out.empty(), Code::kInvalid, what_, " has no ", std::string(py::repr(py::str(key))),
            " in user_data, which ", reader_,
            " compares with: have the preprocessor set it, or filter out rows without one");
    return out;
  }

  std::string what_, reader_;
  py::object user_data_;
};

std::vector<Turn> turns(const py::object& trajectories, const std::string& reader) {
  if (!is_list(trajectories))
    refuse("reward: trajectories", trajectories, "a list of Trajectories");
  std::vector<Turn> out;
  for (const py::handle one : trajectories)
    out.emplace_back(one, "reward: trajectory " + std::to_string(out.size()), reader);
  return out;
}

}  // namespace
}  // namespace twinkle::python::rewards

void bind_rewards(py::module_& m) {
  namespace here = twinkle::python::rewards;
  using here::Turn;
  py::class_<Turn>(m, "Turn", "A model's turn since the user's last message.")
      .def_readonly("messages", &Turn::messages)
      .def_readonly("reply", &Turn::reply,
                    "The text of the last message of role 'assistant'; '' where it has none.")
      .def_readonly("thought", &Turn::thought, "Its reasoning_content, likewise.")
      .def("user_data", &Turn::user_data, "key"_a,
           "All values of user_data that are named `key`; JSON text of a text, or of a list of "
           "texts, is decoded.")
      .def("truths", &Turn::truths, "key"_a = "ground_truth",
           "Texts, any of which is right: those of the pairs named `key`, of lists each one. "
           "InvalidError: there is none, or only empty ones.")
      .def("truth", &Turn::truth, "key"_a = "ground_truth",
           "The text of the first pair named `key` that has one; of a list, its texts joined by "
           "', '. InvalidError: as truths.")
      .def_static("text_of", &here::text_of, "message"_a,
                  "A message's content, or the texts of its parts together; '' where it is None.")
      .def_static("boxes", &here::boxes, "text"_a,
                  "(start, end) of the contents of each \\boxed{...} that is closed, in order; of "
                  "boxes in boxes the outer ones.")
      .def_static("last_box", &here::last_box, "text"_a,
                  "The contents of the last \\boxed{...} that is closed, stripped; None: there is "
                  "none.")
      .def_static("between", &here::between, "text"_a, "tag"_a,
                  "The text between the last <tag> that </tag> follows, and that, stripped; else "
                  "None.");
  m.def("turns", &here::turns, "trajectories"_a, "reader"_a,
        "A Turn of each. InvalidError: no list of Trajectories with messages and a reply.");
}
