#include "twinkle/engine/checkpoint/training_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <map>
#include <set>

#include "twinkle/io/checkpoint.h"
#include "twinkle/io/safetensors.h"
#include "twinkle/model/weights/tensors.h"

namespace twinkle::engine {
namespace {

namespace fs = std::filesystem;

// A replay by other arithmetic would silently give different bits.
void require_same_arithmetic(const Json& state, const JsonObject& ours, const fs::path& file) {
  const Json* saved = find(state, "arithmetic");
  for (const auto& [key, value] : ours) {
    const Json* theirs = saved ? find(*saved, key) : nullptr;
    require(theirs && *theirs == value, Code::kInvalid, "engine: load: exact is true, but ",
            file.string(), " was saved by an engine whose ", std::string_view(key), " is ",
            theirs ? boost::json::serialize(*theirs) : "unknown", ", this engine's is ",
            boost::json::serialize(value),
            ": a replay would give different bits; load it in an engine that agrees, or with "
            "exact=false to continue from it");
  }
}

std::vector<StoredTensor> tensors_in(const fs::path& file) {
  if (file.filename() == kTrainingTensors) return SafetensorsFile(file).tensors();
  const Checkpoint parts = Checkpoint::open(file);
  std::vector<StoredTensor> out;
  for (const std::string& name : parts.names()) out.push_back(parts.at(name));
  return out;
}

class Reader {
 public:
  // `tensors_file`: of one rank, or the index of several.
  Reader(const fs::path& tensors_file, const TrainingShape& shape, const std::string& tenant)
      : shape_(shape),
        tenant_(tenant),
        fields_file_(tensors_file.parent_path() / kTrainingFields),
        tensors_file_(tensors_file),
        tensors_(tensors_in(tensors_file)) {
    for (size_t i = 0; i < shape.params.size(); ++i) params_[shape.params[i].name] = i;
    for (size_t i = 0; i < shape.gradients.size(); ++i) gradients_[shape.gradients[i].name] = i;
    for (const StoredTensor& view : tensors_) place(view);
  }

  // Size of all tensors in float32.
  int64_t num_bytes() const {
    int64_t out = 0;
    const auto add = [&](const auto& tensor) {
      out += num_elements(tensor.shape).value_or(0) * static_cast<int64_t>(sizeof(float));
    };
    for (const auto& tensor : tensors_) add(tensor);
    return out;
  }

  TrainingState read(const Json& fields) const {
    TrainingState out;
    read_counts(fields, out);
    const Json* options = find(fields, "optimizer_options");
    if (options) out.options = *options;
    const Json* saved = find(fields, "optimizer");
    if (saved)
      out.optimizer = optimizer(*saved, out.options);
    else
      require(moments_.empty(), Code::kInvalid, where(), "it has optimizer tensors, but ",
              fields_file_.string(), " has no field 'optimizer'");
    for (const StoredTensor* view : sums_)
      out.gradients.push_back(view ? read(*view) : at::Tensor());
    for (size_t i = 0; shape_.masters && i < shape_.params.size(); ++i) {
      const auto it = masters_.find(i);
      require(it != masters_.end(), Code::kInvalid,
              "engine: load: the training state has no tensor master/", shape_.params[i].name);
      out.masters.push_back(read(*it->second));
    }
    return out;
  }

 private:
  std::string where() const { return "engine: load: " + tensors_file_.string() + ": "; }

  [[noreturn]] void refuse(const StoredTensor& view) const {
    fail(Code::kInvalid, "engine: load: tensor ", view.name, " belongs to no parameter of tenant '",
         tenant_, "'");
  }

  // Finds out whose a tensor is; nothing is read yet.
  void place(const StoredTensor& view) {
    const std::string& name = view.name;
    if (name.starts_with("grad/")) {
      const size_t i = gradient(name.substr(5), view);
      const StoredTensor*& sum = sums_.at(i);
      require(!sum, Code::kInvalid, where(), name, " and ", sum ? sum->name : "",
              " are the same gradient");
      sum = &view;
      return check_shape(view, shape_.gradients[i].shape);
    }
    const bool moment = name.starts_with("optimizer/");
    const bool master = shape_.masters && name.starts_with("master/");
    if (!moment && !master) refuse(view);
    const std::string rest = name.substr(moment ? 10 : 7);
    const auto found = params_.find(moment ? rest.substr(0, rest.rfind('.')) : rest);
    if (found == params_.end()) refuse(view);
    (moment ? moments_[rest] : masters_[found->second]) = &view;
    check_shape(view, shape_.params[found->second].shape);
  }

  // By name, or, of version 1, by number.
  size_t gradient(const std::string& name, const StoredTensor& view) const {
    if (const auto found = gradients_.find(name); found != gradients_.end()) return found->second;
    const bool number = !name.empty() && name.size() < 10 &&
                        std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
    const size_t i = number ? std::stoul(name) : sums_.size();
    if (i >= sums_.size()) refuse(view);
    return i;
  }

  static void check_shape(const StoredTensor& view, const std::vector<int64_t>& shape) {
    require(view.shape == shape, Code::kInvalid, "engine: load: tensor ", view.name, " has shape ",
            shape_text(view.shape), ", expected ", shape_text(shape));
  }

  at::Tensor read(const StoredTensor& view) const {
    at::Tensor out = model::to_float32(view);
    require(at::isfinite(out).all().item<bool>(), Code::kInvalid, where(), view.name,
            " holds NaN or infinity");
    return out;
  }

