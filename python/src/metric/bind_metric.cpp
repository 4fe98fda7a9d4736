// twinkle._core.Metric: a metric of the engine, by the name of its class.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "python/src/json_caster.h"
#include "twinkle/metric/metric.h"

namespace py = pybind11;
using namespace py::literals;

namespace twinkle::python {
namespace {

using ReadNames = std::vector<std::string_view>;
using Doubles = py::array_t<double, py::array::c_style | py::array::forcecast>;

// A metric, and of what it was made.
struct OwnMetric {
  const metric::Kind& kind;
  py::dict options;
  std::unique_ptr<metric::Metric> own;
};

std::unique_ptr<OwnMetric> metric_of(const std::string& name, const py::dict& options) {
  const metric::Kind& kind = metric::find(name);
  const Json json = to_json(options, "metric: " + name);
  return std::make_unique<OwnMetric>(kind, options, kind.make(json.get_object(), kind.class_name));
}

// Calls f(name, value) for those of the names under which a script gives something but None.
template <class F>
void for_each_given(const py::dict& given, const ReadNames& names, F&& f) {
  for (const std::string_view name : names) {
    const py::str key(name.data(), name.size());
    if (given.contains(key) && !given[key].is_none()) f(std::string(name), py::object(given[key]));
  }
}

// A tensor of torch, or an array, as one of the engine, which `kept` holds. Nothing else is read.
void add_tensor(const std::string& name, py::object value, metric::Batch& batch,
                std::vector<Doubles>& kept) {
  if (!py::hasattr(value, "ndim")) return;
  if (py::hasattr(value, "detach"))
    value = value.attr("detach")().attr("cpu")().attr("double")().attr("numpy")();
  const Doubles& array = kept.emplace_back(value);
  const std::vector<int64_t> sizes(array.shape(), array.shape() + array.ndim());
  batch.tensors[name] = at::from_blob(const_cast<double*>(array.data()), sizes, at::kDouble);
}

void accumulate_given(OwnMetric& metric, const py::dict& given, std::vector<int64_t> counts) {
  metric::Batch batch{.counts = std::move(counts)};
  std::vector<Doubles> kept;
  const metric::Kind& kind = metric.kind;
  for (const ReadNames& names : {kind.inputs, kind.outputs, kind.arguments})
    for_each_given(given, names, [&](const std::string& name, const py::object& value) {
      add_tensor(name, value, batch, kept);
    });
  for_each_given(given, kind.numbers, [&](const std::string& name, const py::object& value) {
    const bool is_scalar = py::hasattr(value, "item") && py::hasattr(value, "__float__");
    batch.numbers[name] =
        is_scalar ? Json(py::float_(value).cast<double>()) : to_json(value, "metric: " + name);
  });
  metric.own->accumulate(batch);
}

template <auto names>
ReadNames names_read(const OwnMetric& metric) {
  return metric.kind.*names;
}

}  // namespace
}  // namespace twinkle::python

void bind_metric(py::module_& m) {
  using twinkle::Json;
  using twinkle::metric::Kind;
  using namespace twinkle::python;
  m.def(
      "metric_options",
      [] {
        twinkle::JsonObject out;
        for (const Kind& kind : twinkle::metric::all()) out[kind.class_name] = kind.options();
        return from_json(out);
      },
      "The options of each metric by its class's name, in the order of its arguments.");
  py::class_<OwnMetric>(m, "Metric")
      .def(py::init(&metric_of), "name"_a, "options"_a, "By its class's name; a copy begins anew.")
      .def("__reduce__",
           [](const py::object& self) {
             const auto& metric = self.cast<const OwnMetric&>();
             return py::make_tuple(py::type::of(self),
                                   py::make_tuple(metric.kind.class_name, metric.options));
           })
      .def_property_readonly("outputs", &names_read<&Kind::outputs>, "The outputs that it reads.")
      .def_property_readonly("arguments", &names_read<&Kind::arguments>,
                             "Those of the loss's arguments.")
      .def("accumulate", &accumulate_given, "given"_a, "counts"_a = std::vector<int64_t>(),
           "Takes tensors and numbers by name; counts: labels of each sequence.")
      .def(
          "on_step",
          [](OwnMetric& metric, std::optional<double> grad_norm, const py::object& lr,
             int64_t iters) {
            metric.own->on_step(
                {.grad_norm = grad_norm, .lr = to_json(lr, "metric: lr"), .iters = iters});
          },
          "grad_norm"_a, "lr"_a, "iters"_a)
      .def("calculate", [](const OwnMetric& metric) { return from_json(metric.own->calculate()); })
      .def("reset", [](OwnMetric& metric) { metric.own->reset(); });
}
