// Rows of what a script calls its inputs.
#include "python/src/batch/batch.h"
#include "twinkle/base/error.h"

namespace twinkle::python::batch {
namespace {

// A function of this module, which another file binds.
py::object of_core(const char* name) { return py::module_::import("twinkle._core").attr(name); }

// The rows of a sample response; of another item itself, or the feature that it carries.
void add_rows(py::list& rows, const py::object& item) {
  if (!py::hasattr(item, "sequences")) {
    rows.append(py::getattr(item, "new_input_feature", item));
    return;
  }
  for (const py::handle sequence : item.attr("sequences")) {
    const py::object feature = sequence.attr("new_input_feature");
    require(!feature.is_none(), Code::kInvalid,
            "model: a sample response has no new_input_feature, set the sampler's template");
    rows.append(feature);
  }
}

[[noreturn]] void refuse_row(const std::string& place, const py::object& item) {
  // The first one of a list of messages says what it is.
  const bool is_talk = PyList_Check(item.ptr()) && py::len(item) > 0;
  const py::object row = is_talk ? py::object(item[py::int_(0)]) : item;
  fail(Code::kInvalid, place,
       " must be an InputFeature with input_ids or a Trajectory with messages",
       py::isinstance<py::dict>(row) ? shown(of_core("in_place_of_messages")(row)) : "");
}

}  // namespace

py::list as_list(const py::object& inputs, const std::string& what) {
  require(!inputs.is_none(), Code::kInvalid, what, " is missing, pass ",
          what.substr(what.find(' ') + 1), "=batch");
  py::list out;
  if (py::isinstance<py::dict>(inputs) || py::hasattr(inputs, "sequences")) {
    add_rows(out, inputs);
  } else {
    if (!py::hasattr(inputs, "__iter__") || PyUnicode_Check(inputs.ptr()) ||
        PyBytes_Check(inputs.ptr()) || PyType_Check(inputs.ptr()))
      checks("refuse")(what, inputs, "a dict, a list of dicts, or sample responses");
    for (const py::handle item : inputs) add_rows(out, py::reinterpret_borrow<py::object>(item));
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const std::string place = what + "[" + std::to_string(i) + "]";
    const py::object item = out[i];
    const bool is_row = py::isinstance<py::dict>(item);
    const bool has_ids = is_row && item.contains("input_ids");
    const bool is_known = has_ids || (is_row && item.contains("messages"));
    if (!is_known && !(is_row && of_core("is_read_as_chat")(item).cast<bool>()))
      refuse_row(place, item);
    if (has_ids) of_core("refuse_misspelt")(place, item);  // a template makes other rows' fields
  }
  return out;
}

}  // namespace twinkle::python::batch
