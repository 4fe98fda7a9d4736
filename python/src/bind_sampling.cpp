// twinkle._core.Engine.sample and sample_stream: prompts and parameters in, a Future or a stream of
// tokens out.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <utility>
#include <vector>

#include "python/src/fields.h"
#include "python/src/future.h"
#include "python/src/released_gil.h"
#include "python/src/sequences.h"
#include "twinkle/engine/stream/token_queue.h"
#include "twinkle/text/template.h"

namespace py = pybind11;
using namespace py::literals;

namespace twinkle::python {
namespace {

using engine::TokenEvent;

engine::SamplingParams params_of(const py::dict& given) {
  engine::SamplingParams p;
  Fields fields(given, "engine: sampling parameters");
  fields.take("max_tokens", p.max_tokens);
  fields.take("seed", p.seed);
  fields.take("stop", p.stop);
  fields.take("stop_token_ids", p.stop_token_ids);
  fields.take("temperature", p.temperature);
  fields.take("top_k", p.top_k);
  fields.take("top_p", p.top_p);
  fields.take("repetition_penalty", p.repetition_penalty);
  fields.take("num_samples", p.num_samples);
  fields.take("logprobs", p.logprobs);
  fields.take("ignore_eos", p.ignore_eos);
  fields.take("min_p", p.min_p);
  fields.take("top_logprobs", p.top_logprobs);
  fields.take("prompt_logprobs", p.prompt_logprobs);
  fields.take("top_prompt_logprobs", p.top_prompt_logprobs);
  fields.finish();
  return p;
}

struct Request {
  engine::Sample sample;
  engine::SampleHooks hooks;
};

// tenant, prompts (lists or arrays of token ids), params (dicts; one, or one for each prompt),
// version, and template, whose tokenizer finds stop strings in the text with special tokens written
// out.
Request request_of(const py::kwargs& given) {
  Fields fields(given, "engine: sample");
  Request out;
  py::list prompts;
  std::vector<py::dict> params;
  std::shared_ptr<text::Template> text;
  fields.take("tenant", out.sample.tenant);
  fields.take("prompts", prompts);
  fields.take("params", params);
  fields.take("version", out.sample.version);
  fields.take("template", text);
  fields.finish();
  for (const py::handle prompt : prompts)
    out.sample.prompts.push_back(
        int32s(prompt, "engine: prompt " + std::to_string(out.sample.prompts.size())));
  for (const py::dict& p : params) out.sample.params.push_back(params_of(p));
  if (text) {
    out.hooks.decode = [text](std::span<const int32_t> ids) {
      return text->decode(std::vector<int64_t>(ids.begin(), ids.end()));
    };
  }
  return out;
}

Future sample(const EnginePointer& engine, const py::kwargs& given) {
  Request request = request_of(given);
  return submit(engine, std::move(request.sample), request.hooks);
}

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
  // Of a sample that has ended, or does so just now: its result stays.
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
  Request request = request_of(given);
  request.hooks.on_tokens = engine::TokenQueue::listener(queue);
  return std::make_unique<TokenStream>(queue,
                                       submit(engine, std::move(request.sample), request.hooks));
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
  engine
      .def("sample", &sample,
           "tenant, prompts, params, version=0, template=None, by name: a Future. template: whose "
           "tokenizer finds stop strings.")
      .def("sample_stream", &sample_stream, "As sample; a TokenStream.");
}

}  // namespace twinkle::python
