// twinkle._core.Engine: every operation as a method that returns a Future.
#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "python/src/fields.h"
#include "python/src/future.h"
#include "python/src/interruptible.h"
#include "python/src/released_gil.h"
#include "python/src/sequences.h"
#include "twinkle/base/error.h"
#include "twinkle/engine/device.h"
#include "twinkle/engine/engine.h"

namespace py = pybind11;
using namespace py::literals;

namespace twinkle::python {

void bind_sampling(py::module_& m, py::class_<engine::Engine, EnginePointer>& engine);

namespace {

using engine::Engine;

std::string text_of(const py::object& value, const char* name) {
  require(py::isinstance<py::str>(value), Code::kInvalid, "engine: ", name, " is ",
          std::string(py::repr(value)), ", it must be a text");
  return value.cast<std::string>();
}

// All engines of the process, to be closed at its end. The GIL guards them.
std::vector<std::weak_ptr<Engine>>& engines() {
  static std::vector<std::weak_ptr<Engine>> all;
  return all;
}

EnginePointer make_engine(const engine::EngineOptions& options) {
  static const pid_t first = getpid();  // OpenMP's threads are its, too
  require(getpid() == first, Code::kInvalid, "engine: made in process ", first, " before its fork ",
          getpid(), ", which can't have another: its threads are gone; start workers by spawn");
  // The engine's end waits for its thread, without the GIL.
  const EnginePointer engine(interruptible([&] { return new Engine(options); }), [](Engine* old) {
    const ReleasedGil unlocked;
    std::unique_ptr<Engine>(old).reset();
  });
  std::erase_if(engines(), [](const auto& old) { return old.expired(); });
  engines().push_back(engine);
  return engine;
}

constexpr int kMaxAtExit_ms = 10'000;
pid_t importer = 0;

// Runs when Python has ended, before C++'s statics are destroyed, which no thread may use then:
// daemon threads may have kept engines, or run without the GIL. Engines stop at their next layer
// or step.
void end_threads() {
  for (const auto& engine : engines()) {
    if (const EnginePointer open = engine.lock()) open->close();
  }
  if (getpid() != importer) return;  // a fork, whose threads are not there
  for (int ms = 0; ms < kMaxAtExit_ms && ReleasedGil::num_running() > 0; ++ms)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

py::dict model_info(const Engine& engine) {
  const engine::ModelInfo& f = engine.model_info();
  return py::dict("family"_a = f.family, "directory"_a = f.directory,
                  "config_json"_a = f.config_json, "vocab_size"_a = f.vocab_size,
                  "max_positions"_a = f.max_positions, "num_layers"_a = f.num_layers,
                  "num_parameters"_a = f.num_parameters, "eos_ids"_a = f.eos_ids,
                  "bf16_products"_a = f.bf16_products);
}

engine::EngineOptions options_of(const py::object& model, const py::kwargs& given) {
  engine::EngineOptions o;
  o.model = text_of(model, "model");
  if (given.contains("mixed_precision")) text_of(given["mixed_precision"], "mixed_precision");
  if (given.contains("device")) text_of(given["device"], "device");
  Fields fields(given, "engine: options");
  fields.take("mixed_precision", o.mixed_precision);
  fields.take("device", o.device);
  fields.take("value_head", o.value_head);
  fields.take("token_budget", o.token_budget);
  fields.take("kv_tokens", o.kv_tokens);
  fields.take("activation_bytes", o.activation_bytes);
  fields.take("max_sequences", o.max_sequences);
  fields.take("prefill_tokens", o.prefill_tokens);
  fields.take("sampling_share", o.sampling_share);
  fields.take("gather_ms", o.gather_ms);
  fields.take("max_queued", o.max_queued);
  fields.take("max_queued_total", o.max_queued_total);
  fields.take("max_queued_bytes", o.max_queued_bytes);
  fields.take("max_queued_bytes_total", o.max_queued_bytes_total);
  fields.take("resident_bytes", o.resident_bytes);
  fields.take("park_directory", o.park_directory);
  fields.take("deterministic", o.deterministic);
  fields.take("decode_graphs", o.decode_graphs);
  fields.take("train_graphs", o.train_graphs);
  fields.finish();
  return o;
}

py::dict batch(const engine::BatchStats& b) {
  return py::dict("num_tokens"_a = b.num_tokens, "num_tenants"_a = b.num_tenants);
}

py::dict tenants_of(const engine::Stats& s) {
  py::dict out;
  for (const auto& [name, t] : s.tenants)
    out[py::str(name)] = py::dict("num_queued"_a = t.num_queued, "num_tokens"_a = t.num_tokens,
                                  "num_sampled_tokens"_a = t.num_sampled);
  return out;
}

py::dict stats(const Engine& engine) {
  const engine::Stats s = engine.stats();
  const engine::SamplingStats sampling = engine.sampling();
  const engine::ParkingStats parking = engine.parking();
  py::list last;
  for (const engine::BatchStats& b : s.last_batches) last.append(batch(b));
  return py::dict(
      "num_queued"_a = s.num_queued, "queued_bytes"_a = s.queued_bytes,
      "num_batches"_a = s.num_batches, "num_passes"_a = s.num_passes,
      "batches"_a = batch(s.batches), "last_batches"_a = last,
      "num_recomputed_layers"_a = engine.num_recomputed_layers(),
      "num_replayed_passes"_a = engine.num_replayed_passes(),
      "graph_failure"_a = engine.graph_failure(), "training_seconds"_a = s.training_seconds,
      "num_sampling_steps"_a = s.num_steps, "sampling_seconds"_a = s.sampling_seconds,
      "num_samples"_a = sampling.num_samples, "num_sequences"_a = sampling.num_sequences,
      "num_computed_tokens"_a = sampling.num_computed_tokens,
      "num_prefix_tokens"_a = sampling.num_shared_tokens, "num_kv_pages"_a = sampling.num_pages,
      "num_free_kv_pages"_a = sampling.num_free_pages, "kv_page_tokens"_a = sampling.page_tokens,
      "num_parked"_a = parking.num_parked, "resident_bytes"_a = parking.resident_bytes,
      "num_returns"_a = parking.num_returns, "num_parking_failures"_a = parking.num_failures,
      "last_parking_failure"_a = parking.last_failure, "tenants"_a = tenants_of(s));
}

void bind_training(py::class_<Engine, EnginePointer>& engine) {
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
             double temperature, bool entropy, bool train, bool logits, bool embedding) {
            return submit(e, engine::Forward{tenant, sequences(items), disable_lora, temperature,
                                             entropy, train, logits, embedding});
          },
          py::kw_only(), "tenant"_a, "sequences"_a, "disable_lora"_a = false, "temperature"_a = 1.0,
          "entropy"_a = false, "train"_a = false, "logits"_a = false, "embedding"_a = false)
      .def(
          "forward_backward",
          [](const EnginePointer& e, std::string tenant, const py::list& items, std::string loss,
             std::string loss_options, double temperature, bool logits) {
            return submit(e, engine::ForwardBackward{tenant, sequences(items), loss, loss_options,
                                                     temperature, logits});
          },
          py::kw_only(), "tenant"_a, "sequences"_a, "loss"_a = "CrossEntropyLoss",
          "loss_options"_a = "", "temperature"_a = 1.0, "logits"_a = false)
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

void bind_state(py::class_<Engine, EnginePointer>& engine) {
  engine
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
             std::string extra_json, int64_t max_shard_bytes) {
            return submit(e,
                          engine::Save{tenant, directory, optimizer, extra_json, max_shard_bytes});
          },
          py::kw_only(), "tenant"_a, "directory"_a, "optimizer"_a = false, "extra_json"_a = "",
          "max_shard_bytes"_a = 0)
      .def(
          "load",
          [](const EnginePointer& e, std::string tenant, std::string directory, bool optimizer,
             bool exact) { return submit(e, engine::Load{tenant, directory, optimizer, exact}); },
          py::kw_only(), "tenant"_a, "directory"_a, "optimizer"_a = false, "exact"_a = false)
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
  here::importer = getpid();
  Py_AtExit(&here::end_threads);
  m.attr("DEVICE_NAMES") = twinkle::engine::kDeviceNames;
  m.def("is_device_name", &twinkle::engine::is_device_name, "name"_a);
  m.def("why_not_on", &twinkle::engine::why_not_on, "device"_a,
        "Why no engine can run on a CUDA device; empty: it can.");
  m.def(
      "default_device",
      [] {
        const auto [name, why_no_cuda] = twinkle::engine::default_device();
        return py::make_tuple(name, why_no_cuda);
      },
      "Where an engine runs if nobody names a device, and why a card that is there is not used.");
  py::class_<Engine, here::EnginePointer> engine(
      m, "Engine",
      "Runs operations of many tenants on one model; engine.h and operation.h state each.");
  engine
      .def(py::init([](const py::object& model, const py::kwargs& options) {
             return here::make_engine(here::options_of(model, options));
           }),
           "model"_a, "Options: the fields of EngineOptions, by name.")
      .def("model_info", &here::model_info, "What is known of the model, as a dict.")
      .def("stats", &here::stats, "What has been done and what waits, as a dict.")
      .def("reset_prefix_cache", &Engine::reset_prefix_cache,
           "Samples submitted from here on share no keys and values with earlier ones.");
  here::bind_training(engine);
  here::bind_state(engine);
  here::bind_sampling(m, engine);
}
