#include "twinkle/engine/checkpoint/persist.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "twinkle/io/atomic.h"
#include "twinkle/io/peft/peft.h"
#include "twinkle/model/family.h"
#include "twinkle/model/tensors.h"

namespace twinkle::engine {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxShardBytes = int64_t{5} << 30;

double largest_in(const at::Tensor& t) {
  if (t.numel() == 0) return 0;
  return at::linalg_vector_norm(t, std::numeric_limits<double>::infinity()).item<double>();
}

// A checkpoint that load would refuse must not take the place of a good one.
void require_finite(const std::string& name, double largest) {
  require(std::isfinite(largest), Code::kInvalid, "engine: save: ", name,
          " holds NaN or infinity; nothing was saved: load an earlier checkpoint");
}

// Nor one that no forward can use.
void require_usable(const std::string& name, const at::Tensor& weight) {
  constexpr double kLargest = 1e18;  // squares of larger ones are no float32
  const double largest = largest_in(weight);
  require_finite(name, largest);
  require(largest <= kLargest, Code::kInvalid, "engine: save: ", name, " holds ", largest,
          ", weights beyond ", kLargest,
          " have no finite products; nothing was saved: load an earlier checkpoint");
}

// A state that was loaded with counts at their limit may be beyond it now; no load would take it.
void require_countable(const JsonObject& fields) {
  const auto check = [](std::string_view field, const Json& value) {
    const bool fits = value.is_double() ? value.get_double() <= static_cast<double>(kMaxCount)
                                        : value.get_int64() <= kMaxCount;
    require(fits, Code::kInvalid, "engine: save: field '", field, "' of the training state is ",
            value, ", it must be from 0 to ", kMaxCount,
            "; nothing was saved: save without the optimizer, and train on in a new tenant");
  };
  for (const char* field : {"calls", "published", "num_tokens"}) check(field, fields.at(field));
  const Json* optimizer = fields.if_contains("optimizer");
  const Json* steps = optimizer ? find(*optimizer, "steps") : nullptr;
  for (const auto& [param, count] : steps ? steps->as_object() : JsonObject())
    check("steps of " + std::string(param), count);
}

std::string training_text(const Save& operation, Tenant& tenant, const JsonObject& arithmetic) {
  JsonObject fields;
  fields["checkpoint_version"] = kCheckpointVersion;
  fields["arithmetic"] = arithmetic;
  const Json training = tenant.training_fields();
  require_countable(training.as_object());
  fields["training"] = training;
  fields["extra"] = operation.extra_json;
  std::string text = pretty(fields);
  require(std::ssize(text) <= kMaxJsonBytes, Code::kInvalid, "engine: save: extra_json has ",
          operation.extra_json.size(), " bytes, with which ", kTrainingFields, " has ", text.size(),
          ", the limit is ", kMaxJsonBytes, "; nothing was saved: keep less in it");
  return text;
}

void write_training(Tenant& tenant, const std::string& text, const fs::path& staging) {
  std::vector<std::pair<std::string, at::Tensor>> tensors = tenant.training_tensors();
  std::vector<TensorView> views;
  for (auto& [name, t] : tensors) {
    require_finite(name, largest_in(t));
    t = t.contiguous();
    views.push_back(model::view_of(name, t));
  }
  write_safetensors(staging / kTrainingTensors, views);
  write_file_atomically(staging / kTrainingFields, text);
}

// Files of the base model that a checkpoint carries along, so that it can be used on its own.
constexpr const char* kCarried[] = {"tokenizer.json",     "tokenizer_config.json",
                                    "tokenizer.model",    "special_tokens_map.json",
                                    "added_tokens.json",  "vocab.json",
                                    "merges.txt",         "chat_template.jinja",
                                    "chat_template.json", "generation_config.json"};

bool belongs_to_a_checkpoint(const std::string& name) {
  static constexpr const char* kOwn[] = {"adapter_config.json", "adapter_model.safetensors",
                                         "config.json",         "model.safetensors.index.json",
                                         kTrainingTensors,      kTrainingFields};
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
  for (const std::string& name : names_in(directory, error)) {
    const fs::path path = directory / name;
    std::error_code ignored;
    if (fs::is_regular_file(path, ignored) && belongs_to_a_checkpoint(name)) continue;
    // An earlier save may be replacing the directory.
    const bool gone = fs::symlink_status(path, ignored).type() == fs::file_type::not_found;
    require(
        gone, Code::kInvalid, field, " ", directory.string(), " holds '", name,
        "', which is not a checkpoint file, and a save replaces the whole directory; name a new "
        "directory");
  }
  require(!error || error == std::errc::no_such_file_or_directory, Code::kInvalid, field, " ",
          directory.string(), " cannot be accessed: ", error.message(), "; name another directory");
}

SaveResult save_tenant(const Save& operation, Tenant& tenant, model::Decoder& decoder,
                       lora::Pool& pool, const BaseModel& base) {
  check_target(operation.directory, base.directory);  // again: others may have written there
  require(operation.max_shard_bytes == 0 || tenant.mode() != Mode::kLora, Code::kInvalid,
          "engine: save: max_shard_bytes is ", operation.max_shard_bytes, ", but tenant '",
          tenant.name(), "' is an adapter, which is one file; leave it out");
  const lora::AdapterRef pin = tenant.pinned(operation.version);
  const std::string training =
      operation.optimizer ? training_text(operation, tenant, base.arithmetic) : "";
  SaveResult result{fs::absolute(operation.directory).lexically_normal().string()};
  AtomicDirectory target(operation.directory);
  if (tenant.mode() == Mode::kLora) {
    lora::Adapter& adapter = pool.at(pin.slot());
    PeftConfig config = adapter.config();
    if (config.base_model.empty()) config.base_model = base.directory.string();
    for (const lora::Factors& e : adapter.factors()) {
      require_usable(e.path + ".lora_A", e.f.a);
      require_usable(e.path + ".lora_B", e.f.b);
    }
    const auto entries = adapter.entries();
    write_peft(target.staging(), config, entries);
  } else {
    std::vector<TensorView> views;
    for (const auto& w : decoder.weights()) {
      require_usable(w.name, *w.value);
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
  std::error_code ignored;  // a .gguf file has them beside it
  const fs::path from =
      fs::is_regular_file(base.directory, ignored) ? base.directory.parent_path() : base.directory;
  for (const char* name : kCarried) {
    if (is_there(from / name)) copy_file_atomically(from / name, target.staging() / name);
  }
  if (operation.optimizer) write_training(tenant, training, target.staging());
  target.commit();
  return result;
}

}  // namespace twinkle::engine
