// twinkle._core.Loop: a training loop as a value. What changes it returns the changed one, so that
// a script counts an operation, or does not, in one assignment.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <string>

#include "python/src/json_caster.h"
#include "twinkle/engine/loop/loop.h"

namespace py = pybind11;
using namespace py::literals;

namespace twinkle::python {
namespace {

using engine::Loop;

constexpr const char* kOptimizer = "model: optimizer";
constexpr const char* kSchedule = "model: set_lr_scheduler";

Json object_of(const py::dict& given, const std::string& path) {
  return given.empty() ? Json() : to_json(given, path);
}

Json state_of(const py::dict& given) { return to_json(given, "model: a loop's state"); }

template <class Change>
Loop changed(const Loop& loop, const Change& change) {
  Loop out = loop;
  change(out);
  return out;
}

template <auto Member>
auto counter() {
  return [](const Loop& loop) { return loop.progress().*Member; };
}

void bind_settings(py::class_<Loop>& loop) {
  loop.def(py::init<>(), "AdamW, a constant rate, a step for each micro-batch.")
      .def_property_readonly("optimizer", &Loop::optimizer, "Its name.")
      .def_property_readonly(
          "options", [](const Loop& l) { return from_json(l.options()); }, "The optimizer's.")
      .def_property_readonly(
          "lr_scheduler",
          [](const Loop& l) {
            return l.schedule().empty() ? py::object(py::none()) : py::str(l.schedule());
          },
          "The schedule's name; None: a constant rate.")
      .def_property_readonly(
          "schedule_options", [](const Loop& l) { return from_json(l.schedule_options()); },
          "Those that a save keeps.")
      .def_property_readonly("gradient_accumulation_steps", &Loop::accumulation,
                             "Micro-batches of one step.")
      .def_property_readonly("lr", py::overload_cast<>(&Loop::lr, py::const_), "Of the next step.")
      .def(
          "with_optimizer",
          [](const Loop& l, const std::string& name, const py::dict& options) {
            const Json json = object_of(options, kOptimizer);
            return changed(l, [&](Loop& out) { out.set_optimizer(name, json); });
          },
          "name"_a, "options"_a, "One of the engine's.")
      .def(
          "with_schedule",
          [](const Loop& l, const std::string& name, const py::dict& options) {
            const Json json = object_of(options, kSchedule);
            return changed(l, [&](Loop& out) { out.set_schedule(name, json); });
          },
          "name"_a, "options"_a, "One of the engine's, from its beginning.")
      .def(
          "with_rate",
          [](const Loop& l, const std::string& name, const py::dict& options,
             optim::Schedule rate) {
            const Json json = object_of(options, kSchedule);
            return changed(l, [&](Loop& out) { out.set_schedule(name, json, std::move(rate)); });
          },
          "name"_a, "options"_a, "rate"_a, "A schedule of one's own: rate(base_lr, step).")
      .def(
          "with_accumulation",
          [](const Loop& l, int64_t micro_batches) {
            return changed(l, [&](Loop& out) { out.set_accumulation(micro_batches); });
          },
          "micro_batches"_a);
}

void bind_progress(py::class_<Loop>& loop) {
  using engine::Progress;
  loop.def_property_readonly("cur_step", counter<&Progress::cur_step>(), "Micro-batches, ever.")
      .def_property_readonly("accumulated", counter<&Progress::accumulated>(),
                             "Micro-batches since the last step.")
      .def_property_readonly("iters", counter<&Progress::iters>(), "Optimizer steps.")
      .def_property_readonly("lr_step", counter<&Progress::lr_step>(), "Steps of the schedule.")
      .def_property_readonly("just_stepped", counter<&Progress::just_stepped>(),
                             "Whether nothing came since a step.")
      .def_property_readonly("grad_norm", counter<&Progress::grad_norm>(),
                             "Of the last step, before clipping; None: there was none.")
      .def_property_readonly("at_boundary", &Loop::at_boundary,
                             "Whether as many micro-batches are accumulated as a step takes.")
      .def(
          "step",
          [](const Loop& l, const py::dict& given) {
            const Json options = object_of(given, kOptimizer);
            engine::Step step = l.step(options);
            return py::make_tuple(
                py::dict("optimizer"_a = step.optimizer, "options"_a = step.options),
                l.lr(options));
          },
          "given"_a, "(optimizer and options of the next step, by name; its learning rate).")
      .def("with_micro_batch",
           [](const Loop& l) { return changed(l, [](Loop& out) { out.add_micro_batch(); }); })
      .def(
          "with_clip",
          [](const Loop& l, double norm) {
            return changed(l, [&](Loop& out) { out.add_clip(norm); });
          },
          "norm"_a)
      .def(
          "with_step",
          [](const Loop& l, const py::dict& given, double norm, int64_t schedule_steps) {
            const Json options = object_of(given, kOptimizer);
            return changed(l, [&](Loop& out) { out.add_step(options, norm, schedule_steps); });
          },
          "given"_a, "norm"_a, "schedule_steps"_a)
      .def("with_lr_step",
           [](const Loop& l) { return changed(l, [](Loop& out) { out.add_lr_step(); }); })
      .def("without_gradients",
           [](const Loop& l) { return changed(l, [](Loop& out) { out.forget_gradients(); }); })
      .def("from_the_start",
           [](const Loop& l) { return changed(l, [](Loop& out) { out.forget_all(); }); })
      .def("with_weights",
           [](const Loop& l) { return changed(l, [](Loop& out) { out.load_weights(); }); });
}

void bind_state(py::module_& m, py::class_<Loop>& loop) {
  loop.def(
          "state", [](const Loop& l, int64_t samples) { return from_json(l.state(samples)); },
          "consumed_train_samples"_a, "What a save carries, as a dict.")
      .def(
          "check", [](const Loop& l, const py::dict& state) { l.check(state_of(state)); },
          "state"_a, "Raises where the state is of another optimizer or schedule.")
      .def(
          "with_state",
          [](const Loop& l, const py::dict& state) {
            return changed(l, [&](Loop& out) { out.load(state_of(state)); });
          },
          "state"_a);
  m.def(
      "loop_state_in",
      [](const std::filesystem::path& directory, bool versioned) {
        return from_json(engine::loop_state_in(
            directory, versioned ? engine::LoopFormat::kVersioned : engine::LoopFormat::kAny));
      },
      "directory"_a, "versioned"_a,
      "The loop's state that a saved directory carries, a dict; empty: none. versioned: another "
      "format is refused.");
}

}  // namespace
}  // namespace twinkle::python

void bind_loop(py::module_& m) {
  namespace here = twinkle::python;
  py::class_<twinkle::engine::Loop> loop(
      m, "Loop", "A training loop beside its tenant: settings and counters, a value.");
  here::bind_settings(loop);
  here::bind_progress(loop);
  here::bind_state(m, loop);
}
