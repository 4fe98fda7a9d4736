#include "twinkle/engine/persist.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "twinkle/io/atomic.h"
#include "twinkle/io/peft/peft.h"
#include "twinkle/model/family.h"
#include "twinkle/model/tensors.h"

namespace twinkle::engine {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTensors = "training.safetensors";
constexpr const char* kFields = "trainer_state.json";
constexpr int64_t kMaxShardBytes = int64_t{5} << 30;

// A checkpoint that load would refuse must not take the place of a good one.
void require_finite(const std::string& name, const at::Tensor& t) {
  require(at::isfinite(t).all().item<bool>(), Code::kInvalid, "engine: save: ", name,
          " holds NaN or infinity; nothing was saved: load an earlier checkpoint");
}

void write_training(const Save& operation, Tenant& tenant, const JsonObject& arithmetic,
                    const fs::path& staging) {
  std::vector<std::pair<std::string, at::Tensor>> tensors = tenant.training_tensors();
  std::vector<TensorView> views;
  for (auto& [name, t] : tensors) {
    require_finite(name, t);
    t = t.contiguous();
    views.push_back(model::view_of(name, t));
  }
  write_safetensors(staging / kTensors, views);
  JsonObject fields;
  fields["checkpoint_version"] = 1;
  fields["arithmetic"] = arithmetic;
  fields["training"] = tenant.training_fields();
  fields["extra"] = operation.extra_json;
  write_file_atomically(staging / kFields, pretty(fields));
}

struct Resumed {
  Tenant::Training training;
  std::string extra;
};

// A replay by other arithmetic would get other bits, and nobody would know why.
void require_same_arithmetic(const Json& state, const JsonObject& ours, const fs::path& file) {
  const Json* saved = find(state, "arithmetic");
  for (const auto& [key, value] : ours) {
    const Json* theirs = saved ? find(*saved, key) : nullptr;
    require(theirs && *theirs == value, Code::kInvalid, "engine: load: exact is true, but ",
            file.string(), " is of an engine whose ", std::string_view(key), " is ",
            theirs ? boost::json::serialize(*theirs) : "not known", ", this one's is ",
            boost::json::serialize(value),
            ": a replay would get other bits; load it in an engine that agrees, or with exact "
            "false to go on from it");
  }
}

// Nothing of the checkpoint may be used unless all of it fits.
Resumed read_training(const fs::path& directory, Tenant& tenant, const JsonObject* arithmetic) {
  const Json state = read_json(directory / kFields);
  require(get<int64_t>(state, "checkpoint_version") == 1, Code::kInvalid,
          "engine: ", (directory / kFields).string(), " has checkpoint_version ",
          get<int64_t>(state, "checkpoint_version"), ", this program reads 1");
  if (arithmetic) require_same_arithmetic(state, *arithmetic, directory / kFields);
  const Json* fields = find(state, "training");
  require(fields && fields->is_object(), Code::kInvalid,
          "engine: load: ", (directory / kFields).string(),
          ": field 'training' is missing or no object");
  const SafetensorsFile file(directory / kTensors);
  std::map<std::string, at::Tensor> tensors;
  for (const StoredTensor& view : file.tensors()) {
    const at::Tensor& t = tensors[view.name] = model::to_float32(view);
    require(at::isfinite(t).all().item<bool>(), Code::kInvalid, "engine: load: ", kTensors, ": ",
            view.name, " holds NaN or infinity");
  }
  return {tenant.parse_training(*fields, tensors), get_or<std::string>(state, "extra", "")};
}

// Files of the base model that a checkpoint carries along, so that it can be used on its own.
constexpr const char* kCarried[] = {"tokenizer.json",     "tokenizer_config.json",
                                    "tokenizer.model",    "special_tokens_map.json",
                                    "added_tokens.json",  "vocab.json",
                                    "merges.txt",         "chat_template.jinja",
                                    "chat_template.json", "generation_config.json"};

bool belongs_to_a_checkpoint(const std::string& name) {
  static constexpr const char* kOwn[] = {"adapter_config.json",
                                         "adapter_model.safetensors",
                                         "config.json",
                                         "model.safetensors.index.json",
                                         kTensors,
                                         kFields};
  const auto is = [&](const char* known) { return name == known; };
  return std::any_of(std::begin(kOwn), std::end(kOwn), is) ||
         std::any_of(std::begin(kCarried), std::end(kCarried), is) ||
         (name.starts_with("model") && name.ends_with(".safetensors"));
}

}  // namespace

