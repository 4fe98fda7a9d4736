// twinkle._core.Engine.sample_stream: a Sample's fields in, a stream of tokens out.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <utility>
#include <vector>

#include "python/src/fields.h"
#include "python/src/future.h"
#include "python/src/released_gil.h"
#include "twinkle/engine/stream/token_queue.h"

namespace py = pybind11;

namespace twinkle::python {
namespace {

using engine::TokenEvent;

// The sample ends with it. Its tokens' bytes count until the last one was read, or it is closed:
// unread ones wait in the queue when the result was taken.
class TokenStream {
 public:
  TokenStream(std::shared_ptr<engine::TokenQueue> queue, Future future)
      : future(std::move(future)), queue_(std::move(queue)), room_(this->future.room()) {}
  ~TokenStream() { close(); }
  TokenStream(const TokenStream&) = delete;
  TokenStream& operator=(const TokenStream&) = delete;

  py::list take() {
    std::vector<TokenEvent> events;
    for (bool over = false; events.empty() && !over;) {
      future.check_signals();
      const ReleasedGil released;
      over = queue_->take(kSlice_s, events);
    }
    if (events.empty()) give_back();
    py::list out;
    for (const TokenEvent& e : events)
      out.append(py::make_tuple(e.prompt, e.sample, e.token, e.logprob, e.stop_reason));
    return out;
  }

  // Ends the sample. These two do nothing in a fork: the sample is its parent's.
  bool cancel() { return !future.in_fork() && future.cancel(); }

  // Frees the unread tokens, too.
  void close() {
    if (future.in_fork()) return;
    if (!cancel()) return give_back();
    queue_->close();
    room_.reset();  // the engine gives its bytes back when it ends the sample
  }

  Future future;

 private:
  // A sample that has ended, or does so just now, keeps its result.
  void give_back() {
    const auto room = std::exchange(room_, nullptr);
    if (!room) return;
    future.wait_for_end();
    room->give_back(queue_->close() * static_cast<int64_t>(sizeof(TokenEvent)));
  }

  std::shared_ptr<engine::TokenQueue> queue_;
  std::shared_ptr<engine::HeldBytes::Room> room_;
};

std::unique_ptr<TokenStream> sample_stream(const EnginePointer& engine, const py::kwargs& given) {
  auto queue = std::make_shared<engine::TokenQueue>();
  const engine::SampleHooks hooks{engine::TokenQueue::listener(queue)};
  return std::make_unique<TokenStream>(
      queue, submit(engine, from_python<engine::Sample>(given, "engine: sample"), hooks));
}

}  // namespace

void bind_sampling(py::module_& m, py::class_<engine::Engine, EnginePointer>& engine) {
  py::class_<TokenStream>(m, "TokenStream",
                          "The tokens of a Sample as they come; it ends with the object.")
      .def("take", &TokenStream::take,
           "Waits for tokens that were not taken yet: a list of (prompt, sample, token, logprob, "
           "stop_reason), stop_reason '' but for a completion's last. []: it has ended. An "
           "exception of a signal's handler, as at Ctrl-C, ends it.")
      .def("cancel", &TokenStream::cancel, "Ends the sampling.")
      .def("close", &TokenStream::close, "Ends the sampling, and frees what was not taken.")
      .def_readonly("future", &TokenStream::future);
  engine.def("sample_stream", &sample_stream, "As sample; a TokenStream.");
}

}  // namespace twinkle::python
