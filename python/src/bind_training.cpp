// The engine's losses and optimizers by name: checks of their options, losses' values and
// gradients, and the names of schedules.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "twinkle/loss/loss.h"
#include "twinkle/optim/optimizer.h"
#include "twinkle/optim/schedules/schedule.h"

namespace py = pybind11;
using namespace py::literals;

namespace {

using Array = py::array_t<double, py::array::c_style | py::array::forcecast>;

twinkle::Json json_options(const std::string& text) {
  return text.empty() ? twinkle::Json() : twinkle::parse_json(text, "options");
}

at::Tensor tensor_of(const Array& values) {
  return at::from_blob(const_cast<double*>(values.data()), {values.size()}, at::kDouble).clone();
}

py::object array_of(const at::Tensor& values) {
  if (!values.defined()) return py::none();
  const at::Tensor wide = values.to(at::kDouble).contiguous();
  return py::array_t<double>(wide.numel(), wide.const_data_ptr<double>());
}

py::tuple run_loss(const std::string& name, const std::string& options,
                   const std::vector<int64_t>& counts, const std::map<std::string, Array>& extras,
                   const Array& logps, const std::optional<Array>& entropies) {
  const twinkle::loss::Loss& loss = twinkle::loss::find(name);
  const twinkle::Json json = json_options(options);
  twinkle::loss::Inputs in{
      .logprobs = tensor_of(logps), .weights = at::ones({logps.size()}), .cu_seqlens = {0}};
  for (const int64_t count : counts) in.cu_seqlens.push_back(in.cu_seqlens.back() + count);
  for (const auto& [extra, values] : extras) {
    if (extra == "weights")
      in.weights = tensor_of(values).to(at::kFloat);
    else
      in.extras[extra] = tensor_of(values);
  }
  if (entropies) in.entropies = tensor_of(*entropies);
  const twinkle::loss::Output out = twinkle::loss::run(loss, in, json);
  return py::make_tuple(out.loss, array_of(out.grad),
                        array_of(twinkle::loss::entropy_grad(loss, in, json)));
}

}  // namespace

void bind_loss(py::module_& m) {
  m.def(
      "check_loss",
      [](const std::string& name, const std::string& options) {
        twinkle::loss::find(name).check(json_options(options));
      },
      "name"_a, "options"_a = "", "Raises what is wrong with these options.");
  m.def(
      "per_sequence",
      [](const std::string& name, const std::string& extra) {
        const twinkle::loss::Loss* loss = twinkle::loss::look_up(name);
        return loss && twinkle::loss::per_sequence(*loss, extra);
      },
      "name"_a, "extra"_a, "Whether the loss reads one number a sequence of it, not one a label.");
  m.def(
      "run_loss", &run_loss, "name"_a, "options"_a, "counts"_a, "extras"_a, "logps"_a,
      "entropies"_a = py::none(),
      "The loss of rows, so many a sequence, and its gradients by log-probabilities and entropies "
      "(None: 0), in float64. extras may have the rows' weights, too; without, they are 1.");
}

void bind_optim(py::module_& m) {
  m.def("schedule_names", &twinkle::optim::schedule_names, "Names of the engine's schedules.");
  m.def(
      "check_optimizer",
      [](const std::string& name, const std::string& options) {
        return twinkle::optim::make(name, json_options(options))->lr();
      },
      "name"_a, "options"_a = "", "The learning rate of these options; raises what is wrong.");
}
