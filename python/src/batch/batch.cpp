#include "python/src/batch/batch.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/engine/protocol/operation.h"

namespace twinkle::python::batch {
namespace {

using namespace py::literals;

py::object tensor_of(const py::object& array) {
  return py::module_::import("torch").attr("from_numpy")(array);
}

void check_positions(const std::vector<int64_t>& positions, size_t index) {
  for (size_t i = 0; i < positions.size(); ++i)
    require(positions[i] == static_cast<int64_t>(i), Code::kInvalid,
            what_of(kPositions.name, index),
            " do not count up from 0, as those of a sample, or of each of several packed ones, "
            "do");
}

}  // namespace

Batch::Batch(const py::list& features, bool marks) {
  size_t index = 0;
  for (const py::handle given : features) {
    require(py::isinstance<py::dict>(given), Code::kInvalid, "model: inputs[", index,
            "] must be an InputFeature with input_ids");
    const auto feature = py::reinterpret_borrow<py::dict>(given);
    unpack(marks ? with_mark(feature) : feature, index++);
  }
  for (size_t i = 0; i < py::len(features_); ++i) add(py::dict(features_[i]), i);
}

std::string Batch::unlabelled() const {
  if (unlabelled_ < 0) return {};
  const std::string roles = roles_of(features_[static_cast<size_t>(unlabelled_)]);
  return "model: inputs[" + std::to_string(unlabelled_) + "] has no label to learn from" +
         (roles.empty()
              ? ""
              : ": the roles of its messages are " + roles + ", only 'assistant' is trained") +
         "; further ones are not reported";
}

void Batch::check_routes(int64_t layers, int64_t k) const {
  for (const auto& [index, its_layers, its_k] : routed_)
    require((its_layers == layers && its_k == k) || layers == 0, Code::kInvalid,
            what_of(kRoutes, index), " is [L, ", its_layers, ", ", its_k, "], it must be [L, ",
            layers, ", ", k, "], layers with experts and experts a token");
}

void Batch::check_logits(const std::string& asked_by, int64_t vocabulary) const {
  const double bytes = static_cast<double>(size()) * static_cast<double>(longest()) *
                       static_cast<double>(vocabulary) * 4;
  constexpr double kMiB = 1 << 20;
  require(bytes <= static_cast<double>(engine::kMaxLogitBytes), Code::kInvalid, "model: ", asked_by,
          ": logits of ", size(), " x ", longest(), " positions and a vocabulary of ", vocabulary,
          " take ", std::ceil(bytes / kMiB), " MiB, at most ", engine::kMaxLogitBytes >> 20,
          " are given; pass fewer sequences, or those of like lengths together");
}

void Batch::unpack(const py::dict& feature, size_t index) {
  std::vector<py::ssize_t> cuts = starts_in(feature, index);
  if (cuts.empty()) {
    features_.append(feature);
    return;
  }
  cuts.insert(cuts.begin(), 0);
  cuts.push_back(static_cast<py::ssize_t>(py::len(entry(feature, kIds.name))));
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    py::dict part = copied(feature);
    for (const char* name : kByToken)
      if (const py::object value = entry(feature, name))
        part[name] = value[py::slice(cuts[i], cuts[i + 1], 1)];
    features_.append(part);
  }
}

void Batch::add(const py::dict& feature, size_t index) {
  const auto ids = vector_in(feature, kIds, index);
  require(ids && ids->size() > 0, Code::kInvalid, what_of(kIds.name, index), " is empty");
  const py::ssize_t length = ids->size();
  py::dict sequence;
  sequence[kIds.name] = *ids;
  const auto require_length = [&](const char* name, const std::optional<py::array>& values) {
    require(!values || values->size() == length, Code::kInvalid, what_of(name, index), " has ",
            values ? values->size() : 0, " entries, input_ids has ", length,
            ", they must be equally many");
  };
  for (const auto& [field, key] : {std::pair(kLabels, "labels"), std::pair(kScale, "weights")}) {
    const auto values = vector_in(feature, field, index);
    require_length(field.name, values);
    if (values) sequence[key] = *values;
  }
  const auto routes = routes_in(feature, length, index);
  if (routes) {
    sequence[kRoutes] = *routes;
    routed_.push_back({index, routes->shape(1), routes->shape(2)});
  }
  const auto mask = vector_in(feature, kMask, index);
  const auto positions = vector_in(feature, kPositions, index);
  require_length(kMask.name, mask);
  require_length(kPositions.name, positions);
  kept_.push_back(py::none());
  if (mask && !mask->attr("all")().cast<bool>()) {
    kept_.back() = numpy("flatnonzero")(*mask);
    for (const auto& [name, values] : copied(sequence))
      sequence[name] = kept_of(index, py::reinterpret_borrow<py::object>(values));
  }
  if (routes) sequence[kRoutes] = sequence[kRoutes].attr("reshape")(-1);
  if (positions) check_positions(int64s(py::array(kept_of(index, *positions))), index);
  sequences_.append(sequence);
  lengths_.push_back(length);
  count(sequence, index);
}

