// A tenant's operations, of a script's arguments, and their results.
#include <cstring>
#include <optional>
#include <utility>

#include "python/src/batch/batch.h"
#include "twinkle/base/error.h"
#include "twinkle/base/fields.h"
#include "twinkle/engine/protocol/operation.h"
#include "twinkle/loss/loss.h"

namespace twinkle::python::batch {
namespace {

using namespace py::literals;

// Names of an operation's fields that a script gives; the others are made of its batch and loss.
template <class T>
std::set<std::string> given_fields() {
  std::set<std::string> out;
  const T defaults;
  for_each_field(defaults, [&](const auto& field, const auto&) { out.emplace(field.name); });
  for (const char* made : {"tenant", "sequences", "loss", "loss_options"}) out.erase(made);
  return out;
}

bool is_per_sequence(const std::string& loss, const std::string& extra) {
  const loss::Loss* const found = loss::look_up(loss);
  return found && loss::per_sequence(*found, extra);
}

// An error of the program itself, as of a signal, goes on.
bool is_dumped(const py::object& dumps, const py::object& value) {
  const py::tuple one = py::make_tuple(value);
  const py::dict strict("allow_nan"_a = false);
  if (py::reinterpret_steal<py::object>(PyObject_Call(dumps.ptr(), one.ptr(), strict.ptr())))
    return true;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) throw py::error_already_set();
  PyErr_Clear();
  return false;
}

std::string listed(const std::set<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : " and ") + name;
  return out;
}

}  // namespace

bool is_json(const py::object& value) {
  return is_dumped(py::module_::import("json").attr("dumps"), value);
}

std::string json_of(const std::string& what, const py::dict& options) {
  if (options.empty()) return {};
  const py::object dumps = py::module_::import("json").attr("dumps");
  for (const auto& [name, value] : options)
    if (!is_dumped(dumps, py::reinterpret_borrow<py::object>(value)))
      checks("refuse")(what + ": " + shown(name), value,
                       "a finite number, a text, True or False, or a list of them");
  return shown(dumps(options));
}

py::dict Batch::operation(const std::string& name, const py::object& loss, const py::dict& given,
                          const py::dict& grads) {
  const bool learns = name == engine::ForwardBackward::kName;
  checks("text")("engine: loss", loss, "none"_a = !learns);
  const std::string loss_name = loss.is_none() ? "" : shown(loss);
  const std::set<std::string> known =
      learns ? given_fields<engine::ForwardBackward>() : given_fields<engine::Forward>();
  py::dict out, lists, options;
  for (const auto& [key, value] : given) {
    const bool is_extra = is_list(value) || py::isinstance<py::array>(value);
    (known.contains(shown(key)) ? out : is_extra ? lists : options)[key] = value;
  }
  if (loss.is_none()) {
    for (const auto& [key, value] : lists) options[key] = value;
    py::module_::import("twinkle.errors")
        .attr("refuse_unknown")("engine: forward without a loss", options, py::cast(known));
  }
  std::set<std::string> extras;
  for (const auto& [key, value] : lists) {
    const std::string extra = shown(key);
    add_extra(extra, py::reinterpret_borrow<py::object>(value), is_per_sequence(loss_name, extra));
    extras.insert(extra);
  }
  out["loss"] = loss_name;
  out["loss_options"] = json_of("engine: extras", options);
  out["sequences"] = with_grads(grads, extras);
  return out;
}

py::dict Batch::scores(const py::dict& result) const {
  py::dict out("loss"_a = result["loss"], "num_tokens"_a = result["num_tokens"]);
  const auto has = [&](const char* name) { return py::len(result[name]) > 0; };
  if (has("label_logits")) {
    out["label_logits"] = result["label_logits"];
    return out;
  }
  out["logps"] = rows(result["logps"]);
  if (has("entropies")) out["entropies"] = rows(result["entropies"]);
  for (const char* name : {"logits", "embeddings"})
    if (has(name)) out[name] = result[name];
  if (result["aux_loss"].cast<double>() != 0) out["aux_loss"] = result["aux_loss"];
  return out;
}

void Batch::add_extra(const std::string& name, const py::object& values, bool per_sequence) {
  require(py::len(values) == size(), Code::kInvalid, "model: ", name, " has ", py::len(values),
          " entries for ", size(), " inputs, they must be equally many");
  size_t index = 0;
  for (const py::handle given : values) {
    py::object value = numpy("asarray")(given);
    const py::array array(value);
    require(std::strchr("fiub", array.dtype().kind()) && array.ndim() <= (per_sequence ? 0 : 1),
            Code::kInvalid, what_of(name.c_str(), index), " must be a number",
            per_sequence ? "" : " or a list of numbers");
    const py::dict sequence = sequences_[index];
    const py::dict extras = sequence.attr("setdefault")("extras", py::dict());
    const auto length = static_cast<py::ssize_t>(lengths_[index]);
    if (per_sequence) {
      extras[name.c_str()] = value.attr("reshape")(1);
    } else {
      if (array.ndim() == 0) value = numpy("full")(length, value, "dtype"_a = "float32");
      require(static_cast<py::ssize_t>(py::len(value)) == length, Code::kInvalid,
              what_of(name.c_str(), index), " has ", py::len(value), " entries, input_ids has ",
              length, ", they must be equally many");
      extras[name.c_str()] = kept_of(index, value);
    }
    ++index;
  }
}

// Gradients by name; None: it has none, a list has an array a sequence. `extras`: names of those
// that the labels have.
py::list Batch::with_grads(const py::dict& grads, const std::set<std::string>& extras) const {
  std::set<std::string> names;
  for (const auto& [name, given] : grads)
    if (!given.is_none()) names.insert(py::str(name));
  if (names.empty()) return sequences_;
  const bool of_logits = names.contains("logits_grad");
  const bool scored = extras.contains("grad") && !of_logits;
  require(scored || extras.empty(), Code::kInvalid, "engine: ", listed(extras),
          " of labels cannot go with ", listed(names), of_logits ? "" : " alone: give grad, too");
  py::list out;
  for (const py::handle each : scored ? sequences_ : unscored())
    out.append(copied(py::reinterpret_borrow<py::dict>(each)));
  for (const std::string& name : names) add_grad(out, name, grads[name.c_str()]);
  return out;
}

void Batch::add_grad(const py::list& sequences, const std::string& name,
                     const py::object& given) const {
  if (!py::isinstance<py::list>(given) && !py::isinstance<py::tuple>(given) &&
      !py::isinstance<py::array>(given))
    checks("refuse")("engine: " + name, given, "a list with an array for each input");
  require(py::len(given) == size(), Code::kInvalid, "engine: ", name, " has ", py::len(given),
          " entries for ", size(), " inputs, they must be equally many");
  size_t index = 0;
  for (const py::handle each : given) {
    const py::dict sequence = sequences[index];
    auto grad = py::reinterpret_borrow<py::object>(each);
    if (name == "logits_grad") {
      const py::tuple shape = numpy("shape")(grad);
      const auto tokens = py::len(sequence[kIds.name]);
      require(shape.size() == 2 && shape[0].cast<size_t>() == tokens, Code::kInvalid,
              "engine: logits_grad of inputs[", index, "] has shape ", shown(py::list(shape)),
              ", it must be [", tokens, ", vocabulary]");
      grad = numpy("asarray")(grad).attr("reshape")(-1);
    }
    sequence[name.c_str()] = grad;
    ++index;
  }
}

}  // namespace twinkle::python::batch
