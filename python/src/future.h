// What a method of the bound engine returns: the result of an operation that may still run. Waiting
// releases the GIL; what a signal's handler raises meanwhile, as at Ctrl-C, cancels the operation.
#pragma once
#include <pybind11/pybind11.h>
#include <sys/types.h>
#include <unistd.h>

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
      : engine_(engine), id_(future.id), room_(std::move(future.room)), future_(future.share()) {}

  bool done() const;
  // Error kInvalid: a fork of the process that submitted it, here and in result().
  bool cancel();
  // None: for ever. Python's TimeoutError: it has not ended in time, and goes on.
  pybind11::object result(std::optional<double> timeout_s);

  // Raises what the handlers of signals raise; the operation is cancelled before. Error kInvalid:
  // a fork, which never sees the end of what its parent submitted.
  void check_signals();
  bool in_fork() const { return getpid() != process_; }

 private:
  bool wait(double seconds) const;

  std::weak_ptr<engine::Engine> engine_;
  pid_t process_ = getpid();
  int64_t id_;
  std::shared_ptr<engine::HeldBytes::Room> room_;  // until the result is taken
  std::shared_future<engine::Result> future_;
  pybind11::object value_;
};

Future submit(const EnginePointer& engine, engine::Operation operation,
              const engine::SampleHooks& hooks = {});

void bind_future(pybind11::module_& m);

}  // namespace twinkle::python
