// The engine's losses and optimizers by name: checks of their options, losses' values and
// gradients, and what a script gives them besides its batch; and twinkle._core.Loop, a training
// loop as a value. What changes it returns the changed one, so that a script counts an operation,
// or does not, in one assignment.
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "python/src/json_caster.h"
#include "python/src/values/arrays.h"
#include "twinkle/engine/loop/loop.h"
#include "twinkle/loss/arguments/arguments.h"
#include "twinkle/loss/arguments/old_policy.h"
#include "twinkle/loss/vectors/vectors.h"
#include "twinkle/optim/optimizer.h"
#include "twinkle/optim/schedules/schedule.h"

namespace py = pybind11;
using namespace py::literals;

namespace twinkle::python {
namespace {

Json json_options(const std::string& text) {
  return text.empty() ? Json() : parse_json(text, "options");
}

// ---- arrays and tensors

template <class T>
at::Tensor view_of(const py::array& values) {
  const py::array_t<T, py::array::c_style | py::array::forcecast> array(values);
  const std::vector<int64_t> sizes(array.shape(), array.shape() + array.ndim());
  return at::from_blob(
      const_cast<T*>(array.data()), sizes, [array](void*) {}, c10::CppTypeToScalarType<T>::value);
}
// A tensor of an array's memory, or of a copy's: float32, float64, int64 or bool.
at::Tensor as_tensor(const py::object& given) {
  const py::array values(given);
  const char kind = values.dtype().kind();
  const auto size = values.itemsize();
  if (kind == 'b') return view_of<bool>(values);
  if (kind == 'i' || (kind == 'u' && size < 8)) return view_of<int64_t>(values);
  return kind == 'f' && size == 4 ? view_of<float>(values) : view_of<double>(values);
}

// Null: it has none.
py::object numpy_of(const py::handle& value) {
  const py::object convert = py::module_::import("numpy").attr("asarray");
  py::object given = py::reinterpret_borrow<py::object>(value);
  if (py::hasattr(given, "detach")) {  // torch's, which NumPy knows no half precision of
    given = given.attr("detach")().attr("cpu")();
    const bool is_float = given.attr("is_floating_point")().cast<bool>();
    if (is_float && given.attr("dtype").attr("itemsize").cast<int>() < 4)
      given = given.attr("float")();
  }
  auto made = py::reinterpret_steal<py::object>(PyObject_CallOneArg(convert.ptr(), given.ptr()));
  if (!made && !PyErr_ExceptionMatches(PyExc_Exception)) throw py::error_already_set();  // Ctrl-C
  if (!made) PyErr_Clear();
  return made;
}

// torch's tensor of one's memory; None: it is not defined.
py::object as_torch(const at::Tensor& values) {
  if (!values.defined()) return py::none();
  auto kept = std::make_unique<at::Tensor>(values.contiguous());
  const at::Tensor& whole = *kept;
  const std::vector<py::ssize_t> shape(whole.sizes().begin(), whole.sizes().end());
  const auto made = [&]<class T>(T) -> py::object {
    const py::capsule owner(kept.release(), [](void* tensor) {
      const std::unique_ptr<at::Tensor> owned(static_cast<at::Tensor*>(tensor));
    });
    const py::array_t<T> array(shape, whole.const_data_ptr<T>(), owner);
    return py::module_::import("torch").attr("from_numpy")(array);
  };
  if (whole.scalar_type() == at::kBool) return made(bool{});
  if (whole.scalar_type() == at::kLong) return made(int64_t{});
  return whole.scalar_type() == at::kFloat ? made(float{}) : made(double{});
}

// ---- what a script gives besides its batch

std::string short_repr(const py::handle& value) {
  return py::str(py::module_::import("twinkle.checks").attr("short")(value));
}

// A SampledSequence.logprobs, for each token [(token id, log p), ...]; empty: it is none.
std::vector<loss::OfToken> sampled_in(const py::handle& row) {
  std::vector<loss::OfToken> out;
  if (!is_list(row)) return {};
  for (const py::handle token : row) {
    if (!is_list(token) || py::len(token) == 0) return {};
    out.emplace_back();
    for (const py::handle pair : token) {
      if (!is_list(pair) || py::len(pair) != 2) return {};
      const py::object id = pair[py::int_(0)], logp = pair[py::int_(1)];
      if (!PyIndex_Check(id.ptr()) || !PyNumber_Check(logp.ptr())) return {};
      out.back().emplace_back(id.cast<int64_t>(), logp.cast<double>());
    }
  }
  return out;
}

loss::Entry entry_of(const py::handle& value) {
  if (value.is_none()) return {.told = "None", .is_none = true};
  if (auto sampled = sampled_in(value); !sampled.empty()) return {.sampled = std::move(sampled)};
  const py::object made = numpy_of(value);
  if (!made) return {.told = short_repr(value)};
  const py::array array(made);
  if (array.size() == 0)
    return {.numbers = at::empty(std::vector<int64_t>(array.shape(), array.shape() + array.ndim()),
                                 at::kDouble)};
  if (!std::strchr("fiub", array.dtype().kind())) return {.told = short_repr(value)};
  return {.numbers = as_tensor(made)};
}

loss::Given given_of(const std::string& name, const py::handle& value) {
  py::object entries = py::reinterpret_borrow<py::object>(value);
  if (name == loss::kOutputs)
    entries = py::isinstance<py::dict>(value) ? value.attr("get")("logps") : py::none();
  const py::handle given = entries;
  const bool is_number = py::getattr(given, "ndim", py::int_(1)).equal(py::int_(0));
  if (!py::hasattr(given, "__len__") || is_number || PyUnicode_Check(given.ptr()) ||
      PyBytes_Check(given.ptr()) || PyDict_Check(given.ptr()))
    return {.told = short_repr(value)};
  if (py::hasattr(given, "detach")) entries = numpy_of(given);
  loss::Given out;
  for (const py::handle one : entries) out.entries.push_back(entry_of(one));
  return out;
}

at::Tensor tensor_in(const py::object& inputs, const char* name) {
  const py::object value = inputs.attr("get")(name);
  return value.is_none() ? at::Tensor() : as_tensor(numpy_of(value));
}

loss::Labels labels_of(const py::object& inputs) {
  loss::Labels out = {.labels = tensor_in(inputs, "labels"),
                      .attention_mask = tensor_in(inputs, "attention_mask"),
                      .loss_scale = tensor_in(inputs, "loss_scale")};
  if (!out.labels.defined()) out.labels = tensor_in(inputs, "input_ids");
  return out;
}

py::object scored_labels(const py::object& inputs, const std::string& reader,
                         const std::string& must) {
  const loss::Must labels = must == "some"    ? loss::Must::kSome
                            : must == "pairs" ? loss::Must::kPairs
                                              : loss::Must::kAny;
  return as_torch(loss::scored(labels_of(inputs), reader, labels));
}

py::object label_rows(const std::string& name, const py::object& given, const py::object& inputs,
                      const py::object& mask, const std::string& type) {
  const auto rows = loss::label_rows(labels_of(inputs), as_tensor(numpy_of(mask)));
  const loss::Of of = type == "floats"     ? loss::Of::kFloats
                      : type == "logits"   ? loss::Of::kLogits
                      : type == "integers" ? loss::Of::kIntegers
                                           : loss::Of::kNumbers;
  return as_torch(loss::at_labels(name, given_of(name, given), rows, of));
}

py::dict loss_extras(const std::string& name, const std::string& options, const py::object& inputs,
                     const py::dict& given, const std::string& reader) {
  loss::LossCall call{.loss = name,
                      .reader = reader,
                      .options = json_options(options),
                      .labels = labels_of(inputs)};
  for (const auto& [key, value] : given) {
    const std::string argument = py::str(key);
    if (!value.is_none()) call.given[argument] = given_of(argument, value);
  }
  const loss::Loss* known = loss::look_up(name);
  py::dict out;
  for (const auto& [extra, values] : loss::extras_of(call)) {
    const bool is_flat = !known || loss::per_sequence(*known, extra);
    out[extra.c_str()] =
        as_torch(is_flat ? values : loss::spread(values, loss::scored(call.labels, reader)));
  }
  return out;
}

// ---- values and gradients

using Array = py::array_t<double, py::array::c_style | py::array::forcecast>;
using Tensors = std::map<std::string, py::object>;

// extras: [B, L], or [B] per sequence; and, in place of 1, the labels' "weights" [B, L].
py::tuple run_loss(const std::string& name, const std::string& options, const Tensors& extras,
                   const py::object& logps, const py::object& entropies, const py::object& scored) {
  const loss::Loss& named = loss::find(name);
  const Json json = json_options(options);
  const at::Tensor mask = as_tensor(numpy_of(scored)), ends = mask.sum(-1).cumsum(0);
  const auto at_mask = [&mask](const py::object& values) {
    const at::Tensor all = as_tensor(numpy_of(values)).to(at::kDouble);
    return all.dim() == 2 ? all.masked_select(mask) : all;
  };
  loss::Inputs in{.logprobs = at_mask(logps), .cu_seqlens = {0}};
  for (int64_t i = 0; i < ends.numel(); ++i) in.cu_seqlens.push_back(ends[i].item<int64_t>());
  for (const auto& [extra, values] : extras) in.extras[extra] = at_mask(values);
  const auto weights = in.extras.extract("weights");
  in.weights = weights ? weights.mapped().to(at::kFloat) : at::ones({in.logprobs.numel()});
  if (!entropies.is_none()) in.entropies = at_mask(entropies);
  const loss::Output out = loss::run(named, in, json);
  const auto grad_of = [&mask](const at::Tensor& rows) {
    return as_torch(rows.defined() ? loss::spread(rows.to(at::kDouble), mask) : rows);
  };
  return py::make_tuple(out.loss, grad_of(out.grad), grad_of(loss::entropy_grad(named, in, json)));
}

py::tuple run_vector_loss(const std::string& name, const std::string& options,
                          const Tensors& extras, const py::object& vectors) {
  loss::VectorExtras given;
  for (const auto& [extra, values] : extras) given[extra] = as_tensor(numpy_of(values));
  const loss::VectorLoss& named = loss::find_vectors(name);
  const at::Tensor rows = as_tensor(numpy_of(vectors));
  loss::OfVectors out;
  {
    const py::gil_scoped_release released;  // as autograd wants it
    out = named.run(rows, given, json_options(options));
  }
  return py::make_tuple(out.loss, as_torch(out.grad));
}

// The numbers of a sequence's field; none: it has none.
std::optional<Array> numbers_of(const py::dict& fields, const char* name) {
  if (!fields.contains(name)) return std::nullopt;
  return Array(py::object(fields[name]));
}

void add_gaps(const py::dict& sequence, const Array& logps, loss::Gaps& gaps) {
  const auto labels = numbers_of(sequence, "labels"), weights = numbers_of(sequence, "weights");
  if (!labels || !sequence.contains("extras")) return;
  const py::dict extras = sequence["extras"];
  std::optional<Array> old = numbers_of(extras, "old_logps"), advantages;
  if (!old && (old = numbers_of(extras, "logprobs")))
    advantages = numbers_of(extras, "advantages");  // Tinker's losses score prompts, too, with 0
  if (!old) return;
  for (py::ssize_t t = 0; t < labels->size(); ++t) {
    if (labels->at(t) == -100 || (weights && weights->at(t) == 0)) continue;
    if (!advantages || advantages->at(t) != 0) gaps.add(logps.at(t), old->at(t));
  }
}

// sequences: as the engine has taken them; logps: of each, what the policy says of its labels.
py::object ratio_warning(const py::list& sequences, const std::vector<Array>& logps) {
  loss::Gaps gaps;
  for (size_t i = 0; i < logps.size(); ++i) add_gaps(py::dict(sequences[i]), logps[i], gaps);
  if (gaps.count == 0) return py::none();
  return py::str(loss::ratio_warning(gaps));
}

void check_loss(const std::string& name, const std::string& options) {
  for (const loss::VectorLoss& one : loss::vector_losses())
    if (one.class_name == name) return one.check(json_options(options));
  loss::find(name).check(json_options(options));
}

std::string loss_table() {
  JsonObject options, out;
  for (const loss::Loss& one : loss::all())
    if (one.options) options[one.class_name] = one.options();
  for (const loss::VectorLoss& one : loss::vector_losses()) options[one.class_name] = one.options();
  for (const loss::ArgumentsOf& of : loss::all_arguments())
    out[of.loss] = JsonObject{{"arguments", JsonArray(of.rows.begin(), of.rows.end())},
                              {"numbers", JsonArray(of.numbers.begin(), of.numbers.end())},
                              {"options", options.at(of.loss)}};
  return pretty(out);
}

}  // namespace
}  // namespace twinkle::python