  int64_t count_in(const Json& fields, std::string_view key, int64_t value, int64_t max) const {
    require(value >= 0 && value <= max, Code::kInvalid, "engine: load: ", fields_file_.string(),
            ": field '", key, "' is ", *find(fields, key), ", it must be from 0 to ", max);
    return value;
  }

  void read_counts(const Json& fields, TrainingState& out) const {
    const auto count = [&](std::string_view key, int64_t max) {
      return count_in(fields, key, get<int64_t>(fields, key), max);
    };
    out.calls = count("calls", kMaxCount);
    out.pending = count("pending", out.calls);
    if (find(fields, "published")) out.published = count("published", kMaxCount);
    const Json* seed = find(fields, "seed");
    out.seed = seed && seed->is_uint64() ? seed->get_uint64()
                                         : static_cast<uint64_t>(get<int64_t>(fields, "seed"));
    out.clipped = get_or<bool>(fields, "clipped", false);
    out.num_tokens = get<double>(fields, "num_tokens");
    require(out.num_tokens >= 0 && out.num_tokens <= static_cast<double>(kMaxCount), Code::kInvalid,
            "engine: load: ", fields_file_.string(), ": field 'num_tokens' is ", out.num_tokens,
            ", it must be from 0 to ", kMaxCount);
    const bool some = std::ranges::any_of(sums_, [](const StoredTensor* sum) { return sum; });
    require(some == (out.pending > 0), Code::kInvalid, "engine: load: ", fields_file_.string(),
            ": field 'pending' is ", out.pending, ", but ", kTrainingTensors, " has ",
            some ? "" : "no ", "gradients");
    require(out.pending > 0 || (out.num_tokens == 0 && !out.clipped), Code::kInvalid,
            "engine: load: ", fields_file_.string(), ": field 'pending' is 0, but num_tokens is ",
            out.num_tokens, out.clipped ? " and clipped true" : "");
  }

  std::unique_ptr<optim::Optimizer> optimizer(const Json& saved, const Json& options) const {
    auto out = optim::make(get<std::string>(saved, "optimizer"), options);
    optim::State state{saved, {}};
    const Json* steps = find(saved, "steps");
    std::set<std::string> wanted;
    // Which buffers there are depends on the options: SGD has one with momentum alone.
    for (size_t i = 0; steps && steps->is_object() && i < shape_.params.size(); ++i) {
      const std::string& param = shape_.params[i].name;
      if (!steps->get_object().contains(param)) continue;
      for (const std::string& buffer : out->buffers()) wanted.insert(param + "." + buffer);
    }
    for (const std::string& name : wanted) {
      require(moments_.contains(name), Code::kInvalid,
              "engine: load: the training state has no tensor optimizer/", name);
    }
    for (const auto& [name, view] : moments_) {
      require(wanted.contains(name), Code::kInvalid, "engine: load: tensor ", view->name,
              " is not a state of ", out->name(), ", or its parameter has no steps");
    }
    for (const auto& [key, value] :
         steps && steps->is_object() ? steps->get_object() : JsonObject())
      require(params_.contains(std::string(key)), Code::kInvalid,
              "engine: load: ", fields_file_.string(), ": field 'steps' names ",
              std::string_view(key), ", which is not a parameter of tenant '", tenant_, "'");
    for (const auto& [name, view] : moments_) state.tensors.emplace_back(name, read(*view));
    out->load(state);
    return out;
  }

  const TrainingShape& shape_;
  const std::string& tenant_;
  const fs::path fields_file_, tensors_file_;
  const std::vector<StoredTensor> tensors_;
  std::map<std::string, size_t, std::less<>> params_, gradients_;
  std::vector<const StoredTensor*> sums_ =
      std::vector<const StoredTensor*>(shape_.gradients.size());
  std::map<std::string, const StoredTensor*> moments_;  // by parameter and buffer
  std::map<size_t, const StoredTensor*> masters_;
};

}  // namespace

std::string training_part(int rank, int num_ranks) {
  std::ostringstream out;
  out << std::setfill('0') << kTrainingPart << std::setw(5) << rank + 1 << "-of-" << std::setw(5)
      << num_ranks << ".safetensors";
  return out.str();
}

TrainingState read_training(const fs::path& directory, const TrainingShape& shape,
                            const std::string& tenant, const JsonObject* arithmetic,
                            const std::function<void(int64_t)>& reserve) {
  const fs::path file = directory / kTrainingFields;
  std::error_code ignored;
  require(fs::exists(file, ignored), Code::kNotFound, "engine: load: ", directory.string(),
          " has no ", kTrainingFields, "; it was saved without the optimizer");
  const Json state = read_json(file);
  const auto version = get<int64_t>(state, "checkpoint_version");
  require(version >= 1 && version <= kPartsVersion, Code::kInvalid, "engine: ", file.string(),
          " has checkpoint_version ", version, ", this program reads 1 to ", kPartsVersion);
  if (arithmetic) require_same_arithmetic(state, *arithmetic, file);
  const Json* fields = find(state, "training");
  require(fields && fields->is_object(), Code::kInvalid, "engine: load: ", file.string(),
          ": field 'training' is missing or not an object");
  const char* const tensors = version == kPartsVersion ? kTrainingIndex : kTrainingTensors;
  const Reader reader(directory / tensors, shape, tenant);
  if (reserve) reserve(reader.num_bytes());
  TrainingState out = reader.read(*fields);
  out.extra = get_or<std::string>(state, "extra", "");
  return out;
}

}  // namespace twinkle::engine
