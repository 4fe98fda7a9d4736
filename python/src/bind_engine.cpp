// twinkle._core.Engine: every operation as a method that returns a Future. Waiting releases the GIL
// and stops at Ctrl-C; the operation itself goes on.
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "python/src/sequences.h"
#include "twinkle/base/error.h"
#include "twinkle/engine/engine.h"
#include "twinkle/text/template.h"

namespace py = pybind11;
using namespace py::literals;

namespace twinkle::python {
namespace {

using engine::Engine;
using Clock = std::chrono::steady_clock;

constexpr double kSlice_s = 0.05;  // how long Ctrl-C may go unseen

using Pending = std::shared_future<engine::Result>;

class Future {
 public:
  Future(const std::shared_ptr<Engine>& engine, engine::Future future)
      : engine_(engine), id_(future.id), future_(future.share()) {}

  bool done() const {
    return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  bool cancel() {
    // Declared first: if this is the last to hold the engine, it ends with the GIL held again.
    const std::shared_ptr<Engine> engine = engine_.lock();
    const py::gil_scoped_release release;
    return engine && engine->cancel(id_);
  }

  // Waits in slices, so that Ctrl-C is seen.
  py::object result(std::optional<double> timeout_s) {
    const auto start = Clock::now();
    double slice_s = timeout_s ? std::min(kSlice_s, std::max(0.0, *timeout_s)) : kSlice_s;
    while (!wait(slice_s)) {
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      if (!timeout_s) continue;
      const double left_s =
          *timeout_s - std::chrono::duration<double>(Clock::now() - start).count();
      if (left_s <= 0) {
        PyErr_SetString(PyExc_TimeoutError, "engine: the operation has not ended in time");
        throw py::error_already_set();
      }
      slice_s = std::min(kSlice_s, left_s);
    }
    const engine::Result& result = future_.get();
    if (!value_) {
      // Arrays are views into the result, which lives as long as they do.
      const py::capsule owner(new Pending(future_),
                              [](void* pending) { delete static_cast<Pending*>(pending); });
      value_ = to_python(result, owner);
    }
    return value_;
  }

 private:
  bool wait(double seconds) const {
    const py::gil_scoped_release release;
    return future_.wait_for(std::chrono::duration<double>(seconds)) == std::future_status::ready;
  }

  std::weak_ptr<Engine> engine_;
  int64_t id_;
  Pending future_;
  py::object value_;
};

using EnginePointer = std::shared_ptr<Engine>;

Future submit(const EnginePointer& engine, engine::Operation operation) {
  std::optional<engine::Future> future;
  {
    const py::gil_scoped_release release;
    future = engine->submit(std::move(operation));
  }
  return Future(engine, std::move(*future));
}

std::string text_of(const py::object& value, const char* name) {
  require(py::isinstance<py::str>(value), Code::kInvalid, "engine: ", name, " is ",
          std::string(py::repr(value)), ", it must be a text");
  return value.cast<std::string>();
}

std::shared_ptr<Engine> make_engine(const engine::EngineOptions& options) {
  const py::gil_scoped_release release;
  // The engine's end waits for its thread, without the GIL.
  return {new Engine(options), [](Engine* engine) {
            const py::gil_scoped_release released;
            std::unique_ptr<Engine>(engine).reset();
          }};
}

py::dict facts(const Engine& engine) {
  const engine::ModelFacts& f = engine.facts();
  return py::dict("family"_a = f.family, "directory"_a = f.directory,
                  "config_json"_a = f.config_json, "vocab_size"_a = f.vocab_size,
                  "max_positions"_a = f.max_positions, "num_layers"_a = f.num_layers,
                  "num_parameters"_a = f.num_parameters, "eos_ids"_a = f.eos_ids);
}

// Stop strings are looked for in the text with special tokens written out.
void set_template(Engine& engine, const text::Template& text) {
  engine.set_decode([&text](std::span<const int32_t> ids) {
    return text.decode(std::vector<int64_t>(ids.begin(), ids.end()));
  });
}

template <class T>
void take(const py::dict& d, const char* name, T& value) {
  if (d.contains(name)) value = d[name].cast<T>();
}

// A field that is absent has the engine's default.
engine::SamplingParams params_of(const py::dict& d) {
  engine::SamplingParams p;
  take(d, "max_tokens", p.max_tokens);
  take(d, "seed", p.seed);
  take(d, "stop", p.stop);
  take(d, "stop_token_ids", p.stop_token_ids);
  take(d, "temperature", p.temperature);
  take(d, "top_k", p.top_k);
  take(d, "top_p", p.top_p);
  take(d, "repetition_penalty", p.repetition_penalty);
  take(d, "num_samples", p.num_samples);
  take(d, "logprobs", p.logprobs);
  take(d, "ignore_eos", p.ignore_eos);
  take(d, "min_p", p.min_p);
  take(d, "top_logprobs", p.top_logprobs);
  take(d, "prompt_logprobs", p.prompt_logprobs);
  take(d, "top_prompt_logprobs", p.top_prompt_logprobs);
  return p;
}

Future sample(const EnginePointer& engine, const std::string& tenant, const py::list& prompts,
              const std::vector<py::dict>& params, int64_t version) {
  engine::Sample operation{.tenant = tenant, .prompts = {}, .params = {}, .version = version};
  for (const py::handle prompt : prompts)
    operation.prompts.push_back(
        int32s(prompt, "engine: prompt " + std::to_string(operation.prompts.size())));
  for (const py::dict& p : params) operation.params.push_back(params_of(p));
  return submit(engine, std::move(operation));
}

void bind_future(py::module_& m) {
  py::class_<Future>(m, "Future", "The result of an operation that may still run.")
      .def("done", &Future::done, "Whether it has ended.")
      .def("cancel", &Future::cancel,
           "True: result() raises ConflictError, and the operation never was. False: it has ended, "
           "or can't be stopped any more.")
      .def("result", &Future::result, "timeout"_a = py::none(),
           "Waits (timeout in seconds, None: for ever) and returns the result, or raises what the "
           "operation failed with. TimeoutError: it has not ended.");
}

void bind_training(py::class_<Engine, std::shared_ptr<Engine>>& engine) {
  engine
      .def(
          "create",
          [](const EnginePointer& e, std::string tenant, std::string lora_json,
             std::string directory, uint64_t seed, bool frozen, double weight, int32_t priority) {
            return submit(
                e, engine::Create{tenant, lora_json, directory, seed, frozen, weight, priority});
          },
          py::kw_only(), "tenant"_a, "lora_json"_a = "", "directory"_a = "", "seed"_a = 0,
          "frozen"_a = false, "weight"_a = 1.0, "priority"_a = 0)
      .def(
          "delete",
          [](const EnginePointer& e, std::string tenant) {
            return submit(e, engine::Delete{tenant});
          },
          py::kw_only(), "tenant"_a)
      .def(
          "forward",
          [](const EnginePointer& e, std::string tenant, const py::list& items, bool disable_lora,
             double temperature, bool entropy, bool train) {
            return submit(e, engine::Forward{tenant, sequences(items), disable_lora, temperature,
                                             entropy, train});
          },
          py::kw_only(), "tenant"_a, "sequences"_a, "disable_lora"_a = false, "temperature"_a = 1.0,
          "entropy"_a = false, "train"_a = false)
      .def(
          "forward_backward",
          [](const EnginePointer& e, std::string tenant, const py::list& items, std::string loss,
             std::string loss_options, double temperature) {
            return submit(e, engine::ForwardBackward{tenant, sequences(items), loss, loss_options,
                                                     temperature});
          },
          py::kw_only(), "tenant"_a, "sequences"_a, "loss"_a = "CrossEntropyLoss",
          "loss_options"_a = "", "temperature"_a = 1.0)
      .def(
          "step",
          [](const EnginePointer& e, std::string tenant, std::string optimizer, std::string options,
             double max_grad_norm, double norm_type) {
            return submit(e, engine::Step{tenant, optimizer, options, max_grad_norm, norm_type});
          },
          py::kw_only(), "tenant"_a, "optimizer"_a = "AdamW", "options"_a = "",
          "max_grad_norm"_a = 0.0, "norm_type"_a = 2.0)
      .def(
          "clip_grad_norm",
          [](const EnginePointer& e, std::string tenant, double max_grad_norm, double norm_type) {
            return submit(e, engine::ClipGradNorm{tenant, max_grad_norm, norm_type});
          },
          py::kw_only(), "tenant"_a, "max_grad_norm"_a = 1.0, "norm_type"_a = 2.0)
      .def(
          "zero_grad",
          [](const EnginePointer& e, std::string tenant) {
            return submit(e, engine::ZeroGrad{tenant});
          },
          py::kw_only(), "tenant"_a);
}

void bind_state(py::class_<Engine, std::shared_ptr<Engine>>& engine) {
  engine.def("sample", &sample, py::kw_only(), "tenant"_a, "prompts"_a, "params"_a, "version"_a = 0)
      .def(
          "publish",
          [](const EnginePointer& e, std::string tenant) {
            return submit(e, engine::Publish{tenant});
          },
          py::kw_only(), "tenant"_a)
      .def(
          "release",
          [](const EnginePointer& e, std::string tenant, int64_t version) {
            return submit(e, engine::Release{tenant, version});
          },
          py::kw_only(), "tenant"_a, "version"_a)
      .def(
          "save",
          [](const EnginePointer& e, std::string tenant, std::string directory, bool optimizer,
             std::string extra_json) {
            return submit(e, engine::Save{tenant, directory, optimizer, extra_json});
          },
          py::kw_only(), "tenant"_a, "directory"_a, "optimizer"_a = false, "extra_json"_a = "")
      .def(
          "load",
          [](const EnginePointer& e, std::string tenant, std::string directory, bool optimizer) {
            return submit(e, engine::Load{tenant, directory, optimizer});
          },
          py::kw_only(), "tenant"_a, "directory"_a, "optimizer"_a = false)
      .def(
          "inspect",
          [](const EnginePointer& e, std::string tenant, bool tensors) {
            return submit(e, engine::Inspect{tenant, tensors});
          },
          py::kw_only(), "tenant"_a, "tensors"_a = false);
}

}  // namespace
}  // namespace twinkle::python

void bind_engine(py::module_& m) {
  namespace here = twinkle::python;
  using twinkle::engine::Engine;
  here::bind_future(m);
  py::class_<Engine, std::shared_ptr<Engine>> engine(
      m, "Engine",
      "Runs operations of many tenants on one model; engine.h and operation.h state each.");
  engine
      .def(py::init([](const py::object& model, const py::object& precision, int64_t token_budget,
                       int64_t kv_tokens, int64_t activation_bytes, bool deterministic) {
             return here::make_engine(
                 {.model = here::text_of(model, "model"),
                  .mixed_precision = here::text_of(precision, "mixed_precision"),
                  .token_budget = token_budget,
                  .kv_tokens = kv_tokens,
                  .activation_bytes = activation_bytes,
                  .deterministic = deterministic});
           }),
           "model"_a, py::kw_only(), "mixed_precision"_a = "bf16",
           "token_budget"_a = twinkle::engine::EngineOptions{}.token_budget,
           "kv_tokens"_a = twinkle::engine::EngineOptions{}.kv_tokens,
           "activation_bytes"_a = twinkle::engine::EngineOptions{}.activation_bytes,
           "deterministic"_a = true)
      .def("facts", &here::facts, "What is known of the model, as a dict.")
      .def("set_template", &here::set_template, "template"_a, py::keep_alive<1, 2>(),
           "Whose tokenizer turns tokens into text, for stop strings.");
  here::bind_training(engine);
  here::bind_state(engine);
}
