// _core.tool_format(name): a format of tool calls in a model's text, of twinkle/text/tools.
#include "twinkle/text/tools/format.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "python/src/json_caster.h"

namespace py = pybind11;

void bind_tool_formats(py::module_& m);

namespace twinkle::python {
namespace {

std::string_view reply_of(const py::str& text) { return utf8(text, "template: the reply"); }

// ToolCalls, as messages have them. Python reads the arguments, which may have numbers of any size.
py::list calls_of(const text::ToolFormat& self, const py::str& text) {
  using namespace py::literals;
  const py::object loads = py::module_::import("json").attr("loads");
  py::list out;
  for (const text::ToolCall& call : self.calls(reply_of(text)))
    out.append(py::dict(
        "type"_a = "function",
        "function"_a = py::dict("name"_a = call.name, "arguments"_a = loads(call.arguments))));
  return out;
}

}  // namespace
}  // namespace twinkle::python

void bind_tool_formats(py::module_& m) {
  using twinkle::text::ToolFormat;
  namespace here = twinkle::python;
  py::class_<ToolFormat>(m, "ToolFormat", "A way in which models write tool calls.")
      .def("detect", [](const ToolFormat& self,
                        const py::str& text) { return self.is_in(here::reply_of(text)); })
      .def("parse", &here::calls_of)
      .def("clean", [](const ToolFormat& self,
                       const py::str& text) { return self.cleaned(here::reply_of(text)); })
      .def("extract_tool_result", [](const ToolFormat& self, const py::str& text) {
        return self.result_in(here::reply_of(text));
      });
  m.def("tool_format", &twinkle::text::tool_format, py::arg("name"),
        py::return_value_policy::reference, "One of the built-in formats, by its name.");
}