void check_target(const fs::path& directory, const fs::path& base, std::string_view field) {
  require(!directory.empty(), Code::kInvalid, field, " is empty; name a directory");
  check_writable(directory, field);
  std::error_code error;
  if (!fs::exists(directory, error)) return;
  require(!fs::equivalent(directory, base, error), Code::kInvalid, field, " ", directory.string(),
          " is the base model's own directory; name another");
  fs::directory_iterator entry(directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code ignored;
    if (entry->is_regular_file(ignored) && belongs_to_a_checkpoint(name)) continue;
    // An earlier save may be replacing the directory.
    const bool gone = entry->symlink_status(ignored).type() == fs::file_type::not_found;
    require(gone, Code::kInvalid, field, " ", directory.string(), " holds '", name,
            "', which is no checkpoint's file, and a save replaces the whole directory; name a new "
            "directory");
  }
  require(!error || error == std::errc::no_such_file_or_directory, Code::kInvalid, field, " ",
          directory.string(), " may not be looked at: ", error.message(),
          "; name another directory");
}

SaveResult save_tenant(const Save& operation, Tenant& tenant, model::Decoder& decoder,
                       lora::Pool& pool, const BaseModel& base) {
  check_target(operation.directory, base.directory);  // again: others may have written there
  require(operation.max_shard_bytes == 0 || tenant.mode() != Mode::kLora, Code::kInvalid,
          "engine: save: max_shard_bytes is ", operation.max_shard_bytes, ", but tenant '",
          tenant.name(), "' is an adapter, which is one file; leave it out");
  AtomicDirectory target(operation.directory);
  if (tenant.mode() == Mode::kLora) {
    lora::Adapter& adapter = pool.at(tenant.slot());
    PeftConfig config = adapter.config();
    if (config.base_model.empty()) config.base_model = base.directory.string();
    for (const lora::Factors& e : adapter.factors()) {
      require_finite(e.path + ".lora_A", e.f.a);
      require_finite(e.path + ".lora_B", e.f.b);
    }
    const auto entries = adapter.entries();
    write_peft(target.staging(), config, entries);
  } else {
    std::vector<TensorView> views;
    for (const auto& w : decoder.weights()) {
      require_finite(w.name, *w.value);
      views.push_back(model::view_of(w.name, *w.value));
    }
    write_model(target.staging(), views,
                {.max_shard_bytes =
                     operation.max_shard_bytes ? operation.max_shard_bytes : kMaxShardBytes});
    Json config = base.config;
    if (decoder.spec().value_head) model::describe_value_head(config.as_object(), decoder.spec());
    config.as_object()["torch_dtype"] = decoder.dtype() == at::kFloat ? "float32" : "bfloat16";
    config.as_object().erase("dtype");
    write_file_atomically(target.staging() / "config.json", pretty(config));
  }
  for (const char* name : kCarried) {
    if (fs::exists(base.directory / name))
      copy_file_atomically(base.directory / name, target.staging() / name);
  }
  if (operation.optimizer) write_training(operation, tenant, base.arithmetic, target.staging());
  target.commit();
  return {fs::absolute(operation.directory).lexically_normal().string()};
}

LoadResult load_tenant(const Load& operation, Tenant& tenant, model::Decoder& decoder,
                       const BaseModel& base) {
  const fs::path directory = operation.directory;
  std::error_code ignored;
  require(fs::is_directory(directory, ignored), Code::kNotFound,
          "engine: load: no checkpoint directory ", directory.string());
  std::optional<Resumed> resumed;
  if (operation.optimizer) {
    require(fs::exists(directory / kFields), Code::kNotFound, "engine: load: ", directory.string(),
            " has no ", kFields, "; it was saved without the optimizer");
    resumed = read_training(directory, tenant, operation.exact ? &base.arithmetic : nullptr);
  }
  if (tenant.mode() == Mode::kLora) {
    tenant.own_adapter().load(read_peft(directory));
  } else {
    require(tenant.mode() == Mode::kFull, Code::kInvalid, "engine: load: tenant '", tenant.name(),
            "' is the frozen base model");
    const Checkpoint checkpoint = Checkpoint::open(directory);
    // Refuses a critic's weights for a causal model, whose head may be tied and so not be read.
    const auto given = model::read_spec(checkpoint.config(), decoder.spec().value_head);
    std::vector<at::Tensor> values;
    for (const auto& w : decoder.weights()) {
      const bool has_none =
          w.name == model::kValueBias && !given.new_head && !checkpoint.contains(w.name);
      values.push_back(
          has_none ? at::zeros_like(*w.value)
                   : model::tensor_of(checkpoint, w.name, w.value->sizes().vec(), decoder.dtype()));
    }
    const auto weights = decoder.weights();
    for (size_t i = 0; i < weights.size(); ++i) weights[i].value->copy_(values[i]);
  }
  tenant.reset_training();
  if (!resumed) return {};
  tenant.load_training(std::move(resumed->training));
  return {resumed->extra};
}

}  // namespace twinkle::engine
