#include "twinkle/engine/checkpoint/load.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>

#include "twinkle/base/error.h"
#include "twinkle/model/config.h"
#include "twinkle/model/weights/tensors.h"

namespace twinkle::engine {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEmbedding = "model.embed_tokens.weight";

// Weights of another model may have the same names and shapes.
void require_same_model(const model::DecoderSpec& ours, const model::DecoderSpec& theirs,
                        const fs::path& directory) {
  const std::string different = model::difference(ours, theirs);
  require(different.empty(), Code::kInvalid, "engine: load: ", directory.string(),
          " is of another model: its ", different);
}

// Compares the weights that never learn, which no load replaces.
void require_same_constants(const Checkpoint& given, const BaseModel& base) {
  std::vector<std::string> constants;
  std::ranges::copy_if(base.kept, std::back_inserter(constants),
                       [&](const std::string& name) { return !base.spec.layout.skips(name); });
  if (constants.empty()) return;
  const Checkpoint files = Checkpoint::open(base.directory);
  const model::WeightSource ours(files, at::kFloat), theirs(given, at::kFloat);
  for (const std::string& name : constants) {
    const std::vector<int64_t>& shape = files.at(name).shape;
    require(at::equal(ours.read(name, shape), theirs.read(name, shape)), Code::kInvalid,
            "engine: load: ", given.path().string(), " is of another model: its ", name,
            " differs from the base's, which never learns; make an engine of ",
            given.path().string());
  }
}

void require_same_names(const BaseModel& base, const model::Layout& given,
                        const fs::path& directory) {
  const model::Layout& own = base.spec.layout;
  const std::string ours = base.weights.front().name, theirs = given.name(kEmbedding);
  const bool same_class = own.path(kEmbedding) == given.path(kEmbedding);
  require(ours == theirs, Code::kInvalid, "engine: load: ", directory.string(),
          same_class ? " has its tensors by other names than this engine's model, of "
                     : " is saved as another class of this family has it, as text alone or inside "
                       "a model with pictures",
          same_class ? given.is_older ? "the hub's older files and not of transformers 5"
                                      : "transformers 5 and not of the hub's older files"
                     : "",
          ": its embedding is ", theirs, ", this engine's is ", ours, "; make an engine of ",
          directory.string());
}

// All of each weight, or the run that this rank trains.
std::vector<at::Tensor> read_owned(const model::WeightSource& source, const BaseModel& base) {
  std::vector<at::Tensor> out;
  for (size_t i = 0; i < base.weights.size(); ++i) {
    const auto& [name, shape] = base.weights[i];
    out.push_back(base.runs.empty()
                      ? source.read(name, shape)
                      : source.read_run(name, shape, base.runs[i].begin, base.runs[i].end));
  }
  return out;
}

std::vector<at::Tensor> read_weights(const fs::path& directory, const BaseModel& base) {
  const Checkpoint checkpoint = Checkpoint::open(directory);
  // Refuses a critic's weights for a causal model, whose head may be tied and so not be read.
  const model::DecoderSpec given = model::spec_of(checkpoint, base.spec.value_head);
  require_same_model(base.spec, given, directory);
  require_same_names(base, given.layout, directory);
  std::vector<std::string> zeros;
  if (!given.new_head) zeros.emplace_back(model::kValueBias);  // a classifier may have none
  const model::WeightSource source(checkpoint, base.dtype, std::move(zeros), given.layout);
  for (const auto& [name, shape] : base.weights) source.check(name, shape);
  require_same_constants(checkpoint, base);
  return read_owned(source, base);
}

bool same_in_bfloat16(const at::Tensor& a, const at::Tensor& b) {
  constexpr int64_t kAtATime = 1 << 20;  // elements
  const at::Tensor flat_a = a.reshape({-1}), flat_b = b.reshape({-1});
  for (int64_t at = 0; at < flat_a.size(0); at += kAtATime) {
    const int64_t count = std::min(kAtATime, flat_a.size(0) - at);
    const auto rounded = [&](const at::Tensor& t) {
      return t.narrow(0, at, count).to(at::kBFloat16);
    };
    if (!at::equal(rounded(flat_a), rounded(flat_b))) return false;
  }
  return true;
}

// The state goes on from the weights that it was saved with, of which it has the float32 values.
// Compared as bfloat16, the coarsest type that a save or an engine has them in.
void require_its_weights(const Loaded& loaded, const BaseModel& base, const fs::path& directory) {
  for (size_t i = 0; i < loaded.weights.size(); ++i)
    require(same_in_bfloat16(loaded.weights[i], loaded.training->masters[i]), Code::kInvalid,
            "engine: load: ", directory.string(), ": the model's ", base.weights[i].name,
            " is of another save than ", kTrainingFields,
            ": copy all files of one save, or load it without the optimizer");
}

TrainingShape training_shape(const lora::SavedAdapter& adapter) {
  TrainingShape out;
  for (const size_t i : adapter.held()) {
    if (adapter.kind(i).learns)
      out.params.push_back({adapter.name(i), adapter.value(i).sizes().vec()});
  }
  out.gradients = out.params;
  return out;
}

TrainingShape training_shape(const BaseModel& base) {
  TrainingShape out{base.weights, base.weights, true, base.runs, base.mesh};
  const bool tied =
      !base.spec.value_head && base.weights.back().name != base.spec.layout.name(kHeadWeight);
  if (tied) out.gradients.push_back({kHeadWeight, base.weights.front().shape});
  return out;
}

}  // namespace

