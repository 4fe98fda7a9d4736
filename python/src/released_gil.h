// Lets go of the GIL for a scope. A daemon thread that wants it back while the interpreter ends is
// ended by pthread_exit, whose unwinding terminates the process in a destructor and, further up,
// would drop Python's objects without the GIL; here such a thread sleeps until the process is gone.
// Python 3.14 does so by itself.
#pragma once
#include <cxxabi.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <atomic>

namespace twinkle::python {

class ReleasedGil {
 public:
  ReleasedGil() : state_(PyEval_SaveThread()) { ++num_running_; }
  ~ReleasedGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (abi::__forced_unwind&) {
      --num_running_;
      while (true) pause();
    }
    --num_running_;
  }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

  // Threads that are in such a scope and do not sleep for ever.
  static int num_running() { return num_running_; }

 private:
  static inline std::atomic<int> num_running_ = 0;
  PyThreadState* state_;
};

}  // namespace twinkle::python