void bind_loss(py::module_& m) {
  namespace here = twinkle::python;
  m.def("check_loss", &here::check_loss, "name"_a, "options"_a = "",
        "Raises what is wrong with these options.");
  m.def("loss_table", &here::loss_table,
        "JSON: of each loss by its class's name the options in their order, the arguments of a "
        "call with an entry for each sequence, pair or label, and options that a call may give.");
  m.def("scored_labels", &here::scored_labels, "inputs"_a, "reader"_a, "must"_a = "",
        "[B, L] bool: the labels that count. must: 'some' of the batch, 'pairs' that have some.");
  m.def("label_rows", &here::label_rows, "name"_a, "given"_a, "inputs"_a, "mask"_a, "type"_a = "",
        "What `given` has for the labels [B, L] of mask, in order: [N] float64 of type '', or "
        "[N, K] of 'floats' and 'logits', float32, and 'integers', int64.");
  m.def("loss_extras", &here::loss_extras, "name"_a, "options"_a, "inputs"_a, "given"_a, "reader"_a,
        "{name: tensor} of what the loss reads of a call's arguments: [B, L], 0 where no label "
        "counts, or [B]; of a loss of vectors [N, K] of the labels that count.");
  m.def("run_loss", &here::run_loss, "name"_a, "options"_a, "extras"_a, "logps"_a,
        "entropies"_a = py::none(), py::kw_only(), "mask"_a,
        "The loss of the labels [B, L] of mask, and its gradients by log-probabilities and "
        "entropies (None: 0), float64. extras may have the labels' weights, too; without, 1.");
  m.def("run_vector_loss", &here::run_vector_loss, "name"_a, "options"_a, "extras"_a, "vectors"_a,
        "The loss of logits or embeddings, float32 or float64, and its gradient by them.");
  m.def("ratio_warning", &here::ratio_warning, "sequences"_a, "logps"_a,
        "A text where the policy is far from the one that sampled; '': near; None: no label has "
        "an old log-probability.");
}

