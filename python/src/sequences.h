// Lists, numpy arrays and CPU tensors of Python as the engine's vectors, and results back.
#pragma once
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <vector>

#include "twinkle/engine/protocol/operation.h"
#include "twinkle/engine/protocol/result.h"

namespace twinkle::python {

// A one-dimensional list of integers, each within 32 bits. `what` opens the error's text:
// "engine: sequence 1: labels".
std::vector<int32_t> int32s(pybind11::handle values, const std::string& what);
std::vector<float> floats(pybind11::handle values, const std::string& what);

// An operation's result, as dicts and lists; its arrays are views that keep `owner` alive.
pybind11::object to_python(const engine::Result& result, pybind11::handle owner);

}  // namespace twinkle::python
