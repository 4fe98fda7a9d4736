// twinkle._core.Batch: users' features as the engine's sequences, and the engine's vectors as
// arrays as long as the features. What is refused is refused by its name and place in the inputs.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/engine/protocol/operation.h"

namespace py = pybind11;
using namespace py::literals;

namespace twinkle::python {
namespace {

constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();
constexpr int64_t kIgnored = -100;

// A field with an entry for each token, and NumPy's kinds of numbers that it may have; fractions of
// ids are the engine's to refuse.
struct Field {
  const char* name;
  const char* kinds;
};
constexpr Field kIds{"input_ids", "iuf"}, kLabels{"labels", "iuf"}, kMask{"attention_mask", "iub"},
    kPositions{"position_ids", "iu"}, kScale{"loss_scale", "iuf"};
constexpr const char* kRoutes = "routed_experts";
constexpr const char* kByToken[] = {"input_ids",    "labels",     "attention_mask",
                                    "position_ids", "loss_scale", kRoutes};

py::object numpy(const char* name) { return py::module_::import("numpy").attr(name); }
py::object checks(const char* name) { return py::module_::import("twinkle.checks").attr(name); }

std::string what_of(const char* name, size_t index) {
  return "model: " + std::string(name) + " of inputs[" + std::to_string(index) + "]";
}

std::string shown(const py::handle& value) { return py::str(value); }
py::object tensor_of(const py::object& array) {
  return py::module_::import("torch").attr("from_numpy")(array);
}

// Null: it is missing or None.
py::object entry(const py::dict& feature, const char* name) {
  if (!feature.contains(name)) return {};
  py::object value = feature[name];
  return value.is_none() ? py::object() : value;
}

py::array array_of(const std::string& what, const py::object& given, const char* must) {
  if (py::type::of(given).is(numpy("ndarray"))) return py::array(given);
  return py::array(checks("array")(what, given, must));
}

std::string shape_of(const py::array& values) {
  return shown(py::list(py::tuple(values.attr("shape"))));
}

void refuse_size(const std::string& what, const py::handle& value, py::ssize_t position) {
  const bool large = value.attr("__gt__")(0).cast<bool>();
  fail(Code::kInvalid, what, " is ",
       shown(checks("short")(py::int_(py::reinterpret_borrow<py::object>(value)))), " at position ",
       position, ", it must be ", large ? "at most " : "at least -", kInt64Max);
}

bool beyond_int64(const py::handle& value) {
  if (!PyIndex_Check(value.ptr())) return false;
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  int overflow = 0;
  const int64_t found = number ? PyLong_AsLongLongAndOverflow(number.ptr(), &overflow) : int64_t{0};
  PyErr_Clear();
  return overflow != 0 || found < -kInt64Max;
}

// Error kInvalid: an integer that int64 does not hold. Of a list with one, NumPy makes fractions or
// objects; of uint64, in any byte order, int64 would make another number.
void check_size(const std::string& what, const py::object& given, const py::array& values) {
  const char kind = values.dtype().kind();
  if (kind == 'u' && values.itemsize() == 8) {
    const py::array_t<uint64_t, py::array::c_style | py::array::forcecast> wide(values);
    for (py::ssize_t i = 0; i < wide.size(); ++i)
      if (wide.data()[i] > static_cast<uint64_t>(kInt64Max))
        refuse_size(what, py::int_(wide.data()[i]), i);
    return;
  }
  const bool is_list = py::isinstance<py::list>(given) || py::isinstance<py::tuple>(given);
  if (kind != 'O' && !(kind == 'f' && is_list)) return;
  const py::object suspects = kind == 'f' ? given : values.attr("reshape")(-1);
  py::ssize_t i = 0;
  for (const py::handle value : suspects) {
    if (beyond_int64(value)) refuse_size(what, value, i);
    ++i;
  }
}

std::optional<py::array> vector_in(const py::dict& feature, const Field& field, size_t index) {
  const py::object given = entry(feature, field.name);
  if (!given) return std::nullopt;
  const std::string what = what_of(field.name, index);
  py::array values = array_of(what, given, "one sequence [L] of numbers");
  if (field.name != kScale.name) check_size(what, given, values);
  if (values.size() > 0 && !std::strchr(field.kinds, values.dtype().kind()))
    checks("refuse")(what, values.attr("tolist")(), "one sequence [L] of integers");
  require(values.ndim() == 1, Code::kInvalid, what, " has shape ", shape_of(values),
          ", it must be one sequence [L]");
  if (values.dtype().attr("isnative").cast<bool>()) return values;
  return py::array(values.attr("astype")(values.dtype().attr("newbyteorder")("=")));
}

std::vector<int64_t> int64s(const py::array& values) {
  const py::array_t<int64_t, py::array::c_style | py::array::forcecast> wide(values);
  return {wide.data(), wide.data() + wide.size()};
}

using Routes = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;

// [L, layers, k]. A sampler does not compute the last token, of which nothing follows: it may be
// left out, and goes where the routers say.
std::optional<Routes> routes_in(const py::dict& feature, py::ssize_t num_tokens, size_t index) {
  const py::object given = entry(feature, kRoutes);
  if (!given) return std::nullopt;
  const std::string what = what_of(kRoutes, index);
  const py::array values = array_of(what, given, "an array [L, layers, k] of integers");
  check_size(what, given, values);
  const char kind = values.dtype().kind();
  require((kind == 'i' || kind == 'u') && values.ndim() == 3, Code::kInvalid, what, " is ",
          shown(values.dtype()), " ", shape_of(values), ", it must be [L, layers, k] integers");
  Routes routes(values);
  const py::object rest = routes[py::slice(num_tokens, std::nullopt, 1)];
  if (rest.attr("__eq__")(-1).attr("all")().cast<bool>())  // as a model's forward pads them
    routes = Routes(routes[py::slice(0, num_tokens, 1)]);
  if (routes.shape(0) == num_tokens - 1) {
    const py::object last = numpy("full")(py::make_tuple(1, routes.shape(1), routes.shape(2)), -1);
    routes = Routes(numpy("concatenate")(py::make_tuple(routes, last)));
  }
  require(routes.shape(0) == num_tokens, Code::kInvalid, what, " has ", routes.shape(0),
          " entries, input_ids has ", num_tokens,
          ", they must be equally many, or one fewer, without the last token's");
  return routes;
}

std::optional<std::vector<int64_t>> mask_in(const py::dict& feature, size_t index) {
  const auto values = vector_in(feature, kMask, index);
  if (!values) return std::nullopt;
  std::vector<int64_t> mask = int64s(*values);
  for (size_t i = 0; i < mask.size(); ++i)
    require(mask[i] == 0 || mask[i] == 1, Code::kInvalid, what_of(kMask.name, index), " is ",
            mask[i], " at position ", i, ", it must be 0 or 1");
  return mask;
}

py::dict copied(const py::dict& feature) {
  py::dict out;
  if (PyDict_Update(out.ptr(), feature.ptr()) != 0) throw py::error_already_set();
  return out;
}

// Where the samples of a packed feature begin, but for the first.
std::vector<py::ssize_t> starts_in(const py::dict& feature, size_t index) {
  const auto positions = vector_in(feature, kPositions, index);
  const auto ids = vector_in(feature, kIds, index);
  const auto mask = mask_in(feature, index);
  if (!positions || !ids || positions->size() != ids->size()) return {};
  const std::vector<int64_t> at = int64s(*positions);
  const bool masked = mask && mask->size() == at.size();  // padding may have any position
  std::vector<py::ssize_t> starts;
  bool first = true;
  for (size_t i = 0; i < at.size(); ++i) {
    if (masked && (*mask)[i] == 0) continue;
    if (!first && at[i] == 0) starts.push_back(static_cast<py::ssize_t>(i));
    first = false;
  }
  const auto labels = starts.empty() ? std::nullopt : vector_in(feature, kLabels, index);
  if (!labels || labels->size() != ids->size()) return starts;
  const std::vector<int64_t> wanted = int64s(*labels);
  for (const py::ssize_t start : starts)
    require(wanted[static_cast<size_t>(start) - 1] == kIgnored, Code::kInvalid,
            what_of(kPositions.name, index),
            " do not count up from 0, and where they begin again the label before is not -100, as "
            "that of a packed sample's last token is");
  return starts;
}

py::ssize_t size_of(const py::object& values) {
  if (!values || !py::hasattr(values, "__len__")) return 0;
  if (!py::getattr(values, "ndim", py::int_(1)).equal(py::int_(1))) return 0;
  return static_cast<py::ssize_t>(py::len(values));
}

// For embeddings one label may belong to the whole sequence; it becomes that of the first position.
py::dict with_mark(const py::dict& feature) {
  const py::object labels = entry(feature, kLabels.name);
  const py::ssize_t length = size_of(entry(feature, kIds.name));
  if (size_of(labels) != 1 || length <= 1) return feature;
  py::list marked(labels);
  for (py::ssize_t i = 1; i < length; ++i) marked.append(kIgnored);
  py::dict out = copied(feature);
  out[kLabels.name] = marked;
  return out;
}

// The roles of a row's messages, as text; empty without messages.
std::string roles_of(const py::dict& feature) {
  const py::object messages = entry(feature, "messages");
  if (!messages || !(py::isinstance<py::list>(messages) || py::isinstance<py::tuple>(messages)))
    return {};
  py::dict roles;
  for (const py::handle message : messages) {
    if (!py::isinstance<py::dict>(message)) continue;
    const py::object role = entry(py::reinterpret_borrow<py::dict>(message), "role");
    if (role && py::isinstance<py::str>(role)) roles[role] = true;
  }
  std::string out;
  for (const auto& [role, seen] : roles)
    out += (out.empty() ? "" : ", ") + std::string(py::repr(role));
  return out;
}

class Batch {
 public:
  Batch(const py::list& features, bool marks) {
    size_t index = 0;
    for (const py::handle given : features) {
      require(py::isinstance<py::dict>(given), Code::kInvalid, "model: inputs[", index,
              "] must be an InputFeature with input_ids");
      const auto feature = py::reinterpret_borrow<py::dict>(given);
      unpack(marks ? with_mark(feature) : feature, index++);
    }
    for (size_t i = 0; i < py::len(features_); ++i) add(py::dict(features_[i]), i);
  }

