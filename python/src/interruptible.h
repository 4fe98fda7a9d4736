// Long work without the GIL that Ctrl-C ends: module.cpp turns Interrupted into what the signal has
// raised.
#pragma once
#include <pybind11/pybind11.h>

#include <optional>

#include "python/src/released_gil.h"
#include "twinkle/base/parallel.h"

namespace twinkle::python {

// Python's signals are those of its main thread. No other asks: it would have to wait for the GIL.
inline bool sees_signals() {
  const auto threads = pybind11::module_::import("threading");
  const auto main = threads.attr("main_thread")().attr("ident");
  return main.cast<unsigned long>() == PyThread_get_thread_ident();
}

template <class Work>
auto interruptible(const Work& work) {
  std::optional<Interrupt> interrupt;
  if (sees_signals())
    interrupt.emplace([] {
      const PyGILState_STATE state = PyGILState_Ensure();
      const bool raised = PyErr_CheckSignals() != 0;
      PyGILState_Release(state);
      return raised;
    });
  const ReleasedGil released;
  return work();
}

}  // namespace twinkle::python
