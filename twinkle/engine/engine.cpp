#include "twinkle/engine/engine.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "twinkle/engine/batch.h"
#include "twinkle/engine/persist.h"
#include "twinkle/engine/tenant.h"
#include "twinkle/model/family.h"
#include "twinkle/model/tensors.h"
#include "twinkle/sampler/runner.h"

namespace twinkle::engine {
namespace {

at::ScalarType dtype_named(const std::string& precision) {
  if (precision == "bf16") return at::kBFloat16;
  require(precision == "no" || precision == "fp32", Code::kInvalid, "engine: mixed_precision is '",
          precision, "'; known: bf16, no");
  return at::kFloat;
}

std::vector<int32_t> read_eos(const std::filesystem::path& path, const Json& config) {
  std::vector<int32_t> out;
  const auto add = [&](const Json& from) {
    const Json* eos = find(from, "eos_token_id");
    if (!eos) return;
    const JsonArray ids = eos->is_array() ? eos->get_array() : JsonArray{*eos};
    for (const Json& id : ids) {
      require(id.is_int64(), Code::kInvalid, "engine: eos_token_id is ",
              boost::json::serialize(*eos), ", expected an integer or a list of them");
      out.push_back(static_cast<int32_t>(id.get_int64()));
    }
  };
  add(config);
  const auto generation = path / "generation_config.json";
  if (std::filesystem::exists(generation)) add(read_json(generation));
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

struct Job {
  Operation operation;
  std::promise<Result> promise;
};

bool is_forward(const Operation& op) { return std::holds_alternative<Forward>(op); }
bool is_backward(const Operation& op) { return std::holds_alternative<ForwardBackward>(op); }

}  // namespace

struct Engine::State {
  explicit State(const EngineOptions& options);
  ~State();

  void check(const Operation& operation) const;
  std::vector<std::future<Result>> queue(std::vector<Operation> operations);
  void loop();
  std::vector<Job> take();
  void run(std::vector<Job>& jobs);
  void run_batch(std::vector<Job>& jobs);
  Result run_one(const Operation& operation);
  Tenant& tenant(const std::string& name);

  Done create(const Create& operation);
  void reload_base();  // the weights that were there before a full-parameter tenant
  SampleResult sample(const Sample& operation);

  EngineOptions options;
  BaseModel base;
  ModelFacts facts;
  std::unique_ptr<model::Decoder> decoder;
  std::unique_ptr<lora::Pool> pool;
  std::unique_ptr<sampler::Sampler> sampler;
  std::map<std::string, std::unique_ptr<Tenant>> tenants;  // the engine's thread's