void bind_optim(py::module_& m) {
  m.def("schedule_names", &twinkle::optim::schedule_names, "Names of the engine's schedules.");
  m.def(
      "check_optimizer",
      [](const std::string& name, const std::string& options) {
        return twinkle::optim::make(name, twinkle::python::json_options(options))->lr();
      },
      "name"_a, "options"_a = "", "The learning rate of these options; raises what is wrong.");
}

namespace twinkle::python {
namespace {

using engine::Loop;

constexpr const char* kOptimizer = "model: optimizer";
constexpr const char* kSchedule = "model: set_lr_scheduler";

Json object_of(const py::dict& given, const std::string& path) {
  return given.empty() ? Json() : to_json(given, path);
}

Json state_of(const py::dict& given) { return to_json(given, "model: a loop's state"); }

int64_t integer(const char* what, const py::object& value, int64_t least) {
  const py::object check = py::module_::import("twinkle.checks").attr("integer");
  return check(what, value, least, std::numeric_limits<int64_t>::max()).cast<int64_t>();
}

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
          [](const Loop& l, const py::object& micro_batches) {
            if (micro_batches.is_none()) return l;
            const int64_t count = integer("model: gradient_accumulation_steps", micro_batches, 1);
            return changed(l, [&](Loop& out) { out.set_accumulation(count); });
          },
          "micro_batches"_a, "None leaves it.");
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
          "state",
          [](const Loop& l, const py::object& samples) {
            return from_json(l.state(integer("model: consumed_train_samples", samples, 0)));
          },
          "consumed_train_samples"_a, "What a save carries, as a dict.")
      .def(
          "state_in",
          [](const Loop& l, const std::filesystem::path& directory) {
            const Json state = engine::loop_state_in(directory, engine::LoopFormat::kVersioned);
            l.check(state);
            return from_json(state);
          },
          "directory"_a,
          "As loop_state_in. Raises where it is of another format, optimizer or schedule.")
      .def(
          "with_state",
          [](const Loop& l, const py::dict& state) {
            return changed(l, [&](Loop& out) { out.load(state_of(state)); });
          },
          "state"_a);
  m.def(
      "loop_state_in",
      [](const std::filesystem::path& directory) {
        return from_json(engine::loop_state_in(directory, engine::LoopFormat::kAny));
      },
      "directory"_a,
      "The loop's state that a saved directory carries, a dict, of any format; empty: none.");
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
