#include "python/src/future.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "python/src/interruptible.h"
#include "python/src/released_gil.h"
#include "python/src/sequences.h"
#include "twinkle/base/error.h"

namespace py = pybind11;
using namespace py::literals;

namespace twinkle::python {
namespace {

using Clock = std::chrono::steady_clock;
using Pending = std::shared_future<engine::Result>;

}  // namespace

bool Future::done() const {
  return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

bool Future::cancel() {
  const EnginePointer engine = engine_;  // another thread may take the result meanwhile
  const ReleasedGil released;
  return engine && engine->cancel(id_);
}

void Future::check_signals() {
  require(!in_fork(), Code::kInvalid, "engine: the operation was submitted by process ", process_,
          ", its fork ", getpid(), " never sees its end");
  if (PyErr_CheckSignals() == 0) return;
  cancel();
  throw py::error_already_set();
}

// Waits in slices, so that Ctrl-C is seen.
py::object Future::result(std::optional<double> timeout_s) {
  const auto start = Clock::now();
  double slice_s = timeout_s ? std::min(kSlice_s, std::max(0.0, *timeout_s)) : kSlice_s;
  while (!wait(slice_s)) {
    check_signals();
    if (!timeout_s) continue;
    const double left_s = *timeout_s - std::chrono::duration<double>(Clock::now() - start).count();
    if (left_s <= 0) {
      PyErr_SetString(PyExc_TimeoutError, "engine: the operation has not ended in time");
      throw py::error_already_set();
    }
    slice_s = std::min(kSlice_s, left_s);
  }
  return take();
}

py::object Future::take() {
  // A result or an error. Dropped at the end of this scope, where no lock is held and the GIL
  // is: the last one of an engine closes it.
  const EnginePointer taken = std::exchange(engine_, nullptr);
  const engine::Result& result = future_.get();
  if (!value_) {
    // Arrays are views into the result, which lives as long as they do.
    const py::capsule owner(new Pending(future_),
                            [](void* pending) { delete static_cast<Pending*>(pending); });
    value_ = to_python(result, owner);
    room_.reset();
  }
  return value_;
}

void Future::wait_for_end() const {
  const ReleasedGil released;
  future_.wait();
}

bool Future::wait(double seconds) const {
  const ReleasedGil released;
  return future_.wait_for(std::chrono::duration<double>(seconds)) == std::future_status::ready;
}

Future submit(const EnginePointer& engine, engine::Operation operation,
              const engine::SampleHooks& hooks) {
  // Its files are read here. Interrupted: nothing has been submitted, and nothing is held; a group,
  // whose ranks wait for each other here, has ended.
  return Future(engine, interruptible([&] { return engine->submit(std::move(operation), hooks); }));
}

void bind_future(py::module_& m) {
  py::class_<Future>(m, "Future", "The result of an operation that may still run.")
      .def("done", &Future::done, "Whether it has ended.")
      .def("cancel", &Future::cancel,
           "True: result() raises ConflictError, and the operation never was. False: it has ended, "
           "or can't be stopped any more.")
      .def("result", &Future::result, "timeout"_a = py::none(),
           "Waits (timeout in seconds, None: for ever) and returns the result, or raises the "
           "operation's error. An exception of a signal's handler, as at Ctrl-C, cancels it. "
           "TimeoutError: it has not ended, and goes on.");
}

}  // namespace twinkle::python
