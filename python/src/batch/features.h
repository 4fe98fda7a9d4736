// Users' features field by field: what each may be, refused by its name and its place in the
// inputs.
#pragma once
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "python/src/values/arrays.h"

namespace twinkle::python::batch {

namespace py = pybind11;

inline constexpr int64_t kIgnored = -100;  // the label where nothing is scored

// A field with an entry for each token, and NumPy's kinds of numbers that it may have; fractions of
// ids are the engine's to refuse.
struct Field {
  const char* name;
  const char* kinds;
};
inline constexpr Field kIds{"input_ids", "iuf"}, kLabels{"labels", "iuf"},
    kMask{"attention_mask", "iub"}, kPositions{"position_ids", "iu"}, kScale{"loss_scale", "iuf"};
inline constexpr const char* kRoutes = "routed_experts";
inline constexpr const char* kByToken[] = {"input_ids",    "labels",     "attention_mask",
                                           "position_ids", "loss_scale", kRoutes};

py::object numpy(const char* name);
py::object checks(const char* name);                  // a function of twinkle.checks
std::string shown(const py::handle& value);           // its str()
std::string what_of(const char* name, size_t index);  // "model: labels of inputs[0]"
std::string shape_of(const py::array& values);        // "[2, 3]"

// Null: it is missing or None.
py::object entry(const py::dict& feature, const char* name);
py::dict copied(const py::dict& feature);
std::vector<int64_t> int64s(const py::array& values);

// Error kInvalid of these: no sequence [L] of such numbers, integers beyond 64 bits.
std::optional<py::array> vector_in(const py::dict& feature, const Field& field, size_t index);

// [L, layers, k] of integers. A sampler does not compute the last token, of which nothing follows:
// it may be left out, and goes where the routers say. Error kInvalid: another shape.
using Routes = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;
std::optional<Routes> routes_in(const py::dict& feature, py::ssize_t num_tokens, size_t index);

// Where the samples of a packed feature begin, but for the first. Error kInvalid: an attention_mask
// of others than 0 and 1, a sample that begins behind a label.
std::vector<py::ssize_t> starts_in(const py::dict& feature, size_t index);

// For embeddings one label may belong to the whole sequence; it becomes that of the first position.
py::dict with_mark(const py::dict& feature);

// The roles of a row's messages, as text; empty without messages.
std::string roles_of(const py::dict& feature);

}  // namespace twinkle::python::batch
