// twinkle._core.Batch, as_list and json_of: users' features as the engine's sequences, and the
// engine's vectors as arrays as long as the features; python/src/batch says what each does.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>

#include "python/src/batch/batch.h"
#include "python/src/batch/joined.h"

namespace py = pybind11;
using namespace py::literals;

void bind_batch(py::module_& m) {
  namespace here = twinkle::python::batch;
  using here::Batch;
  py::class_<Batch>(m, "Batch",
                    "Features as the engine's sequences. Packed ones are as many as they have "
                    "samples.")
      .def(py::init<const py::list&, bool>(), "features"_a, "marks"_a = false,
           "features: dicts with input_ids. marks: one label may stand for a whole sequence.")
      .def("__len__", &Batch::size)
      .def_property_readonly("features", &Batch::features, "A dict for each sequence.")
      .def_property_readonly("sequences", &Batch::sequences,
                             "As the engine's operations take them.")
      .def_property_readonly("num_tokens", &Batch::num_tokens, "Without those that a mask drops.")
      .def_property_readonly("num_labels", &Batch::num_labels, "Labels that are not -100.")
      .def("unlabelled", &Batch::unlabelled,
           "A warning of the first one without a label to learn from; empty: there is none.")
      .def("check_routes", &Batch::check_routes, "layers"_a, "k"_a,
           "Raises where routed_experts are not of so many layers, and so many experts a token.")
      .def("check_logits", &Batch::check_logits, "asked_by"_a, "vocabulary"_a,
           "Raises where logits of all positions take more than 1 GiB.")
      .def(
          "split",
          [](const py::object& self, const py::object& size) {
            const auto all = static_cast<py::ssize_t>(py::len(self));
            py::list out;
            if (size.is_none() || !(size < py::int_(all))) {
              out.append(self);
              return out;
            }
            const py::list features = self.attr("features");
            const auto step = size.cast<py::ssize_t>();
            for (py::ssize_t i = 0; i < all; i += step)
              out.append(Batch(features[py::slice(i, std::min(all, i + step), 1)], false));
            return out;
          },
          "size"_a, "Batches of at most so many sequences (None: all), in order.")
      .def("operation", &Batch::operation, "name"_a, "loss"_a, "given"_a, "grads"_a,
           "Fields of a tenant's forward or forward_backward, by name.")
      .def("scores", &Batch::scores, "result"_a, "Its result: only what was asked for.")
      .def("outputs", &Batch::outputs, "result"_a, "values"_a = false, "begin"_a = 0,
           "Tensors of what a loss in Python sees of a result, from that sequence of it on. "
           "values: of a value head.")
      .def("prompts", &Batch::prompts, "Fields of a Sample that finds the likeliest tokens.")
      .def("chosen", &Batch::chosen, "samples"_a,
           "The likeliest token of each label's place, of what that Sample gives; -1 elsewhere.")
      .def("with_extras", &Batch::with_extras, "columns"_a, "sequences"_a,
           "Sequences with a loss's inputs: tensors [B, longest] or [B] by name.")
      .def("with_gradients", &Batch::with_gradients, "grads"_a,
           "Sequences with the gradients of a loss by its outputs, by name.")
      .def("unscored", &Batch::unscored, "The sequences without labels.")
      .def("wide", &Batch::wide, "vectors"_a, "pad"_a,
           "An int64 tensor [B, longest, ...] of arrays [tokens, ...], `pad` elsewhere.")
      .def("tensors", &Batch::tensors,
           "For losses and metrics: tensors [B, longest] of input_ids, labels, attention_mask and, "
           "where there is one, loss_scale, as given.");
  m.def("as_list", &here::as_list, "inputs"_a, "what"_a,
        "Rows from one, a list of them, or sample responses.");
  m.def("joined", &here::joined, "of_ranks"_a, "rank"_a, "counts"_a, "named"_a, "cut"_a,
        "The arguments of a loss on several ranks as one.");
  m.def("part_of", &here::part_of, "arguments"_a, "begin"_a, "size"_a, "total"_a, "are_of_rows"_a,
        "The arguments of a loss for some of its sequences.");
  m.def("json_of", &here::json_of, "what"_a, "options"_a,
        "JSON text of a dict; '' of an empty one. Raises where a value is none of JSON's.");
  m.def("is_json", &here::is_json, "value"_a, "Whether JSON has it.");
}
