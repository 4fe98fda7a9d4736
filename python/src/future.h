// The result of an operation that may still run, as methods of the bound engine return it. It keeps
// the engine until the result was taken, or it is dropped. Waiting releases the GIL; an exception
// of a signal's handler meanwhile, as at Ctrl-C, cancels the operation.
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

  // Raises the exceptions of signals' handlers; the operation is cancelled before. Error kInvalid:
  // a fork, which never sees the end of its parent's operations.
  void check_signals();
  // For an operation that is known to end soon.
  void wait_for_end() const;
  bool in_fork() const { return getpid() != process_; }
  const std::shared_ptr<engine::HeldBytes::Room>& room() const { return room_; }

 private:
  bool wait(double seconds) const;

  pybind11::object take();

  EnginePointer engine_;  // until the result was taken
  pid_t process_ = getpid();
  int64_t id_;
  std::shared_ptr<engine::HeldBytes::Room> room_;  // until then, too
  std::shared_future<engine::Result> future_;
  pybind11::object value_;
};

// An exception of a signal's handler while the operation's files are read is raised, and nothing is
// submitted.
Future submit(const EnginePointer& engine, engine::Operation operation,
              const engine::SampleHooks& hooks = {});

void bind_future(pybind11::module_& m);

}  // namespace twinkle::python
