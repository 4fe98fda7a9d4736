// twinkle._core.Engine: every operation as a method that returns a Future.
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "python/src/fields.h"
#include "python/src/future.h"
#include "python/src/interruptible.h"
#include "python/src/json_caster.h"
#include "python/src/released_gil.h"
#include "python/src/sequences.h"
#include "twinkle/base/error.h"
#include "twinkle/engine/device.h"
#include "twinkle/engine/engine.h"
#include "twinkle/engine/execute/model_info.h"
#include "twinkle/engine/execute/own_tokens.h"
#include "twinkle/mesh/watched_comm.h"
#include "twinkle/text/rust/shared_tokenizer.h"

namespace py = pybind11;
using namespace py::literals;

namespace twinkle::python {

void bind_sampling(py::module_& m, py::class_<engine::Engine, EnginePointer>& engine);

namespace {

const char* noun_of(OptionKind kind) {
  switch (kind) {
    case OptionKind::kFlag:
      return "bool";
    case OptionKind::kInteger:
      return "int";
    case OptionKind::kNumber:
      return "float";
    default:
      return "str";
  }
}

// The tenants of a script's engine are all its own: no prompt is another's secret.
engine::EngineOptions of_scripts() {
  engine::EngineOptions out;
  out.sampler.share_prefixes = true;
  return out;
}

}  // namespace

engine::EngineOptions engine_options_of(const py::dict& given) {
  engine::EngineOptions out = of_scripts();
  const auto all = options_of(out);
  for (const auto& [key, value] : given) {
    const std::string name(utf8(py::str(key), "engine: an option's name"));
    const auto found =
        std::ranges::find_if(all, [&](const AnyOption& one) { return one.name == name; });
    if (found == all.end()) refuse_name(name, names_of(all), "engine: ", "option");
    if (!value.is_none()) set_option(*found, value, "engine: " + name);
  }
  return out;
}

void check_engine_option(const std::string& name, const py::object& value,
                         const std::string& what) {
  engine::EngineOptions unused;
  for (const AnyOption& one : options_of(unused))
    if (one.name == name) return set_option(one, value, what);
}

py::list described_engine_options() {
  const engine::EngineOptions defaults = of_scripts();
  py::list out;
  for (const AnyOption& one : options_of(defaults)) {
    py::dict row;
    row["name"] = std::string(one.name);
    row["default"] = from_json(one.get());
    row["kind"] = noun_of(one.kind);
    row["range"] = one.range();
    row["help"] = std::string(one.help);
    out.append(row);
  }
  return out;
}

namespace {

using engine::Engine;

// All engines of the process, to be closed at its end. The GIL guards them.
std::vector<std::weak_ptr<Engine>>& engines() {
  static std::vector<std::weak_ptr<Engine>> all;
  return all;
}

// None, or the names of the process groups that Python has registered, and the watch of its ranks.
std::optional<engine::Group> group_of(const py::object& given) {
  if (given.is_none()) return std::nullopt;
  const auto [door, control, data, saves, watch, base] =
      given.cast<std::tuple<std::string, std::string, std::string, std::string,
                            std::shared_ptr<mesh::Watch>, std::optional<std::string>>>();
  return engine::Group{mesh::c10d_comm(door, watch),
                       mesh::c10d_comm(control, watch),
                       mesh::c10d_comm(data, watch),
                       mesh::c10d_comm(saves, watch),
                       watch,
                       base ? mesh::c10d_comm(*base, watch) : nullptr};
}

EnginePointer make_engine(const engine::EngineOptions& options,
                          std::optional<engine::Group> group) {
  static const pid_t first = getpid();  // OpenMP's threads are its, too
  require(getpid() == first, Code::kInvalid, "engine: made in process ", first, " before its fork ",
          getpid(), ", which can't have another: its threads are gone; start workers by spawn");
  // The engine's end waits for its thread, without the GIL.
  const EnginePointer engine(
      interruptible([&] { return new Engine(options, text::decoder_of, std::move(group)); }),
      [](Engine* old) {
        const ReleasedGil unlocked;
        std::unique_ptr<Engine>(old).reset();
      });
  std::erase_if(engines(), [](const auto& old) { return old.expired(); });
  engines().push_back(engine);
  return engine;
}

void refuse_own_tokens(const py::list& sequences) {
  engine::OwnTokens labels;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const std::string what = "engine: sequence " + std::to_string(i);
    if (!labels.add(from_python<engine::Example>(sequences[i], what))) return;
  }
  labels.refuse();
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
  return py::dict(
      "family"_a = f.family, "directory"_a = f.directory, "config_json"_a = f.config_json,
      "vocab_size"_a = f.vocab_size, "max_positions"_a = f.max_positions,
      "num_layers"_a = f.num_layers, "num_routed_layers"_a = f.num_routed_layers,
      "num_experts_per_tok"_a = f.num_experts_per_tok, "num_parameters"_a = f.num_parameters,
      "eos_ids"_a = f.eos_ids, "bf16_products"_a = f.bf16_products);
}

// JSON of what the bits of results depend on.
std::string arithmetic(const std::string& precision, const std::string& device,
                       bool deterministic) {
  const at::Device kind = device.starts_with("cpu") ? at::kCPU : at::kCUDA;
  return boost::json::serialize(
      engine::arithmetic_of(engine::dtype_named(precision), kind, deterministic));
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

// Each operation as a method that takes its fields by name.
template <class... Kind>
void bind_operations(py::class_<Engine, EnginePointer>& engine, const std::variant<Kind...>*) {
  const auto bind = [&]<class T>(const T*) {
    const std::string name(T::kName);
    engine.def(
        name.c_str(),
        [where = "engine: " + name](const EnginePointer& e, const py::kwargs& given) {
          return submit(e, from_python<T>(given, where));
        },
        ("By name: " + signature_of<T>() + ". A Future.").c_str());
  };
  (bind(static_cast<const Kind*>(nullptr)), ...);
}

// An operation that is made before it is submitted, once.
struct Made {
  engine::Operation value;
  bool submitted = false;
};

template <class... Kind, class F>
void for_kind(const std::string& name, const std::variant<Kind...>*, F&& f) {
  const bool known = ((Kind::kName == name && (f(static_cast<const Kind*>(nullptr)), true)) || ...);
  require(known, Code::kInvalid, "engine: there is no operation '", name, "'");
}

Made made(const std::string& name, const py::kwargs& given) {
  Made out;
  for_kind(name, static_cast<const engine::Operation*>(nullptr),
           [&]<class T>(const T*) { out.value = from_python<T>(given, "engine"); });
  return out;
}

Future submit_made(const EnginePointer& engine, Made& made) {
  require(!std::exchange(made.submitted, true), Code::kInvalid,
          "engine: the operation has been submitted");
  return submit(engine, std::move(made.value));
}

}  // namespace
}  // namespace twinkle::python