  std::mutex mutex;
  std::condition_variable ready;
  std::deque<Job> jobs;  // under the mutex, like the next two
  Decode decode;
  bool closed = false;
  std::atomic<int64_t> passes = 0;
  std::thread thread;  // last: it uses all of the above
};

Engine::State::State(const EngineOptions& o) : options(o) {
  require(!o.model.empty(), Code::kInvalid,
          "engine: model is empty; give a model directory or a .gguf file");
  require(o.token_budget > 0, Code::kInvalid, "engine: token_budget is ", o.token_budget,
          ", it must be at least 1");
  require(o.kv_tokens > 0, Code::kInvalid, "engine: kv_tokens is ", o.kv_tokens,
          ", it must be at least 1");
  const at::ScalarType dtype = dtype_named(o.mixed_precision);
  const Checkpoint checkpoint = Checkpoint::open(o.model);
  base.directory = checkpoint.path();
  base.config = checkpoint.config();
  const model::DecoderSpec spec = model::read_spec(base.config);
  decoder = std::make_unique<model::Decoder>(spec, checkpoint, dtype);
  decoder->limit_activations(o.activation_bytes);
  pool = std::make_unique<lora::Pool>(*decoder);
  facts.family = spec.family;
  facts.directory = base.directory.string();
  facts.config_json = boost::json::serialize(base.config);
  facts.vocab_size = spec.vocab_size;
  facts.max_positions = spec.max_positions;
  facts.num_layers = spec.num_layers;
  for (const auto& w : decoder->weights()) facts.num_parameters += w.value->numel();
  facts.eos_ids = read_eos(base.directory, base.config);
  thread = std::thread([this] { loop(); });
}

Engine::State::~State() {
  {
    const std::lock_guard lock(mutex);
    closed = true;
  }
  ready.notify_all();
  thread.join();
  tenants.clear();
  for (Job& job : jobs) {
    job.promise.set_exception(std::make_exception_ptr(Error(Code::kBusy, "engine: closed")));
  }
}

void Engine::State::check(const Operation& operation) const {
  require(!tenant_of(operation).empty(), Code::kInvalid, "engine: tenant is empty");
  const auto& spec = decoder->spec();
  const auto check_temperature = [](double t) {
    require(t > 0 && std::isfinite(t), Code::kInvalid, "engine: temperature is ", t,
            ", it must be above 0");
  };
  if (const auto* f = std::get_if<Forward>(&operation)) {
    check_sequences(f->sequences, spec);
    check_temperature(f->temperature);
  } else if (const auto* b = std::get_if<ForwardBackward>(&operation)) {
    check_sequences(b->sequences, spec);
    check_labels(b->sequences);
    check_temperature(b->temperature);
  } else if (const auto* s = std::get_if<Sample>(&operation)) {
    require(!s->prompts.empty(), Code::kInvalid, "engine: sample: prompts is empty");
    require(s->params.size() == 1 || s->params.size() == s->prompts.size(), Code::kInvalid,
            "engine: sample: ", s->params.size(), " parameters for ", s->prompts.size(),
            " prompts; give one, or one for each");
    for (const auto& params : s->params) sampler::validate(params);
  }
}

std::vector<std::future<Result>> Engine::State::queue(std::vector<Operation> operations) {
  for (const Operation& operation : operations) check(operation);
  std::vector<std::future<Result>> futures;
  {
    const std::lock_guard lock(mutex);
    require(!closed, Code::kBusy, "engine: closed");
    for (Operation& operation : operations) {
      jobs.push_back({std::move(operation), {}});
      futures.push_back(jobs.back().promise.get_future());
    }
  }
  ready.notify_one();
  return futures;
}

// The next operation, and with a forward or a backward those of the same kind that other tenants
// have waiting first in their own order, as far as the token budget goes.
std::vector<Job> Engine::State::take() {
  std::unique_lock lock(mutex);
  ready.wait(lock, [this] { return closed || !jobs.empty(); });
  std::vector<Job> out;
  if (closed) return out;
  const bool forward = is_forward(jobs.front().operation),
             backward = is_backward(jobs.front().operation);
  const auto size = [](const Operation& op) {
    return is_forward(op) ? num_tokens(std::get<Forward>(op).sequences)
                          : num_tokens(std::get<ForwardBackward>(op).sequences);
  };
  std::set<std::string>
      passed;  // tenants one of whose operations was taken or left: later ones must wait
  int64_t tokens = 0;
  for (auto it = jobs.begin(); it != jobs.end();) {
    const bool same =
        (forward && is_forward(it->operation)) || (backward && is_backward(it->operation));
    const bool first = passed.insert(tenant_of(it->operation)).second;
    const bool fits = out.empty() || (same && tokens + size(it->operation) <= options.token_budget);
    if (!first || !fits) {
      ++it;
      continue;
    }
    if (same) tokens += size(it->operation);
    out.push_back(std::move(*it));
    it = jobs.erase(it);
    if (!same) break;
  }
  return out;
}

void Engine::State::loop() {
  while (true) {
    std::vector<Job> taken = take();
    if (taken.empty()) return;
    run(taken);
  }
}

void Engine::State::run(std::vector<Job>& taken) {
  if (is_forward(taken[0].operation) || is_backward(taken[0].operation)) return run_batch(taken);
  try {
    taken[0].promise.set_value(run_one(taken[0].operation));
  } catch (...) {
    taken[0].promise.set_exception(std::current_exception());
  }
}

void Engine::State::run_batch(std::vector<Job>& taken) {
  std::vector<Part> parts;
  std::vector<Job*> owners;
  for (Job& job : taken) {
    try {
      Tenant& who = tenant(tenant_of(job.operation));
      if (const auto* f = std::get_if<Forward>(&job.operation)) {
        parts.push_back({&who, f, {}, nullptr});
      } else {
        require(
            who.mode() != Mode::kFrozen, Code::kInvalid, "engine: forward_backward: tenant '",
            who.name(),
            "' is the frozen base model; add an adapter, or create it for full-parameter training");
        parts.push_back({&who, &std::get<ForwardBackward>(job.operation), {}, nullptr});
      }
      owners.push_back(&job);
    } catch (...) {
      job.promise.set_exception(std::current_exception());
    }
  }
  const auto attempt = [&](std::vector<Part>& some) -> std::exception_ptr {
    try {
      passes += run_parts(some, *decoder, options.token_budget);
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  };
  if (parts.empty()) return;
  if (attempt(parts)) {
    // The arithmetic itself failed and every tenant is as before: each alone, so that only the one
    // to blame pays.
    for (Part& part : parts) {
      std::vector<Part> one{{part.tenant, part.operation, {}, nullptr}};
      const std::exception_ptr failure = attempt(one);
      part = one[0];
      if (failure) part.error = failure;
    }
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].error)
      owners[i]->promise.set_exception(parts[i].error);
    else
      owners[i]->promise.set_value(std::move(parts[i].result));
  }
}

Tenant& Engine::State::tenant(const std::string& name) {
  const auto it = tenants.find(name);
  require(it != tenants.end(), Code::kNotFound, "engine: no tenant '", name, "'");
  return *it->second;
}

Result Engine::State::run_one(const Operation& operation) {
  if (const auto* op = std::get_if<Create>(&operation)) return create(*op);
  Tenant& who = tenant(tenant_of(operation));
  if (std::holds_alternative<Delete>(operation)) {
    const bool trained_base = who.mode() == Mode::kFull;
    tenants.erase(who.name());
    if (trained_base) reload_base();
    return Done{};
  }
  if (const auto* op = std::get_if<Step>(&operation)) return who.step(*op);
  if (const auto* op = std::get_if<ClipGradNorm>(&operation)) return who.clip(*op);
  if (std::holds_alternative<ZeroGrad>(operation)) {
    who.zero_grad();
    return Done{};
  }
  if (const auto* op = std::get_if<Sample>(&operation)) return sample(*op);
  if (const auto* op = std::get_if<Save>(&operation))
    return save_tenant(*op, who, *decoder, *pool, base);
  if (const auto* op = std::get_if<Load>(&operation)) return load_tenant(*op, who, *decoder);
  return who.inspect(std::get<Inspect>(operation).tensors);
}

Done Engine::State::create(const Create& op) {
  require(!tenants.contains(op.tenant), Code::kConflict, "engine: tenant '", op.tenant,
          "' exists already");
  const auto busy = [&](Mode mode) {
    return std::any_of(tenants.begin(), tenants.end(),
                       [&](const auto& t) { return t.second->mode() == mode; });
  };
  require(!busy(Mode::kFull) || op.frozen, Code::kConflict,
          "engine: a tenant trains all weights of the base model; delete it first");
  Mode mode = op.frozen ? Mode::kFrozen : Mode::kFull;
  std::unique_ptr<lora::Adapter> adapter;
  if (!op.frozen && !op.directory.empty()) {
    const PeftAdapter saved = read_peft(op.directory);
    adapter = std::make_unique<lora::Adapter>(saved.config, pool->linears(), op.seed);
    adapter->load(saved);
    mode = Mode::kLora;
  } else if (!op.frozen && !op.lora_json.empty()) {
    Json config = parse_json(op.lora_json, "lora config");
    if (config.is_object() && !find(config, "peft_type")) config.as_object()["peft_type"] = "LORA";
    adapter = std::make_unique<lora::Adapter>(peft_config(config, "lora config"), pool->linears(),
                                              op.seed);
    mode = Mode::kLora;
  }
  require(mode != Mode::kFull || !busy(Mode::kLora), Code::kConflict,
          "engine: other tenants train adapters on the base model; delete them before training all "
          "of its weights");
  lora::Pin pin = adapter ? pool->add(std::move(adapter)) : lora::Pin();
  tenants[op.tenant] =
      std::make_unique<Tenant>(op.tenant, mode, std::move(pin), op.seed, *decoder, *pool);
  return {};
}

void Engine::State::reload_base() {
  const Checkpoint checkpoint = Checkpoint::open(options.model);
  for (const auto& w : decoder->weights()) {
    w.value->copy_(model::tensor_of(checkpoint, w.name, w.value->sizes().vec(), decoder->dtype()));
  }
  pool->base_changed();
}

SampleResult Engine::State::sample(const Sample& op) {
  if (!sampler) {
    sampler::SamplerOptions o;
    o.kv_tokens = options.kv_tokens;
    o.eos_ids = facts.eos_ids;
    sampler = std::make_unique<sampler::Sampler>(*decoder, o);
  }
  Decode text;
  {
    const std::lock_guard lock(mutex);
    text = decode;
  }
  const lora::Pin pin = tenant(op.tenant).pinned();
  const uint64_t version = pin.slot() < 0 ? pool->base_version() : pin.version();
  std::vector<sampler::Request> requests;
  for (size_t i = 0; i < op.prompts.size(); ++i) {
    requests.push_back(
        {op.prompts[i], op.params[op.params.size() == 1 ? 0 : i], pin.slot(), version});
  }
  SampleResult result;
  for (sampler::Outcome& outcome : sampler->run(requests, text)) {
    result.completions.push_back(std::move(outcome.completions));
    result.prompts.push_back(std::move(outcome.prompt));
  }
  return result;
}

Engine::Engine(const EngineOptions& options) : state_(std::make_unique<State>(options)) {}
Engine::~Engine() = default;

const ModelFacts& Engine::facts() const { return state_->facts; }

int64_t Engine::num_passes() const { return state_->passes; }
int64_t Engine::num_recomputed_layers() const { return state_->decoder->num_recomputed_layers(); }

void Engine::set_decode(Decode decode) {
  const std::lock_guard lock(state_->mutex);
  state_->decode = std::move(decode);
}

std::future<Result> Engine::submit(Operation operation) {
  std::vector<Operation> one;
  one.push_back(std::move(operation));
  return std::move(state_->queue(std::move(one))[0]);
}

std::vector<std::future<Result>> Engine::submit(std::vector<Operation> operations) {
  return state_->queue(std::move(operations));
}

}  // namespace twinkle::engine