void Batch::count(const py::dict& sequence, size_t index) {
  num_tokens_ += static_cast<int64_t>(py::len(sequence[kIds.name]));
  if (!sequence.contains(kLabels.name)) return;
  int64_t scored = 0;
  for (const int64_t label : int64s(py::array(sequence[kLabels.name])))
    scored += label != kIgnored ? 1 : 0;
  num_labels_ += scored;
  if (scored == 0 && unlabelled_ < 0) unlabelled_ = static_cast<int64_t>(index);
}

// ---- vectors and tensors

int64_t Batch::longest() const {
  int64_t out = 0;
  for (const int64_t length : lengths_) out = std::max(out, length);
  return out;
}

py::object Batch::kept_of(size_t index, const py::object& values) const {
  return kept_[index].is_none() ? values : py::object(values[kept_[index]]);
}

py::list Batch::rows(const py::list& vectors) const {
  py::list out;
  for (size_t i = 0; i < size(); ++i) {
    py::object row = vectors[i];
    if (!kept_[i].is_none()) {
      const py::object wide = numpy("zeros")(lengths_[i], "dtype"_a = "float32");
      wide.attr("__setitem__")(kept_[i], row);
      row = wide;
    }
    out.append(row);
  }
  return out;
}

py::list Batch::unscored() const {
  py::list out;
  for (const py::handle each : sequences_) {
    const auto sequence = py::reinterpret_borrow<py::dict>(each);
    py::dict plain;
    for (const char* name : {kIds.name, kRoutes})
      if (sequence.contains(name)) plain[name] = sequence[name];
    out.append(plain);
  }
  return out;
}

py::object Batch::padded(const py::list& vectors) const {
  return tensor_of(filled(vectors, 0, "float32"));
}

py::object Batch::wide(const py::list& vectors, double pad) const {
  return tensor_of(filled(vectors, pad, "int64"));
}

// [B, longest, ...] of the engine's vectors [tokens, ...], `pad` elsewhere.
py::object Batch::filled(const py::list& vectors, double pad, const char* dtype) const {
  py::list shape(py::make_tuple(size(), longest()));
  if (py::len(vectors) > 0) {
    const py::tuple first = numpy("shape")(vectors[0]);
    for (size_t i = 1; i < first.size(); ++i) shape.append(first[i]);
  }
  const py::object out = numpy("full")(py::tuple(shape), pad, "dtype"_a = dtype);
  for (size_t i = 0; i < py::len(vectors); ++i) {
    const py::object first = py::slice(0, static_cast<py::ssize_t>(py::len(vectors[i])), 1);
    out.attr("__setitem__")(py::make_tuple(i, kept_[i].is_none() ? first : kept_[i]), vectors[i]);
  }
  return out;
}

py::list Batch::unpadded(const py::object& tensor) const {
  const py::object array = tensor.attr("detach")().attr("cpu")().attr("numpy")();
  const py::object values = array.attr("astype")("float32", "copy"_a = false);
  py::list out;
  for (size_t i = 0; i < size(); ++i) {
    const py::object row = values[py::int_(i)];
    const py::object first = py::slice(0, static_cast<py::ssize_t>(lengths_[i]), 1);
    out.append(row[kept_[i].is_none() ? first : kept_[i]]);
  }
  return out;
}

py::dict Batch::tensors() const {
  py::dict out;
  out[kIds.name] = padded_field(kIds.name, 0, "int64", false);
  out[kLabels.name] = padded_field(kLabels.name, kIgnored, "int64", false);
  out[kMask.name] = padded_field(kMask.name, 0, "int64", true);
  for (const py::handle feature : features_) {
    if (!py::reinterpret_borrow<py::dict>(feature).contains(kScale.name)) continue;
    out[kScale.name] = padded_field(kScale.name, 0, "float32", true);
    break;
  }
  return out;
}

py::object Batch::padded_field(const char* name, int64_t pad, const char* dtype, bool ones) const {
  const py::object out = numpy("full")(py::make_tuple(size(), longest()), pad, "dtype"_a = dtype);
  for (size_t i = 0; i < size(); ++i) {
    const py::object given = entry(features_[i], name);
    if (!given && !ones) continue;
    const py::object value = given ? numpy("asarray")(given) : py::object(py::int_(1));
    const py::object place = py::slice(0, static_cast<py::ssize_t>(lengths_[i]), 1);
    out.attr("__setitem__")(py::make_tuple(i, place), value);
  }
  return tensor_of(out);
}

}  // namespace twinkle::python::batch