PeftConfig config_of(const Create& operation) {
  Json config = parse_json(operation.lora_json, "lora config");
  if (config.is_object() && !find(config, "peft_type")) config.as_object()["peft_type"] = "LORA";
  PeftConfig out = peft_config(config, "lora config");
  require(out.num_labels != kLabelsOfFile, Code::kInvalid,
          "lora: task_type is \"SEQ_CLS\", but num_labels is missing: give the head 1 label for "
          "rewards, or one for each class");
  return out;
}

int64_t num_bytes(const Loaded& loaded) {
  int64_t n = 0;
  const auto add = [&n](const at::Tensor& t) {
    if (t.defined()) n += static_cast<int64_t>(t.nbytes());
  };
  if (loaded.adapter) {
    for (const size_t i : loaded.adapter->held()) add(loaded.adapter->value(i));
  }
  for (const at::Tensor& t : loaded.weights) add(t);
  if (!loaded.training) return n;
  for (const at::Tensor& t : loaded.training->gradients) add(t);
  for (const at::Tensor& t : loaded.training->masters) add(t);
  if (const auto& optimizer = loaded.training->optimizer) {
    for (const at::Tensor* t : optimizer->tensors()) add(*t);
  }
  return n;
}

lora::SavedAdapter read_adapter(const fs::path& directory, const BaseModel& base,
                                const std::function<void(int64_t)>& reserve,
                                const PeftConfig* target) {
  const auto is_base_weight = [&](const std::string& name, const StoredTensor& copy) {
    const Checkpoint checkpoint = Checkpoint::open(base.directory);
    const model::Layout& layout = base.spec.layout;
    // A tied head need not be in the files.
    std::string there = layout.name(kEmbedding);
    const std::string other = lora::other_path(name);
    for (const std::string& known : {layout.name(other), layout.name(name), name, other})
      if (checkpoint.contains(known)) there = known;
    return model::is_copy(copy, checkpoint.at(there));
  };
  return lora::read_adapter(directory, base.linears, reserve, target, is_base_weight);
}

Loaded read_checkpoint(const Load& operation, const TenantShape& tenant, const BaseModel& base,
                       const std::function<void(int64_t)>& reserve) {
  const fs::path directory = operation.directory;
  std::error_code ignored;
  require(fs::is_directory(directory, ignored), Code::kNotFound,
          "engine: load: no checkpoint directory ", directory.string());
  require(tenant.mode != Mode::kFrozen, Code::kInvalid, "engine: load: tenant '", operation.tenant,
          "' is the frozen base model");
  Loaded out;
  if (tenant.mode == Mode::kLora)
    out.adapter = read_adapter(directory, base, reserve, &tenant.adapter);
  else
    out.weights = read_weights(directory, base);
  if (!operation.optimizer) return out;
  const TrainingShape shape = out.adapter ? training_shape(*out.adapter) : training_shape(base);
  out.training = read_training(directory, shape, operation.tenant,
                               operation.exact ? &base.arithmetic : nullptr, reserve);
  require_its_weights(out, base, directory);
  return out;
}

Loaded read_base(const Delete& operation, const BaseModel& base) {
  try {
    const auto source = model::weights_of(base.spec, Checkpoint::open(base.directory), base.dtype);
    Loaded out;
    out.weights = read_owned(source, base);
    return out;
  } catch (const Error& e) {
    fail(e.code, "engine: delete: tenant '", operation.tenant,
         "' stays, because the base model's weights that it trained can't be read again: ",
         e.what(), "; put the files of ", base.directory.string(),
         " back and delete it again, or save it and make another engine");
  }
}

LoadResult load_tenant(Loaded loaded, Tenant& tenant, model::Decoder& decoder) {
  // All that may fail, for want of memory too, comes before the first change.
  if (loaded.training) {
    for (at::Tensor& t : loaded.training->gradients)
      if (t.defined()) t = t.to(decoder.device());
  }
  if (loaded.adapter) {
    tenant.adapter().check(*loaded.adapter);
    tenant.own_adapter().load(*loaded.adapter);
  } else {
    tenant.load_weights(loaded.weights);
  }
  tenant.reset_training();
  if (!loaded.training) return {};
  std::string extra = std::move(loaded.training->extra);
  tenant.load_training(std::move(*loaded.training));
  return {std::move(extra)};
}

}  // namespace twinkle::engine