  size_t size() const { return lengths_.size(); }
  const py::list& features() const { return features_; }
  const py::list& sequences() const { return sequences_; }
  const std::vector<int64_t>& lengths() const { return lengths_; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_labels() const { return num_labels_; }

  // The index of the first one with ignored labels alone, and its messages' roles.
  py::object unlabelled() const {
    if (unlabelled_ < 0) return py::none();
    return py::make_tuple(unlabelled_, roles_of(features_[static_cast<size_t>(unlabelled_)]));
  }

  void check_routes(int64_t layers, int64_t k) const {
    for (const auto& [index, its_layers, its_k] : routed_)
      require((its_layers == layers && its_k == k) || layers == 0, Code::kInvalid,
              what_of(kRoutes, index), " is [L, ", its_layers, ", ", its_k, "], it must be [L, ",
              layers, ", ", k, "], layers with experts and experts a token");
  }

  // Logits as they are given: the padding counts.
  void check_logits(const std::string& asked_by, int64_t vocabulary) const {
    const double bytes = static_cast<double>(size()) * static_cast<double>(longest()) *
                         static_cast<double>(vocabulary) * 4;
    constexpr double kMiB = 1 << 20;
    require(bytes <= static_cast<double>(engine::kMaxLogitBytes), Code::kInvalid,
            "model: ", asked_by, ": logits of ", size(), " x ", longest(),
            " positions and a vocabulary of ", vocabulary, " take ", std::ceil(bytes / kMiB),
            " MiB, at most ", engine::kMaxLogitBytes >> 20,
            " are given; pass fewer sequences, or those of like lengths together");
  }

  void add_extra(const std::string& name, const py::object& values, bool per_sequence) {
    require(py::len(values) == size(), Code::kInvalid, "model: ", name, " has ", py::len(values),
            " entries for ", size(), " inputs, they must be equally many");
    size_t index = 0;
    for (const py::handle given : values) {
      py::object value = numpy("asarray")(given);
      const py::array array(value);
      require(std::strchr("fiub", array.dtype().kind()) && array.ndim() <= (per_sequence ? 0 : 1),
              Code::kInvalid, what_of(name.c_str(), index), " must be a number",
              per_sequence ? "" : " or a list of numbers");
      const py::dict sequence = sequences_[index];
      const py::dict extras = sequence.attr("setdefault")("extras", py::dict());
      const auto length = static_cast<py::ssize_t>(lengths_[index]);
      if (per_sequence) {
        extras[name.c_str()] = value.attr("reshape")(1);
      } else {
        if (array.ndim() == 0) value = numpy("full")(length, value, "dtype"_a = "float32");
        require(static_cast<py::ssize_t>(py::len(value)) == length, Code::kInvalid,
                what_of(name.c_str(), index), " has ", py::len(value), " entries, input_ids has ",
                length, ", they must be equally many");
        extras[name.c_str()] = kept_of(index, value);
      }
      ++index;
    }
  }

  // The engine's vectors as float32 arrays as long as the input_ids that were given.
  py::list rows(const py::list& vectors) const {
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

  py::list unscored() const {
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

  // The sequences with gradients by name (None: it has none), of each a list with an array a
  // sequence. `extras`: names of those that the labels have.
  py::object with_grads(const py::dict& grads, const std::set<std::string>& extras) const {
    std::set<std::string> names;
    for (const auto& [name, given] : grads)
      if (!given.is_none()) names.insert(py::str(name));
    if (names.empty()) return sequences_;
    const bool of_logits = names.contains("logits_grad");
    const bool scored = extras.contains("grad") && !of_logits;
    require(scored || extras.empty(), Code::kInvalid, "engine: ", joined(extras),
            " of labels cannot go with ", joined(names), of_logits ? "" : " alone: give grad, too");
    py::list out;
    for (const py::handle each : scored ? sequences_ : unscored())
      out.append(copied(py::reinterpret_borrow<py::dict>(each)));
    for (const std::string& name : names) add_grad(out, name, grads[name.c_str()]);
    return out;
  }

  // Tensors of the engine's vectors.
  py::object padded(const py::list& vectors) const {
    return tensor_of(wide(vectors, 0, "float32"));
  }
  py::object integers(const py::list& vectors, double pad) const {
    return tensor_of(wide(vectors, pad, "int64"));
  }

  // [B, longest, ...] of the engine's vectors [tokens, ...], `pad` elsewhere.
  py::object wide(const py::list& vectors, double pad, const char* dtype) const {
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

  // Per sequence the entries of a [B, longest] tensor that the engine has, as float32.
  py::list unpadded(const py::object& tensor) const {
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

  // Tensors of the features' own fields, padded to [B, longest].
  py::dict tensors() const {
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

 private:
  struct Routed {
    size_t index;
    int64_t layers, k;
  };

  int64_t longest() const {
    int64_t out = 0;
    for (const int64_t length : lengths_) out = std::max(out, length);
    return out;
  }

  static std::string joined(const std::set<std::string>& names) {
    std::string out;
    for (const std::string& name : names) out += (out.empty() ? "" : " and ") + name;
    return out;
  }

  void add_grad(const py::list& sequences, const std::string& name, const py::object& given) const {
    if (!py::isinstance<py::list>(given) && !py::isinstance<py::tuple>(given) &&
        !py::isinstance<py::array>(given))
      checks("refuse")("engine: " + name, given, "a list with an array for each input");
    require(py::len(given) == size(), Code::kInvalid, "engine: ", name, " has ", py::len(given),
            " entries for ", size(), " inputs, they must be equally many");
    size_t index = 0;
    for (const py::handle each : given) {
      const py::dict sequence = sequences[index];
      auto grad = py::reinterpret_borrow<py::object>(each);
      if (name == "logits_grad") {
        const py::tuple shape = numpy("shape")(grad);
        const auto tokens = py::len(sequence[kIds.name]);
        require(shape.size() == 2 && shape[0].cast<size_t>() == tokens, Code::kInvalid,
                "engine: logits_grad of inputs[", index, "] has shape ", shown(py::list(shape)),
                ", it must be [", tokens, ", vocabulary]");
        grad = numpy("asarray")(grad).attr("reshape")(-1);
      }
      sequence[name.c_str()] = grad;
      ++index;
    }
  }

  py::object kept_of(size_t index, const py::object& values) const {
    return kept_[index].is_none() ? values : py::object(values[kept_[index]]);
  }

  py::object padded_field(const char* name, int64_t pad, const char* dtype, bool ones) const {
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

  void unpack(const py::dict& feature, size_t index) {
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

  void add(const py::dict& feature, size_t index) {
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

  void count(const py::dict& sequence, size_t index) {
    num_tokens_ += static_cast<int64_t>(py::len(sequence[kIds.name]));
    if (!sequence.contains(kLabels.name)) return;
    int64_t scored = 0;
    for (const int64_t label : int64s(py::array(sequence[kLabels.name])))
      scored += label != kIgnored ? 1 : 0;
    num_labels_ += scored;
    if (scored == 0 && unlabelled_ < 0) unlabelled_ = static_cast<int64_t>(index);
  }

  static void check_positions(const std::vector<int64_t>& positions, size_t index) {
    for (size_t i = 0; i < positions.size(); ++i)
      require(positions[i] == static_cast<int64_t>(i), Code::kInvalid,
              what_of(kPositions.name, index),
              " do not count up from 0, as those of a sample, or of each of several packed ones, "
              "do");
  }

  py::list features_, sequences_;
  std::vector<py::object> kept_;  // positions whose attention_mask is not 0; None: all
  std::vector<int64_t> lengths_;  // as given
  std::vector<Routed> routed_;
  int64_t num_tokens_ = 0, num_labels_ = 0, unlabelled_ = -1;
};

}  // namespace
}  // namespace twinkle::python

void bind_batch(py::module_& m) {
  using twinkle::python::Batch;
  py::class_<Batch>(m, "Batch",
                    "Features as the engine's sequences. Packed ones are as many as they have "
                    "samples.")
      .def(py::init<const py::list&, bool>(), "features"_a, "marks"_a = false,
           "features: dicts with input_ids. marks: one label may stand for a whole sequence.")
      .def("__len__", &Batch::size)
      .def_property_readonly("features", &Batch::features, "A dict for each sequence.")
      .def_property_readonly("sequences", &Batch::sequences,
                             "As the engine's operations take them.")
      .def_property_readonly("lengths", &Batch::lengths, "Positions of each, as given.")
      .def_property_readonly("num_tokens", &Batch::num_tokens, "Without those that a mask drops.")
      .def_property_readonly("num_labels", &Batch::num_labels, "Labels that are not -100.")
      .def("unlabelled", &Batch::unlabelled,
           "(index, roles of its messages) of the first one without a label to learn from, or "
           "None.")
      .def("check_routes", &Batch::check_routes, "layers"_a, "k"_a,
           "Raises where routed_experts are not of so many layers, and so many experts a token.")
      .def("check_logits", &Batch::check_logits, "asked_by"_a, "vocabulary"_a,
           "Raises where logits of all positions take more than 1 GiB.")
      .def("add_extra", &Batch::add_extra, "name"_a, "values"_a, "per_sequence"_a,
           "A loss's input: a vector or a number for each sequence.")
      .def("rows", &Batch::rows, "vectors"_a, "The engine's vectors, as long as the input_ids.")
      .def("with_grads", &Batch::with_grads, "grads"_a, "extras"_a,
           "The sequences with gradients of embeddings or logits.")
      .def("unscored", &Batch::unscored, "The sequences without labels.")
      .def("padded", &Batch::padded, "vectors"_a,
           "A float32 tensor [B, longest, ...] of the engine's arrays [tokens, ...], 0 elsewhere.")
      .def("wide", &Batch::integers, "vectors"_a, "pad"_a,
           "The same of integers, int64, `pad` elsewhere.")
      .def("unpadded", &Batch::unpadded, "tensor"_a,
           "Per sequence what the engine has of a tensor [B, longest], as a float32 array.")
      .def("tensors", &Batch::tensors,
           "For losses and metrics: tensors [B, longest] of input_ids, labels, attention_mask and, "
           "where there is one, loss_scale, as given.");
}
