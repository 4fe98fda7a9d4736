// An engine's options (twinkle/engine/options.h) from Python's keyword arguments, and what Python
// asks about them.
#pragma once
#include <pybind11/pybind11.h>

#include "twinkle/engine/options.h"

namespace twinkle::python {

// None keeps a default. Error kInvalid: a name that is no option's, with the nearest; a value of
// another type or outside its limits.
engine::EngineOptions engine_options_of(const pybind11::dict& given);

// Each option, in order: name, default, kind, range, help.
pybind11::list described_engine_options();

}  // namespace twinkle::python