void bind_engine(py::module_& m) {
  namespace here = twinkle::python;
  using twinkle::engine::Engine;
  here::bind_future(m);
  here::importer = getpid();
  Py_AtExit(&here::end_threads);
  m.def("engine_options", &here::described_engine_options,
        "An engine's options: name, default, kind, range and help of each.");
  m.def("check_engine_option", &here::check_engine_option, "name"_a, "value"_a, "what"_a,
        "Raises where an engine would refuse the value of an option; what: its name in the text.");
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
  m.def("refuse_own_tokens", &here::refuse_own_tokens, "sequences"_a,
        "Raises where a batch's labels are their own tokens; sequences: as forward takes them.");
  m.def("arithmetic", &here::arithmetic, "mixed_precision"_a, "device"_a, "deterministic"_a,
        "JSON of what the bits of an engine's results depend on in this process.");
  py::class_<here::Made>(m, "Operation", "An operation that was made, and may be submitted once.")
      .def(py::init(&here::made), "name"_a, "Its fields by name.");
  py::class_<Engine, here::EnginePointer> engine(m, "Engine",
                                                 "Runs operations of many tenants on one model; "
                                                 "engine.h and protocol/operation.h state each.");
  engine
      .def(py::init([](const py::object& model, const py::object& group, py::kwargs options) {
             options["model"] = model;
             return here::make_engine(here::engine_options_of(options), here::group_of(group));
           }),
           "model"_a, "group"_a = py::none(),
           "Options: those of engine_options(), by name; None is the default. group: what "
           "twinkle.engine.group.engine_group() gives.")
      .def("model_info", &here::model_info, "What is known of the model, as a dict.")
      .def("stats", &here::stats, "What has been done and what waits, as a dict.")
      .def("submit", &here::submit_made, "operation"_a, "A Future.")
      .def("reset_prefix_cache", &Engine::reset_prefix_cache,
           "Samples submitted from here on share no keys and values with earlier ones.");
  here::bind_operations(engine, static_cast<const twinkle::engine::Operation*>(nullptr));
  here::bind_sampling(m, engine);
}
