// What a method of the bound engine returns: the result of an operation that may still run. Waiting
// releases the GIL and stops at Ctrl-C; the operation itself goes on.
#pragma once
#include <pybind11/pybind11.h>

#include <future>
#include <memory>
#include <optional>

#include "twinkle/engine/engine.h"

namespace twinkle::python {

using EnginePointer = std::shared_ptr<engine::Engine>;

inline constexpr double kSlice_s = 0.05;  // how long Ctrl-C may go unseen

class Future {
 public:
  Future(const EnginePointer& engine, engine::Future future)
      : engine_(engine), id_(future.id), future_(future.share()) {}

  bool done() const;
  bool cancel();
  // None: for ever. Python's TimeoutError: it has not ended in time.
  pybind11::object result(std::optional<double> timeout_s);

 private:
  bool wait(double seconds) const;

  std::weak_ptr<engine::Engine> engine_;
  int64_t id_;
  std::shared_future<engine::Result> future_;
  pybind11::object value_;
};

Future submit(const EnginePointer& engine, engine::Operation operation,
              const engine::SampleHooks& hooks = {});

void bind_future(pybind11::module_& m);

}  // namespace twinkle::python
