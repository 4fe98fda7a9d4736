#include "twinkle/engine/execute/decoder_executor.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <malloc.h>

#include <algorithm>

#include "twinkle/engine/checkpoint/load.h"
#include "twinkle/engine/device.h"
#include "twinkle/engine/execute/check.h"
#include "twinkle/engine/execute/memory_checks.h"
#include "twinkle/engine/execute/read_together.h"
#include "twinkle/engine/memory/text_of_error.h"
#include "twinkle/engine/weights/exchange.h"
#include "twinkle/io/peft/peft.h"
#include "twinkle/lora/targets.h"
#include "twinkle/model/config.h"
#include "twinkle/model/weights/tensors.h"

namespace twinkle::engine {
namespace {

// Bytes of copies that wait for the next Save. Larger ones go back to the system.
constexpr int64_t kMaxKeptBytes = int64_t{256} << 20;
// Bytes of Saves that have begun: the next one waits for a slow disk, rather than hold more.
constexpr int64_t kMaxWritingBytes = int64_t{256} << 20;

// Null: this rank has all of the base.
std::unique_ptr<parallel::Shards> shards_of(mesh::Comm* comm, int64_t gathered_bytes) {
  if (comm) return std::make_unique<parallel::Shards>(*comm, gathered_bytes);
  require(
      gathered_bytes == 0, Code::kInvalid, "engine: gathered_bytes is ", gathered_bytes,
      ", but every rank holds all weights of the base: leave it out, or give ranks to fsdp_size");
  return nullptr;
}

// How the text of a Sample is read that has stop strings.
struct PreparedText : Prepared {
  Decode decode;
};

}  // namespace

DecoderExecutor::DecoderExecutor(const EngineOptions& options, Decoders decoders, Comms comms)
    : copies_(kMaxKeptBytes),
      decoders_(std::move(decoders)),
      parking_(options.parking, memory_of_tenants(options)),
      split_(comms.data) {
  const ModelOptions& o = options.model;
  require(!o.path.empty(), Code::kInvalid,
          "engine: model is empty; give a model directory or a .gguf file");
  const at::Device device = device_named(o.device);
  require(split_.alone() || device.is_cpu(), Code::kInvalid, "engine: device is '", o.device,
          "', this version runs several ranks on CPUs; set TWINKLE_DEVICE=cpu");
  base_.dtype = dtype_named(o.mixed_precision);
  shards_ = shards_of(comms.base, o.gathered_bytes);
  read_together(comms.data, [&] { make(options, comms, device); });
}

// The other ranks learn what only this rank may find in its files, or lack.
void DecoderExecutor::make(const EngineOptions& options, const Comms& comms, at::Device device) {
  const ModelOptions& o = options.model;
  const at::ScalarType dtype = base_.dtype;
  const Checkpoint checkpoint = Checkpoint::open(o.path);
  base_.directory = checkpoint.path();
  base_.config = checkpoint.config();
  base_.spec = model::spec_of(checkpoint, o.value_head);
  model::Borders& borders = shards_ ? *shards_ : model::no_borders();
  decoder_ = std::make_unique<model::Decoder>(base_.spec, checkpoint, dtype, device, borders);
  const int64_t kv_tokens = options.sampler.kv_tokens;
  const auto cache = static_cast<double>(
      sampler::PagedCache::num_bytes(decoder_->states(), dtype, sampler::pages_for(kv_tokens)));
  require_cache_fits(kv_tokens, cache, device);
  const int64_t sequences = options.sampler.max_sequences;
  const double states = sampler::layout_of(decoder_->states()).num_bytes(sequences);
  require_states_fit(sequences, states, cache, device);
  double weights = 0;
  for (const auto& w : decoder_->weights()) {
    base_.weights.push_back({w.name, w.value->sizes().vec()});
    weights += static_cast<double>(w.value->nbytes());
  }
  if (shards_) weights = static_cast<double>(shards_->most_bytes());
  require_share(o.memory_share, weights, cache + states, device);
  if (!split_.alone()) {
    const int fsdp = comms.base ? comms.base->size() : 1, rank = comms.data.rank();
    require(!comms.base || comms.base->rank() == rank % fsdp, Code::kInternal,
            "engine: ranks that share the base must follow one another");
    ownership_ = std::make_unique<parallel::Ownership>(*decoder_, comms.data.size(), fsdp);
    base_.runs = ownership_->runs(rank);
    base_.mesh = JsonObject{{"dp", comms.data.size() / fsdp}, {"fsdp", fsdp}};
  }
  base_.kept = decoder_->kept();
  base_.linears = lora::shapes_of(decoder_->linears());
  decoder_->limit_activations(o.activation_bytes);
  decoder_->set_exact(o.deterministic);
  num_threads_ = at::get_num_threads();
  pool_ = std::make_unique<lora::Pool>(*decoder_);
  model_info_ = facts_of(*decoder_, checkpoint);
  base_.eos_ids = model_info_.eos_ids;
  base_.arithmetic = arithmetic_of(dtype, device, o.deterministic);
  model_info_.arithmetic = boost::json::serialize(base_.arithmetic);
  // A recording's gradients stay where they are; those of a split pass move.
  const bool records = o.train_graphs && split_.alone();
  graphs_ =
      std::make_unique<lora::TrainGraphs>(*decoder_, *pool_, records ? lora::TrainGraphs::kMax : 0);
  training_ = std::make_unique<Training>(
      PassContext{*decoder_, *pool_, *graphs_, split_},
      [this](const std::string& name) -> Tenant& { return tenant(name); });
  sampling_ =
      std::make_unique<Sampling>(*decoder_, options.sampler, model_info_.eos_ids, comms.data);
}

std::string DecoderExecutor::graph_failure() const {
  const auto of_sampling = sampling().graph_failure;
  const std::string of_training = graphs_->failure();
  return of_training.empty() && of_sampling ? *of_sampling : of_training;
}

DecoderExecutor::~DecoderExecutor() = default;

// A thread begins with torch's default.
void DecoderExecutor::begin() { at::set_num_threads(num_threads_); }

Tenant& DecoderExecutor::look_up(const std::string& name) const {
  const auto it = tenants_.find(name);
  require(it != tenants_.end(), Code::kNotFound, "engine: no tenant '", name, "'");
  return *it->second;
}

Tenant& DecoderExecutor::tenant(const std::string& name) {
  Tenant& found = look_up(name);
  try {
    parking_.use(found);
  } catch (const std::exception& error) {
    give_up(error);  // the others have theirs, and go on to what they do together
    throw;
  }
  return found;
}

bool DecoderExecutor::changes_base(const Operation& operation) {
  if (const auto* op = std::get_if<ReplaceWeights>(&operation)) return shelf_.has_base(op->number);
  if (!std::holds_alternative<Step>(operation) && !std::holds_alternative<Load>(operation) &&
      !std::holds_alternative<Delete>(operation))
    return false;
  const auto it = tenants_.find(tenant_of(operation));
  return it != tenants_.end() && it->second->mode() == Mode::kFull;
}

bool DecoderExecutor::joins(const Operation& operation) const {
  // With its tenant's dropout, a forward waits until it is known whose turn of dropout it is.
  if (const auto* op = std::get_if<Forward>(&operation)) return !op->train;
  const auto* op = std::get_if<ForwardBackward>(&operation);
  const loss::Loss* loss = op ? loss::look_up(op->loss) : nullptr;
  if (!loss || !loss->separable()) return false;
  // Where the head learns, or experts share factors, one operation of a tenant has a pass: experts
  // add their gradients to what they share when an operation ends. Of an adapter that a save is
  // still to write nothing is known.
  const auto shape = prefetch_.shape_of(op->tenant);
  return shape && (shape->mode != Mode::kLora ||
                   !(lora::targets_head(shape->adapter) || shape->adapter.share_expert_factors));
}

int64_t DecoderExecutor::max_result_bytes(const Operation& operation, bool streams) const {
  return engine::max_result_bytes(operation, spec(), streams);
}

std::shared_ptr<Prepared> DecoderExecutor::prepare(const Operation& operation,
                                                   const Reserve& reserve) {
  const auto* sample = std::get_if<Sample>(&operation);
  if (!sample) return prefetch_.prepare(operation, reserve);
  const auto stops = [](const SamplingParams& p) { return !p.stop.empty(); };
  if (!decoders_ || std::ranges::none_of(sample->params, stops)) return nullptr;
  auto out = std::make_shared<PreparedText>();
  out->decode = decoders_(sample->tokenizer);
  return out;
}

bool DecoderExecutor::waits(const Operation& operation) {
  if (writing_.empty()) return false;
  if (num_models_written_ > 0 && changes_base(operation)) return true;
  const auto is_written = [this](const std::string& directory) {
    return !directory.empty() && writing_.contains(resolved_name(directory));
  };
  if (const auto* op = std::get_if<Load>(&operation)) return is_written(op->directory);
  if (const auto* op = std::get_if<Create>(&operation)) return is_written(op->directory);
  return std::holds_alternative<Save>(operation) && writing_bytes_ >= kMaxWritingBytes;
}

// A lone Sample always has room.
SampleRoom DecoderExecutor::sample_room(const Sample& sample, int64_t promised) {
  const auto it = tenants_.find(sample.tenant);
  if (parking_.limit() == 0 || it == tenants_.end() || it->second->mode() != Mode::kLora) return {};
  if (promised == kNoLimit) return {.is_needed = true, .fits = false};
  const Tenant& who = *it->second;
  if (who.is_read()) return {.is_needed = true};
  const int64_t bytes = parking_.bytes_of(who), wanted = promised + bytes;
  const bool fits = parking_.has_room(wanted) || parking_.bytes_in_use() + promised == 0 ||
                    parking_.bytes_in_use(training_->tenants()) + wanted <= parking_.limit();
  return {.is_needed = true, .fits = fits, .bytes = fits ? bytes : 0};
}

int64_t DecoderExecutor::batch_room() {
  if (parking_.limit() == 0) return kNoLimit;
  return std::max<int64_t>(0, parking_.limit() - parking_.bytes_in_use(training_->tenants()));
}

// Gradients, or, of those that are there, the copy to go back to, come in addition.
int64_t DecoderExecutor::batch_bytes(const std::string& tenant) {
  const auto it = tenants_.find(tenant);
  if (it == tenants_.end()) return 0;
  return parking_.bytes_of(*it->second) + it->second->adapter_bytes();
}

// One rank: nothing.
void DecoderExecutor::give_up(const std::exception& error) {
  split_.give_up(text_of(error));
  if (shards_) shards_->give_up(text_of(error));
}

// A rank can't leave a common call: the others would wait for it.
template <class F>
auto DecoderExecutor::together(F&& work) {
  try {
    return work();
  } catch (const Error& error) {
    if (error.code == Code::kInternal) give_up(error);
    throw;  // the others are the same on all
  } catch (const std::exception& error) {
    give_up(error);
    throw;
  }
}

FirstPart DecoderExecutor::first_part(const Operation& operation) {
  const auto* op = std::get_if<Save>(&operation);
  if (!op) return {};
  Tenant& who = tenant(op->tenant);
  const int64_t models = who.mode() == Mode::kLora ? 0 : 1;
  // On a CPU a model that is there is written from where it is.
  const bool is_in_place = models > 0 && decoder_->device().is_cpu() && decoder_->has_all();
  const bool is_first = split_.comm().rank() == 0;
  // A base in parts is brought together for it.
  const auto held = std::make_shared<HeldSave>(
      together([&] { return hold(*op, who, {*decoder_, is_first}, *pool_, copies_); }));
  const int64_t bytes = is_in_place ? 0 : held->num_bytes();
  const auto place = writing_.insert(resolved_name(op->directory));
  writing_bytes_ += bytes;
  num_models_written_ += models;
  const std::shared_ptr<void> until_written(this, [this, place, bytes, models](void*) {
    writing_.erase(place);
    writing_bytes_ -= bytes;
    num_models_written_ -= models;
  });
  end_round();
  return {.rest = [this, held, until_written](const Writers& writers) -> Result {
            return write(*held, base_, carried_, writers);
          },
          .holds_tenant = models > 0 && op->optimizer && op->gradients && who.has_gradients()};
}

Result DecoderExecutor::run(const Operation& operation, Prepared* prepared) {
  if (const auto* op = std::get_if<Delete>(&operation)) {
    together([&] { remove(*op, prepared); });
    trim_heaps();
    return Done{};
  }
  if (std::holds_alternative<Park>(operation)) {
    const Tenant& idle = look_up(tenant_of(operation));  // it may be parked already
    end_round();                                         // an operation that failed has not
    untrimmed_bytes_ += parking_.park_now(idle);
    trim_heaps();
    return Done{};
  }
  Result result = Done{};
  if (const auto* op = std::get_if<Create>(&operation))
    create(*op, prepared);
  else
    result = run_on(tenant(tenant_of(operation)), operation, prepared);
  end_round();
  return result;
}

// The files that prepare() has read, or that are read now.
template <class Read>
Loaded DecoderExecutor::taken(Prepared* prepared, const TenantShape& shape, Read&& read) {
  Loaded out = take(prepared, shape, read);
  untrimmed_bytes_ += num_bytes(out);
  return out;
}

// All ranks throw if one finds an error in its folder, or reads otherwise than another.
template <class Read>
Loaded DecoderExecutor::taken_together(Prepared* prepared, const TenantShape& shape,
                                       const std::string& folder, Read&& read) {
  return read_alike(split_.comm(), folder, [&] { return taken(prepared, shape, read); });
}

// Memory that other threads have filled and this one has freed stays in their heaps, and so do
// small tensors that were parked. Not at every load: it takes time in proportion to the heaps.
void DecoderExecutor::trim_heaps() {
  constexpr int64_t kMaxUntrimmed = int64_t{64} << 20;
  if (untrimmed_bytes_ < kMaxUntrimmed) return;
  untrimmed_bytes_ = 0;
  ::malloc_trim(0);
}

void DecoderExecutor::replace(const ReplaceWeights& op, Tenant& who) {
  const NewWeights weights = shelf_.take_weights(op.number);
  together([&] { replace_weights(weights, who, {*decoder_, shards_.get()}, *pool_); });
  // Adapters have versions of their own, which know nothing of the base model's.
  if (!weights.base.empty()) sampling_->forget_prefixes();
}

Result DecoderExecutor::run_on(Tenant& who, const Operation& operation, Prepared* prepared) {
  if (const auto* op = std::get_if<Step>(&operation))
    return together([&] { return who.step(*op); });
  if (const auto* op = std::get_if<ClipGradNorm>(&operation))
    return together([&] { return who.clip(*op); });
  if (std::holds_alternative<ZeroGrad>(operation)) {
    who.zero_grad();
    return Done{};
  }
  if (std::holds_alternative<Publish>(operation)) return PublishResult{who.publish()};
  if (const auto* op = std::get_if<Release>(&operation)) {
    who.release(op->version);
    return Done{};
  }
  if (const auto* op = std::get_if<Load>(&operation)) {
    TenantShape shape{.mode = who.mode()};
    if (shape.mode == Mode::kLora) shape.adapter = who.adapter().config();
    return together([&] {
      const auto read = [&] { return read_checkpoint(*op, shape, base_); };
      return load_tenant(taken_together(prepared, shape, op->directory, read), who, *decoder_);
    });
  }
  if (const auto* op = std::get_if<ReadWeights>(&operation)) {
    shelf_.take_reader(op->number)(view_of(who, {*decoder_, shards_.get()}, *pool_));
    return Done{};
  }
  if (const auto* op = std::get_if<ReplaceWeights>(&operation)) {
    replace(*op, who);
    return Done{};
  }
  return together([&] { return who.inspect(std::get<Inspect>(operation).tensors); });
}

std::unique_ptr<lora::Adapter> DecoderExecutor::new_adapter(const Create& op, Prepared* prepared) {
  if (op.frozen) return nullptr;
  if (!op.directory.empty()) {
    const auto read = [&] { return Loaded{.adapter = read_adapter(op.directory, base_)}; };
    const lora::SavedAdapter saved =
        *taken_together(prepared, {.mode = Mode::kLora}, op.directory, read).adapter;
    auto adapter = std::make_unique<lora::Adapter>(saved.config, pool_->linears(), std::nullopt);
    adapter->load(saved);
    return adapter;
  }
  if (op.lora_json.empty()) return nullptr;
  return std::make_unique<lora::Adapter>(config_of(op), pool_->linears(), op.seed);
}

// A tenant that trains the base model is alone with it: there is one copy, and others would read
// its changes.
void DecoderExecutor::require_room(const Create& op) const {
  require(!tenants_.contains(op.tenant), Code::kConflict, "engine: tenant '", op.tenant,
          "' exists already");
  if (tenants_.empty()) return;
  const auto& [name, first] = *tenants_.begin();
  require(first->mode() != Mode::kFull, Code::kConflict, "engine: tenant '", name,
          "' trains all weights of the base model; delete it first");
  require(op.frozen || !op.lora_json.empty() || !op.directory.empty(), Code::kConflict,
          "engine: tenant '", op.tenant, "' is to train all weights of the base model, which ",
          tenants_.size(), " others use, '", name, "' among them; delete them first");
}

void DecoderExecutor::create(const Create& op, Prepared* prepared) {
  require_room(op);
  std::unique_ptr<lora::Adapter> adapter = new_adapter(op, prepared);
  const int num_ranks = split_.comm().size();
  const std::string variant = adapter ? lora::variant_of(adapter->config()) : "";
  require(num_ranks == 1 || variant.empty(), Code::kInvalid, "engine: tenant '", op.tenant,
          "' has ", variant, ", and there are ", num_ranks,
          " ranks, where it is not there yet: take one, or leave it out");
  TenantShape shape{.mode = op.frozen ? Mode::kFrozen : Mode::kFull};
  if (adapter) shape = {.mode = Mode::kLora, .adapter = adapter->config()};
  const Mode mode = shape.mode;
  lora::AdapterRef pin = adapter ? pool_->add(std::move(adapter)) : lora::AdapterRef();
  const Tenant::Home home{*decoder_, *pool_, &split_.comm(), ownership_.get(), shards_.get()};
  decltype(tenants_) made;
  Tenant& tenant =
      *(made[op.tenant] = std::make_unique<Tenant>(op.tenant, mode, std::move(pin), op.seed, home));
  try {
    parking_.use(tenant);
    prefetch_.add(op.tenant, std::move(shape));
  } catch (...) {
    parking_.forget(tenant);
    throw;
  }
  tenants_.merge(made);  // takes no memory
}

void DecoderExecutor::remove(const Delete& op, Prepared* prepared) {
  Tenant& gone = look_up(op.tenant);  // it may stay parked
  Loaded base;  // the model's before a full-parameter tenant, complete before anything
                // changes
  if (gone.mode() == Mode::kFull)
    base = taken_together(prepared, {.mode = Mode::kFull}, base_.directory.string(),
                          [&] { return read_base(op, base_); });
  if (ownership_ && !base.weights.empty()) {
    gone.load_weights(std::exchange(base.weights, {}));  // the ranks tell each other
    pool_->base_changed();
  }
  const auto& weights = decoder_->weights();
  parking_.forget(gone);
  tenants_.erase(op.tenant);
  prefetch_.remove(op.tenant);
  graphs_->sweep();
  if (base.weights.empty()) return;
  for (size_t i = 0; i < weights.size(); ++i) model::assign(base.weights[i], *weights[i].value);
  pool_->base_changed();
}

// The operation before it has succeeded: a shortage of memory must not fail it.
void DecoderExecutor::end_round() {
  trim_heaps();
  try {
    if (parking_.is_on()) parking_.end_round(training_->tenants());
    graphs_->sweep();
  } catch (const std::bad_alloc&) {
  }
}

void DecoderExecutor::run_batch(std::span<const Work> batch, const std::atomic<bool>& stop,
                                BatchOutcome& outcome) {
  end_round();  // those of the last one have ended since
  try {
    training_->run_batch(batch, stop, outcome);
  } catch (const std::exception& error) {
    // In the middle of a pass: others wait for this rank's part of the base.
    if (shards_) shards_->give_up(text_of(error));
    throw;
  }
  end_round();
}

void DecoderExecutor::start(int64_t id, const Sample& sample, Share share, SampleHooks hooks,
                            Prepared* prepared) {
  const auto* text = dynamic_cast<const PreparedText*>(prepared);
  const Tenant& who = tenant(sample.tenant);
  require(who.num_labels() == 0, Code::kInvalid, "engine: sample: the adapter of tenant '",
          sample.tenant,
          "' has a head of labels, which gives no tokens; sample from another adapter or from the "
          "base model");
  lora::AdapterRef pin = who.pinned(sample.version);
  const uint64_t version = pin.slot() < 0 ? pool_->base_version() : pin.version();
  together([&] {
    sampling_->start(id, sample, share, {std::move(pin), version},
                     {std::move(hooks), text ? text->decode : Decode()});
  });
  end_round();
}

std::vector<Ended> DecoderExecutor::step() {
  return together([this] { return sampling_->step(); });
}

Result DecoderExecutor::commit(int64_t id) {
  if (!training_->has(id)) return sampling_->commit(id);
  const Tenant& who = training_->tenant(id);
  Result result = training_->commit(id);
  parking_.count(who);  // its experts have joined the gradients that they share
  return result;
}

void DecoderExecutor::undo(int64_t id) {
  if (!training_->has(id)) {
    sampling_->undo(id);
    return;
  }
  const Tenant& who = training_->tenant(id);
  training_->undo(id);
  parking_.count(who);  // its gradients are those of before
}

}  // namespace twinkle::engine
