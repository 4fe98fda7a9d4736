#include "twinkle/engine/checkpoint/persist.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>

#include "twinkle/base/fault/fault.h"
#include "twinkle/base/file.h"
#include "twinkle/engine/checkpoint/adapter_digest.h"
#include "twinkle/io/atomic.h"
#include "twinkle/io/folder/eos.h"
#include "twinkle/io/folder/model_code.h"
#include "twinkle/io/peft/card.h"
#include "twinkle/io/peft/peft.h"
#include "twinkle/lora/peft/form.h"
#include "twinkle/lora/per_expert.h"
#include "twinkle/model/family.h"
#include "twinkle/model/weights/tensors.h"

namespace twinkle::engine {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxShardBytes = int64_t{5} << 30;

// The largest of the numbers without their signs, which order as their bits do: NaN is above all.
template <class Bits>
Bits largest_bits(std::span<const std::byte> bytes) {
  constexpr Bits kNoSign = std::numeric_limits<Bits>::max() >> 1;
  Bits largest = 0;
  for (size_t i = 0; i < bytes.size(); i += sizeof(Bits)) {
    Bits bits = 0;
    std::memcpy(&bits, bytes.data() + i, sizeof(Bits));
    largest = std::max(largest, static_cast<Bits>(bits & kNoSign));
  }
  return largest;
}

double largest_in(const TensorView& tensor) {
  require(tensor.dtype == Dtype::kF32 || tensor.dtype == Dtype::kBF16, Code::kInternal,
          "engine: save: ", tensor.name, " is ", name_of(tensor.dtype));
  const uint32_t bits = tensor.dtype == Dtype::kF32
                            ? largest_bits<uint32_t>(tensor.bytes)
                            : uint32_t{largest_bits<uint16_t>(tensor.bytes)} << 16;
  return std::bit_cast<float>(bits);
}

// A checkpoint that load would refuse must not take the place of a good one.
void require_finite(const std::string& name, double largest) {
  require(std::isfinite(largest), Code::kInvalid, "engine: save: ", name,
          " holds NaN or infinity; nothing was saved: load an earlier checkpoint");
}

// Nor, unless it is to be kept as it is, one that no forward can use.
void check_weight(const std::string& name, const TensorView& weight, bool as_is) {
  constexpr double kLargest = 1e18;  // squares of larger ones are no float32
  const double largest = largest_in(weight);
  require_finite(name, largest);
  require(as_is || largest <= kLargest, Code::kInvalid, "engine: save: ", name, " holds ", largest,
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

// `adapter`: the digest of its file; empty: it is no adapter.
std::string training_text(const HeldSave& held, const BaseModel& base, const std::string& adapter) {
  require_countable(held.training.as_object());
  JsonObject fields;
  fields["checkpoint_version"] = kCheckpointVersion;
  fields["num_ranks"] = held.num_ranks;
  fields["arithmetic"] = base.arithmetic;
  if (!adapter.empty()) fields[kAdapterDigest] = adapter;
  if (held.in_runs) fields["mesh"] = base.mesh;
  fields["training"] = held.training;
  fields["extra"] = held.extra;
  std::string text = pretty(fields);
  require(std::ssize(text) <= kMaxJsonBytes, Code::kInvalid, "engine: save: extra_json has ",
          held.extra.size(), " bytes, with which ", kTrainingFields, " has ", text.size(),
          ", the limit is ", kMaxJsonBytes, "; nothing was saved: keep less in it");
  return text;
}

void check_tensors(const HeldSave& held) {
  for (const PeftEntry& e : held.entries) {
    check_weight(e.module + ".lora_A", e.a, held.as_is);
    check_weight(e.module + ".lora_B", e.b, held.as_is);
    if (e.magnitude) check_weight(e.module + ".lora_magnitude_vector", *e.magnitude, held.as_is);
  }
  if (held.score) check_weight(held.score->name, *held.score, held.as_is);
  for (const TensorView& weight : held.weights) check_weight(weight.name, weight, held.as_is);
  for (const TensorView& t : held.tensors) require_finite(t.name, largest_in(t));
}

// No two saves have one staging folder.
std::string name_of_save(const fs::path& staging) { return staging.filename().string(); }

std::map<std::string, std::string> metadata_of_part(const fs::path& staging) {
  return {{"format", "pt"}, {kSave, name_of_save(staging)}};
}

fs::path part_of(const HeldSave& held, const fs::path& folder, int rank) {
  return folder / training_part(rank, held.num_ranks);
}

// The files of the training state: where several ranks write, the parts of all, and which tensor is
// where.
void write_training(const HeldSave& held, const std::string& fields, const fs::path& folder,
                    const Writers& writers) {
  const bool alone = held.num_ranks == 1;
  write_safetensors(alone ? folder / kTrainingTensors : part_of(held, folder, 0), held.tensors,
                    alone ? SafetensorsOptions().metadata : metadata_of_part(folder),
                    Commits::kWithFolder);
  write_file_atomically(folder / kTrainingFields, fields, Commits::kWithFolder);
  if (alone) return;
  writers.wait();
  JsonObject weight_map;
  for (int rank = 0; rank < held.num_ranks; ++rank) {
    const SafetensorsFile part(part_of(held, folder, rank));
    for (const StoredTensor& tensor : part.tensors())
      weight_map[tensor.name] = part.path().filename().string();
  }
  const JsonObject index{{"metadata", {{kSave, name_of_save(folder)}}}, {"weight_map", weight_map}};
  write_file_atomically(folder / kTrainingIndex, pretty(index), Commits::kWithFolder);
}

// Copies the tensors' bytes into one block. On a CPU this is all that a Save keeps others waiting
// for.
std::shared_ptr<std::byte> copy_of(std::vector<TensorView>& views, KeptMemory& memory) {
  constexpr size_t kAlign = 64;
  std::vector<size_t> begins;
  size_t size = 0;
  for (const TensorView& view : views) {
    begins.push_back(size);
    size += (view.bytes.size() + kAlign - 1) / kAlign * kAlign;
  }
  if (size == 0) return nullptr;
  std::shared_ptr<std::byte> copy = memory.take(static_cast<int64_t>(size));
  at::parallel_for(0, std::ssize(views), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto at = static_cast<size_t>(i);
      std::ranges::copy(views[at].bytes, copy.get() + begins[at]);
    }
  });
  for (size_t i = 0; i < views.size(); ++i) {
    views[i].bytes = {copy.get() + begins[i], views[i].bytes.size()};
    views[i].owner.reset();
  }
  return copy;
}

TensorView owning_view(const std::string& name, const at::Tensor& tensor) {
  const at::Tensor whole = tensor.contiguous();
  TensorView out = model::view_of(name, whole);
  if (!out.owner) out.owner = std::make_shared<at::Tensor>(whole);
  return out;
}

// One of `num` matrices of equal size that a weight is stored as.
TensorView matrix_of(const TensorView& weight, size_t index, size_t num, const std::string& name) {
  const size_t size = weight.bytes.size() / num;
  const int64_t rows = weight.shape[0] * weight.shape[1] / static_cast<int64_t>(num);
  return {.name = name,
          .dtype = weight.dtype,
          .shape = {rows, weight.shape[2]},
          .bytes = weight.bytes.subspan(index * size, size),
          .owner = weight.owner};
}

// The contents of a model's files: the weights in parts or not, as the base's files have them, and
// what the decoder does not read.
struct Stored {
  std::vector<TensorView> weights;
  std::vector<StoredTensor> kept;
};

Stored stored_form(const std::vector<TensorView>& weights, const BaseModel& base) {
  const model::Layout& layout = base.spec.layout;
  if (layout.stacks.empty() && base.kept.empty()) return {weights, {}};
  const Checkpoint files = Checkpoint::open(base.directory);
  Stored out;
  for (const TensorView& weight : weights) {
    std::vector<std::string> parts;
    if (weight.shape.size() == 3 && !files.contains(weight.name))
      parts = layout.parts_of(weight.name, weight.shape[0]);
    if (parts.empty()) out.weights.push_back(weight);
    for (size_t i = 0; i < parts.size(); ++i)
      out.weights.push_back(matrix_of(weight, i, parts.size(), parts[i]));
  }
  for (const std::string& name : base.kept) {
    const StoredTensor& kept = files.at(name);  // FP8 is in the type of the weights, as those are
    const bool narrows = kept.dequantised && base.dtype == at::kBFloat16;
    out.kept.push_back(narrows ? in_bf16(kept) : kept);
  }
  return out;
}

void say_dtype(JsonObject& config, at::ScalarType dtype) {
  config["torch_dtype"] = dtype == at::kFloat ? "float32" : "bfloat16";
  config.erase("dtype");
}

constexpr const char* kGeneration = "generation_config.json";

// Files of the base model that a checkpoint carries along, so that it can be used on its own.
// Beside an adapter that is not so of a tokenizer whose code auto_map names, as chatglm's and
// internlm2's: copy_code() is for whole models.
constexpr const char* kCarried[] = {
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
    kGeneration,
    // files of the parts that are kept and not read
    "preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json"};

bool is_code(const std::string& name) { return name.ends_with(".py"); }

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// True if both are files of the same bytes.
bool is_copy(const fs::path& file, const fs::path& of) {
  std::error_code ignored;
  return is_file(file) && is_file(of) &&
         fs::file_size(file, ignored) == fs::file_size(of, ignored) &&
         read_file(file) == read_file(of);
}

// An earlier save's, maybe of another base or of what the base had then. A user's own script may
// have the name of one of the base's, and is not to go.
bool is_own_code(const fs::path& directory, const std::string& name, const fs::path& base) {
  return is_code(name) &&
         (is_copy(directory / name, base / name) || model_code_in(directory).contains(name));
}

bool belongs_to_a_checkpoint(const fs::path& directory, const std::string& name,
                             const fs::path& base) {
  static constexpr const char* kOwn[] = {
      "adapter_config.json", kAdapterFile,    "config.json", "model.safetensors.index.json",
      kTrainingTensors,      kTrainingFields, kTrainingIndex};
  const auto is = [&](const char* known) { return name == known; };
  return std::any_of(std::begin(kOwn), std::end(kOwn), is) ||
         std::any_of(std::begin(kCarried), std::end(kCarried), is) ||
         is_own_code(directory, name, base) || (is(kPeftCard) && is_peft_card(directory / name)) ||
         ((name.starts_with("model") || name.starts_with(kTrainingPart)) &&
          name.ends_with(".safetensors"));
}

// The code of a family that transformers reads by auto_map alone, beside a whole model. It is
// copied and never run.
void copy_code(const fs::path& base, const fs::path& staging) {
  for (const std::string& name : model_code_in(base))
    write_file_atomically(staging / name, read_file(base / name), Commits::kWithFolder);
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
    if (fs::is_regular_file(path, ignored) && belongs_to_a_checkpoint(directory, name, base))
      continue;
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

void CarriedFiles::write(const BaseModel& of, const fs::path& staging, bool is_model) {
  const fs::path& base = of.directory;
  const Lock lock(mutex_);
  if (!files_) {
    // A .gguf file has them beside it.
    const fs::path from = is_file(base) ? base.parent_path() : base;
    std::vector<std::pair<std::string, std::string>> read;
    for (const char* name : kCarried) {
      if (is_there(from / name)) read.emplace_back(name, read_file(from / name));
    }
    files_ = std::move(read);
  }
  for (const auto& [name, text] : *files_)
    write_file_atomically(staging / name,
                          is_model && name == kGeneration ? with_eos(text, of.eos_ids) : text,
                          Commits::kWithFolder);
  if (!is_model || is_there(staging / kGeneration)) return;
  const std::string made = generation_config(model::text_of(of.config), of.eos_ids);
  if (!made.empty()) write_file_atomically(staging / kGeneration, made, Commits::kWithFolder);
}

int64_t carried_bytes(const fs::path& base) {
  const fs::path from = is_file(base) ? base.parent_path() : base;
  int64_t out = 0;
  for (const char* name : kCarried) {
    std::error_code error;
    const uintmax_t bytes = fs::file_size(from / name, error);
    if (!error) out += static_cast<int64_t>(bytes);
  }
  return out;
}

int64_t HeldSave::num_bytes() const {
  size_t out = 0;
  for (const PeftEntry& e : entries)
    out += e.a.bytes.size() + e.b.bytes.size() + (e.magnitude ? e.magnitude->bytes.size() : 0);
  if (score) out += score->bytes.size();
  for (const TensorView& weight : weights) out += weight.bytes.size();
  for (const TensorView& t : tensors) out += t.bytes.size();
  return static_cast<int64_t>(out);
}

namespace {

// In the form that peft reads, unless another is asked for, there is none, or nobody else is to
// read it.
void hold_adapter(HeldSave& out, const Save& operation, lora::Pool& pool,
                  const model::Layout& layout) {
  const lora::Adapter& adapter = pool.at(out.pin.slot());
  if (const lora::LabelHead& head = adapter.label_head(); head.defined())
    out.score = model::view_of(lora::kLabelWeight, head.weight);
  const std::vector<lora::LinearShape> linears = lora::shapes_of(pool.linears());
  const bool is_pissa = lora::is_pissa(adapter.config());
  if (operation.expert_format == kPerExpert && !is_pissa) {
    auto [config, entries] = lora::per_expert(adapter, linears);
    out.config = std::move(config);
    out.entries = std::move(entries);
    return;
  }
  lora::PeftForm form{.config = adapter.config()};
  if (layout.has_stacked_experts && !operation.as_is)
    form = lora::peft_form(adapter.config(), linears);
  if (!form.missing.empty())
    TORCH_WARN(
        "engine: save: peft cannot read the adapter of tenant '", operation.tenant,
        "': ", form.missing,
        ", and its stacks have one of each; it is saved with factors of each "
        "expert, which are read here. For peft, give one rank and one scale to all experts of a "
        "stack, and to gate_proj and up_proj scales of which one is 1, 2, 4, ... times the other");
  out.config = form.config;
  if (!layout.has_stacked_experts)
    lora::name_sizes_of_experts(out.config, lora::experts_of(adapter, linears));
  out.entries = form.is_own ? adapter.entries() : lora::peft_entries(adapter, form, linears);
  if (!form.is_own || is_pissa) out.own = adapter.config();
  out.config = lora::config_of_file(std::move(out.config));
}

}  // namespace

HeldSave hold(const Save& operation, Tenant& tenant, const HeldModel& model, lora::Pool& pool,
              KeptMemory& memory) {
  const bool is_adapter = tenant.mode() == Mode::kLora;
  require(operation.expert_format.empty() || is_adapter, Code::kInvalid,
          "engine: save: expert_format is '", operation.expert_format, "', but tenant '",
          tenant.name(),
          "' is no adapter; leave it out: a model's experts are saved as its "
          "checkpoint has them");
  require(operation.max_shard_bytes == 0 || !is_adapter, Code::kInvalid,
          "engine: save: max_shard_bytes is ", operation.max_shard_bytes, ", but tenant '",
          tenant.name(), "' is an adapter, which is one file; leave it out");
  HeldSave out{.directory = operation.directory,
               .max_shard_bytes = operation.max_shard_bytes,
               .as_is = operation.as_is,
               .pin = tenant.pinned(operation.version),
               .rank = tenant.rank(),
               .num_ranks = tenant.num_ranks(),
               .in_runs = !is_adapter && tenant.num_ranks() > 1};
  if (is_adapter && out.rank == 0) {
    hold_adapter(out, operation, pool, model.decoder.spec().layout);
    if (lora::has_mixtrals_names(model.decoder.spec().layout))
      lora::give_mixtrals_names(out.config, out.entries);
  } else if (!is_adapter) {
    // All ranks visit, since they may hold parts; the first one writes.
    const bool stays = model.decoder.has_all();  // asked before a piece is in use
    model.decoder.visit_weights([&](const model::NamedWeight& w) {
      if (!model.is_written) return;
      out.weights.push_back(stays ? model::view_of(w.name, *w.value)
                                  : owning_view(w.name, w.value->clone()));
    });
  }
  if (is_adapter && out.rank > 0) out.pin = {};  // its factors are not written here
  if (!operation.optimizer) return out;
  out.training = tenant.training_fields(operation.gradients);
  out.extra = operation.extra_json;
  for (const auto& [name, t] : tenant.training_tensors(operation.gradients))
    out.tensors.push_back(owning_view(name, t));
  if (is_adapter) out.copy = copy_of(out.tensors, memory);
  return out;
}

SaveResult write(const HeldSave& held, const BaseModel& base, CarriedFiles& carried,
                 const Writers& writers) {
  fault("before a save's files");
  if (held.rank > 0) {
    check_tensors(held);
    write_safetensors(part_of(held, writers.folder, held.rank), held.tensors,
                      metadata_of_part(writers.folder));
    return {};
  }
  check_target(held.directory, base.directory);  // again: others may have written there
  const bool with_training = !held.training.is_null();
  const bool is_adapter = held.weights.empty();
  // With any digest, to find out whether it can be written.
  std::string training =
      with_training ? training_text(held, base, std::string(is_adapter ? kDigestSize : 0, '0'))
                    : "";
  check_tensors(held);
  SaveResult result{fs::absolute(held.directory).lexically_normal().string()};
  AtomicDirectory target(held.directory);
  if (with_training && held.num_ranks > 1) writers.begin(fs::absolute(target.staging()).string());
  if (is_adapter) {
    PeftConfig config = held.config;
    if (config.base_model.empty()) config.base_model = base.directory.string();
    write_peft(target.staging(), config, held.entries, held.own ? &*held.own : nullptr,
               held.score ? &*held.score : nullptr);
    if (!held.as_is)
      write_file_atomically(target.staging() / kPeftCard, peft_card(config), Commits::kWithFolder);
    if (with_training)
      training = training_text(held, base, digest_of(target.staging() / kAdapterFile));
  } else {
    const Stored stored = stored_form(held.weights, base);
    write_model(target.staging(), stored.weights,
                {.max_shard_bytes = held.max_shard_bytes ? held.max_shard_bytes : kMaxShardBytes},
                stored.kept);
    Json config = base.config;
    if (base.spec.value_head) model::describe_value_head(config.as_object(), base.spec);
    say_dtype(config.as_object(), base.dtype);
    if (Json* const text = config.as_object().if_contains("text_config"))  // read alone, too
      say_dtype(text->as_object(), base.dtype);
    write_file_atomically(target.staging() / "config.json", pretty(config), Commits::kWithFolder);
    if (!held.as_is) copy_code(base.directory, target.staging());
  }
  // A state to resume from is no model of its own, and there are many of them.
  if (!held.as_is) carried.write(base, target.staging(), !is_adapter);
  if (with_training) write_training(held, training, target.staging(), writers);
  target.commit();
  return result;
}

}  // namespace twinkle::engine
