// The engine's losses and optimizers by name: checks of their options, losses' values and
// gradients, and the numbers that a script gives for the labels of a batch; and twinkle._core.Loop,
// a training loop as a value. What changes it returns the changed one, so that a script counts an
// operation, or does not, in one assignment.
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "python/src/json_caster.h"
#include "twinkle/engine/loop/loop.h"
#include "twinkle/loss/loss.h"
#include "twinkle/loss/vectors/vectors.h"
#include "twinkle/optim/optimizer.h"
#include "twinkle/optim/schedules/schedule.h"

namespace py = pybind11;
using namespace py::literals;
using twinkle::Code;
using twinkle::require;

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

// A tensor of an array's memory.
template <class T>
at::Tensor view_of(const py::array_t<T, py::array::c_style | py::array::forcecast>& values) {
  const std::vector<int64_t> sizes(values.shape(), values.shape() + values.ndim());
  return at::from_blob(const_cast<T*>(values.data()), sizes, c10::CppTypeToScalarType<T>::value);
}
// The same of an array of float32, float64 or int64, which `kept` holds.
at::Tensor view_of(const py::array& values, std::vector<py::array>& kept) {
  const auto taken = [&]<class T>(T) {
    py::array_t<T, py::array::c_style | py::array::forcecast> array(values);
    kept.push_back(array);
    return view_of<T>(array);
  };
  const char kind = values.dtype().kind();
  if (kind == 'i') return taken(int64_t{});
  return values.itemsize() == 4 ? taken(0.0F) : taken(0.0);
}

py::tuple run_vector_loss(const std::string& name, const std::string& options,
                          const std::map<std::string, py::array>& extras,
                          const py::array& vectors) {
  std::vector<py::array> kept;
  twinkle::loss::VectorExtras given;
  for (const auto& [extra, values] : extras) given[extra] = view_of(values, kept);
  const twinkle::loss::VectorLoss& loss = twinkle::loss::find_vectors(name);
  const at::Tensor rows = view_of(vectors, kept);
  twinkle::loss::OfVectors out;
  {
    const py::gil_scoped_release released;  // as autograd wants it
    out = loss.run(rows, given, json_options(options));
  }
  py::array grad(vectors.dtype(),
                 std::vector<py::ssize_t>(vectors.shape(), vectors.shape() + vectors.ndim()));
  std::memcpy(grad.mutable_data(), out.grad.contiguous().const_data_ptr(),
              static_cast<size_t>(grad.nbytes()));
  return py::make_tuple(out.loss, grad);
}

// ---- numbers for labels

using Labels = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;
using Mask = py::array_t<bool, py::array::c_style | py::array::forcecast>;

constexpr double kLeftOut = -std::numeric_limits<double>::infinity();

[[noreturn]] void refuse(const std::string& what, const py::handle& value, const char* must) {
  py::module_::import("twinkle.checks").attr("refuse")(what, value, must);
  throw py::error_already_set();  // refuse() has raised
}

// The labels of one sequence that count.
struct Sequence {
  std::string what;              // "loss: old_logps of inputs[0]"
  std::vector<int64_t> at, ids;  // their positions and tokens
  int64_t length;                // positions without the padding behind
};

std::vector<Sequence> sequences_of(const std::string& name, const Labels& labels, const Mask& mask,
                                   const std::optional<Mask>& attended) {
  std::vector<Sequence> out;
  for (py::ssize_t i = 0; i < labels.shape(0); ++i) {
    Sequence one{.what = "loss: " + name + " of inputs[" + std::to_string(i) + "]",
                 .length = attended ? 0 : labels.shape(1)};
    for (py::ssize_t t = 0; t < labels.shape(1); ++t) {
      if (attended && *attended->data(i, t)) one.length = t + 1;
      if (!*mask.data(i, t)) continue;
      one.at.push_back(t);
      one.ids.push_back(*labels.data(i, t));
    }
    out.push_back(std::move(one));
  }
  return out;
}

bool is_list(const py::handle& value) {
  return PyList_Check(value.ptr()) || PyTuple_Check(value.ptr());
}

// True if it has the form of SampledSequence.logprobs: of each token [(token id, log p), ...].
bool is_sampled(const py::handle& row) {
  if (!is_list(row) || py::len(row) == 0) return false;
  for (const py::handle entry : row) {
    if (!is_list(entry) || py::len(entry) == 0) return false;
    for (const py::handle pair : entry)
      if (!is_list(pair) || py::len(pair) != 2) return false;
  }
  return true;
}

