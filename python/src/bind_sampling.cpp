// twinkle._core.Engine.sample_stream: a Sample's fields in, a stream of tokens out; parameters as
// scripts give them; and the text of tokens that come one by one.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "python/src/fields.h"
#include "python/src/future.h"
#include "python/src/released_gil.h"
#include "twinkle/engine/stream/token_queue.h"
#include "twinkle/sampler/given/given_params.h"
#include "twinkle/text/stream/pieces.h"

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

  py::object next() {
    std::vector<TokenEvent> come;
    for (bool over = false; ready_.empty() && !over; come.clear()) {
      future.check_signals();
      {
        const ReleasedGil released;
        over = queue_->take(kSlice_s, come);
      }
      ready_.insert(ready_.end(), come.begin(), come.end());
    }
    if (ready_.empty()) {
      give_back();
      return py::none();
    }
    const TokenEvent e = std::move(ready_.front());
    ready_.pop_front();
    return py::make_tuple(e.sample, e.token, e.logprob, e.stop_reason);
  }

  // Ends the sample. These two do nothing in a fork: the sample is its parent's.
  bool cancel() { return !future.in_fork() && future.cancel(); }

  // Frees the unread tokens, too.
  void close() {
    if (future.in_fork()) return;
    ready_.clear();
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
  std::deque<TokenEvent> ready_;  // taken, and not given yet
  std::shared_ptr<engine::HeldBytes::Room> room_;
};

std::unique_ptr<TokenStream> sample_stream(const EnginePointer& engine, const py::kwargs& given) {
  auto queue = std::make_shared<engine::TokenQueue>();
  const engine::SampleHooks hooks{engine::TokenQueue::listener(queue)};
  return std::make_unique<TokenStream>(
      queue, submit(engine, from_python<engine::Sample>(given, "engine: sample"), hooks));
}

// The fields of a script's SamplingParams that are there. `seed`: where they have none. `told`, if
// it is one, gets those that are no None as Python's own numbers.
sampler::GivenParams given_params(const py::dict& fields, uint64_t seed, py::dict* told) {
  using Given = sampler::GivenParams;
  Given out{.seed = seed};
  for (const AnyOption& one : options_of(out)) {
    const auto read = [&](std::string_view name) {
      const py::str key(name.data(), name.size());
      if (!fields.contains(key)) return;
      const py::object value = fields[key];
      if (value.is_none() && std::ranges::count(Given::kMayBeMissing, one.name) > 0) return;
      set_option(one, value, std::string("sampler: ").append(name));
      if (told != nullptr) (*told)[py::str(std::string(one.name))] = from_json(one.get());
    };
    read(one.name);
    if (one.name == "max_tokens") read("max_new_tokens");  // transformers' name
  }
  return out;
}

// A text, a list of texts or of token ids, or None.
void read_stop(const py::object& given, sampler::SamplingParams& out) {
  if (given.is_none()) return;
  const py::object all = py::isinstance<py::str>(given) ? py::make_tuple(given) : given;
  bool is_known = py::isinstance<py::list>(all) || py::isinstance<py::tuple>(all);
  for (const py::handle item : is_known ? py::tuple(all) : py::tuple()) {
    if (PyUnicode_Check(item.ptr())) {
      out.stop.emplace_back(utf8(item, "sampler: stop"));
    } else if (PyLong_Check(item.ptr()) && !PyBool_Check(item.ptr())) {
      constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
      int overflow = 0;
      const int64_t id = PyLong_AsLongLongAndOverflow(item.ptr(), &overflow);
      require(overflow == 0 && id >= 0 && id <= kMost, Code::kInvalid, "sampler: stop[",
              out.stop_token_ids.size(), "] is ", detail::shown(item), ", it must be from 0 to ",
              kMost);
      out.stop_token_ids.push_back(static_cast<int32_t>(id));
    } else {
      is_known = false;
    }
  }
  require(is_known && (out.stop.empty() || out.stop_token_ids.empty()), Code::kInvalid,
          "sampler: stop is ", detail::shown(given),
          ", it must be a text, a list of texts or of token ids");
}

py::dict sampling_params(const py::dict& fields) {
  py::dict told;
  sampler::SamplingParams params = params_of(given_params(fields, 0, &told), 1);
  const py::str most("max_tokens"), other("max_new_tokens");
  if (fields.contains(most) && fields.contains(other)) {
    require(fields[most].equal(fields[other]), Code::kInvalid, "sampler: max_tokens is ",
            detail::shown(fields[most]), " and max_new_tokens is ", detail::shown(fields[other]),
            ", two names of one number: leave one of them out");
  }
  if (fields.contains("stop")) read_stop(fields["stop"], params);
  sampler::validate(params);
  return told;
}

py::dict engine_params(const py::dict& fields, int64_t room, uint64_t seed) {
  sampler::SamplingParams params = params_of(given_params(fields, seed, nullptr), room);
  if (fields.contains("stop")) read_stop(fields["stop"], params);
  py::dict out;
  for_each_field(params, [&](const auto& field, const auto& member) {
    out[py::str(std::string(field.name))] = py::cast(member);
  });
  return out;
}

using Decode = std::function<std::string(std::vector<int64_t>)>;  // a function of Python's

std::unique_ptr<text::TextPieces> text_pieces(Decode decode) {
  return std::make_unique<text::TextPieces>(
      [decode = std::move(decode)](std::span<const int64_t> ids) {
        return decode({ids.begin(), ids.end()});
      });
}

}  // namespace

void bind_sampling(py::module_& m, py::class_<engine::Engine, EnginePointer>& engine) {
  py::class_<TokenStream>(m, "TokenStream",
                          "The tokens of a Sample as they come; it ends with the object.")
      .def(
          "next", &TokenStream::next,
          "Waits for the next token: (sample, token, logprob, stop_reason), stop_reason '' but for "
          "a completion's last. None: it has ended. An exception of a signal's handler, as at "
          "Ctrl-C, ends it.")
      .def("cancel", &TokenStream::cancel, "Ends the sampling.")
      .def("close", &TokenStream::close, "Ends the sampling, and frees what was not taken.")
      .def_readonly("future", &TokenStream::future);
  engine.def("sample_stream", &sample_stream, "As sample; a TokenStream.");
  m.def("sampling_params", &sampling_params, py::arg("fields"),
        "Checks the fields of a script's SamplingParams; the numbers among them, as a dict.");
  m.def(
      "engine_params", &engine_params, py::arg("fields"), py::arg("room"), py::arg("seed"),
      "What sample takes as params, of the fields of a script's SamplingParams. room: tokens that "
      "fit behind the prompt; seed: where they have none.");
  m.attr("MAX_TOP_LOGPROBS") = sampler::kMaxTopLogprobs;
  py::class_<text::TextPieces>(m, "TextPieces", "The text of tokens that come one by one.")
      .def(py::init(&text_pieces), py::arg("decode"), "decode: a function of a list of token ids.")
      .def("add", &text::TextPieces::add, py::arg("token"),
           "The text that one more token adds; '' while it is a part of a character.")
      .def("add_last", &text::TextPieces::add_last, py::arg("token"),
           "The text that is left behind the last token.");
}

}  // namespace twinkle::python
