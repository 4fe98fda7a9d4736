#include "python/src/data/pictures.h"

#include <utility>

#include "twinkle/data/preprocessors/pictures.h"

namespace py = pybind11;

namespace twinkle::python {

py::object Pictures::taken_out_of(const py::handle& row) {
  py::object out = py::reinterpret_borrow<py::object>(row);
  if (!py::isinstance<py::dict>(row)) return out;
  for (const std::string_view column : data::kPictureColumns) {
    const py::str name(column.data(), column.size());
    const auto fields = row.cast<py::dict>();
    if (!fields.contains(name) || fields[name].is_none() || py::isinstance<py::str>(fields[name]))
      continue;
    if (taken_.empty()) out = row.attr("copy")();
    out[name] = mark(taken_.size());
    taken_.emplace_back(fields[name]);
  }
  return out;
}

py::object Pictures::put_into(py::object made) const {
  if (taken_.empty() || !made.contains("messages")) return made;
  for (const py::handle message : made["messages"]) {
    const py::object content = message.attr("get")("content");
    if (!py::isinstance<py::list>(content)) continue;
    for (const py::handle part : content) {
      if (!py::isinstance<py::dict>(part)) continue;
      const py::object image = part.attr("get")("image");
      for (size_t i = 0; i < taken_.size(); ++i)
        if (image.equal(py::str(mark(i)))) part.attr("__setitem__")("image", taken_[i]);
    }
  }
  return made;
}

}  // namespace twinkle::python