// The log-probability of each label among those of its token.
py::list of_sampled(const Sequence& sequence, const py::handle& row) {
  require(py::len(row) == sequence.ids.size(), Code::kInvalid, sequence.what,
          " has the log-probabilities of ", py::len(row), " sampled tokens for ",
          sequence.ids.size(),
          " labels, they must be equally many: train on the new_input_feature that came with them");
  py::list out;
  for (size_t i = 0; i < sequence.ids.size(); ++i) {
    const py::object entry = row[py::int_(i)];
    py::object found = py::none();
    py::list tokens;
    for (const py::handle pair : entry) {
      const py::object token = pair[py::int_(0)];
      tokens.append(token);
      if (token.equal(py::int_(sequence.ids[i]))) found = pair[py::int_(1)];
    }
    if (found.is_none()) {
      const py::object shown =
          py::module_::import("twinkle.checks")
              .attr("short")(py::len(tokens) > 1 ? py::object(tokens) : py::object(tokens[0]));
      twinkle::fail(Code::kInvalid, sequence.what, " has at ", i, " the log-probability of token",
                    py::len(tokens) > 1 ? "s " : " ", std::string(py::str(shown)),
                    ", but the label is ", sequence.ids[i],
                    ": train on the new_input_feature that came with it");
    }
    out.append(found);
  }
  return out;
}

// Any numbers, as they are.
py::array numbers_of(const Sequence& sequence, const py::handle& row) {
  const py::object convert = py::module_::import("numpy").attr("asarray");
  const auto made =
      py::reinterpret_steal<py::object>(PyObject_CallOneArg(convert.ptr(), row.ptr()));
  if (!made) {
    PyErr_Clear();
    refuse(sequence.what, row, "a number or a list of numbers");
  }
  const py::array out(made);
  const char kind = out.dtype().kind();
  if (kind != 'f' && kind != 'i' && kind != 'u' && kind != 'b' && out.size() > 0)
    refuse(sequence.what, row, "a number or a list of numbers");
  return out;
}

template <class T>
void check_finite(const std::string& what, const py::array_t<T>& values, bool masked) {
  const auto width = values.ndim() == 2 ? values.shape(1) : 1;
  for (py::ssize_t i = 0; i < values.size(); i += width) {
    bool any_left = false;
    for (py::ssize_t j = i; j < i + width; ++j) {
      const auto value = static_cast<double>(values.data()[j]);
      require(std::isfinite(value) || (masked && value == kLeftOut), Code::kInvalid, what,
              " has an entry that is nan or inf, all must be finite",
              masked ? ", or -inf for a probability of 0" : "");
      any_left = any_left || value != kLeftOut;
    }
    require(any_left, Code::kInvalid, what,
            " has a label of which every entry is -inf, at least one must be finite");
  }
}

// [n] or [n, K] of the sequence's labels.
template <class T>
py::array_t<T> at_labels(const Sequence& sequence, const py::handle& given, bool is_wide) {
  using Values = py::array_t<T, py::array::c_style | py::array::forcecast>;
  py::array row = numbers_of(sequence, given);
  const auto n = static_cast<py::ssize_t>(sequence.at.size());
  if (!is_wide && row.size() == 1) {
    py::array_t<T> out(n);
    std::fill_n(out.mutable_data(), n, *Values(row.reshape({1})).data());
    return out;
  }
  if (!is_wide && row.ndim() == 2 && row.shape(0) == 1) row = row.reshape({row.size()});
  require(row.ndim() == (is_wide ? 2 : 1), Code::kInvalid, sequence.what, " has shape ",
          std::string(py::str(py::list(row.attr("shape")))), ", it must be ",
          is_wide ? "[entries, K]" : "one number, or a list of them");
  const py::ssize_t entries = row.shape(0);
  require(entries == n || entries >= sequence.length, Code::kInvalid, sequence.what, " has ",
          entries, " entries, it must have one for each of its ", n, " labels, or for each of its ",
          sequence.length, " positions");
  if (entries == n) return Values(row);
  const py::array_t<int64_t> at(n, sequence.at.data());
  return Values(row[at]);
}

template <class T>
py::object of_all(const std::vector<Sequence>& sequences, const py::handle& given, bool is_wide,
                  bool masked) {
  py::list parts;
  size_t i = 0;
  for (const py::handle one : given) {
    const Sequence& sequence = sequences[i++];
    const py::object row = !is_wide && is_sampled(one) ? py::object(of_sampled(sequence, one))
                                                       : py::reinterpret_borrow<py::object>(one);
    const auto values = at_labels<T>(sequence, row, is_wide);
    if (!std::is_integral_v<T>) check_finite(sequence.what, values, masked);
    parts.append(values);
  }
  if (py::len(parts) == 0) return py::array_t<T>(0);
  return py::module_::import("numpy").attr("concatenate")(parts);
}

void check_entries(const std::string& name, const py::handle& given, py::ssize_t count,
                   const char* of_each) {
  const bool has_none = py::hasattr(given, "ndim") && given.attr("ndim").cast<int>() == 0;
  if (!py::hasattr(given, "__len__") || has_none || PyUnicode_Check(given.ptr()) ||
      PyBytes_Check(given.ptr()) || PyDict_Check(given.ptr()))
    refuse("loss: " + name, given,
           (std::string("a list or tensor with an entry for each ") + of_each).c_str());
  require(static_cast<py::ssize_t>(py::len(given)) == count, Code::kInvalid, "loss: ", name,
          " has ", py::len(given), " entries for ", count, " ", of_each,
          "s, they must be equally many");
}

py::object labels_rows(const std::string& name, const py::object& given, const Labels& labels,
                       const Mask& mask, const std::optional<Mask>& attended,
                       const std::string& kind) {
  check_entries(name, given, labels.shape(0), "sequence");
  const std::vector<Sequence> sequences = sequences_of(name, labels, mask, attended);
  if (kind.empty()) return of_all<double>(sequences, given, false, false);
  if (kind == "integers") return of_all<int64_t>(sequences, given, true, false);
  return of_all<float>(sequences, given, true, kind == "logits");
}

py::array_t<double> pair_numbers(const std::string& name, const py::object& given,
                                 py::ssize_t pairs) {
  check_entries(name, given, pairs, "pair");
  py::array_t<double> out(pairs);
  py::ssize_t i = 0;
  for (const py::handle one : given) {
    const Sequence sequence{.what = "loss: " + name + "[" + std::to_string(i) + "]", .length = 1};
    py::array value = numbers_of(sequence, one);
    require(value.size() == 1, Code::kInvalid, sequence.what, " has ", value.size(),
            " entries, it must be one number, the sum over the reply's labels; log-probabilities "
            "of each label go into ref_logps, of both replies");
    const auto number = py::array_t<double>(value.reshape({1}));
    check_finite<double>(sequence.what, number, false);
    out.mutable_data()[i++] = *number.data();
  }
  return out;
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
      "loss_options",
      [] {
        twinkle::JsonObject out;
        for (const twinkle::loss::Loss& loss : twinkle::loss::all())
          if (loss.options) out[loss.class_name] = loss.options();
        for (const twinkle::loss::VectorLoss& loss : twinkle::loss::vector_losses())
          out[loss.class_name] = loss.options();
        return twinkle::pretty(out);
      },
      "JSON: the options of each loss by its class's name, in the order of its arguments.");
  m.def(
      "per_sequence",
      [](const std::string& name, const std::string& extra) {
        const twinkle::loss::Loss* loss = twinkle::loss::look_up(name);
        return loss && twinkle::loss::per_sequence(*loss, extra);
      },
      "name"_a, "extra"_a, "Whether the loss reads one number a sequence of it, not one a label.");
  m.def("label_rows", &labels_rows, "name"_a, "given"_a, "labels"_a, "mask"_a, "attended"_a,
        "kind"_a,
        "What `given` has for the labels [B, L] of mask, in order: [N] float64 of kind '', or "
        "[N, K] of 'floats' and 'logits', float32, and 'integers', int64.");
  m.def("pair_numbers", &pair_numbers, "name"_a, "given"_a, "pairs"_a,
        "[pairs] float64 of one number for each pair of sequences.");
  m.def(
      "run_loss", &run_loss, "name"_a, "options"_a, "counts"_a, "extras"_a, "logps"_a,
      "entropies"_a = py::none(),
      "The loss of rows, so many a sequence, and its gradients by log-probabilities and entropies "
      "(None: 0), in float64. extras may have the rows' weights, too; without, they are 1.");
  m.def("run_vector_loss", &run_vector_loss, "name"_a, "options"_a, "extras"_a, "vectors"_a,
        "The loss of logits or embeddings, float32 or float64, and its gradient by them.");
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
