#include "twinkle/engine/checkpoint/training_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iomanip>
#include <map>
#include <optional>
#include <set>

#include "twinkle/engine/checkpoint/adapter_digest.h"
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

// Nor does training of all weights on other ranks.
void require_same_mesh(const Json& state, const Json& ours, const fs::path& file) {
  const Json* saved = find(state, "mesh");
  const Json theirs = saved ? *saved : Json(JsonObject{{"dp", 1}, {"fsdp", 1}});
  require(ours.is_null() || theirs == ours, Code::kInvalid, "engine: load: exact is true, but ",
          file.string(), " was saved by ranks ", theirs, ", these are ", ours,
          ": training of all weights goes on with other bits there, within rounding; load it with "
          "exact=false, or on the same mesh");
}

// The state goes on from the weights that it was saved with.
void require_its_adapter(const Json& state, const fs::path& file) {
  const auto saved = get_or<std::string>(state, kAdapterDigest, "");
  const fs::path adapter = file.parent_path() / kAdapterFile;
  std::error_code ignored;
  const bool is_full = saved.empty() && !fs::exists(adapter, ignored);
  require(is_full || saved == digest_of(adapter), Code::kInvalid,
          "engine: load: ", adapter.string(), " is of another save than ", kTrainingFields,
          ": copy all files of one save, or load it without the optimizer");
}

std::vector<StoredTensor> tensors_in(const fs::path& file) {
  if (file.filename() == kTrainingTensors) return SafetensorsFile(file).tensors();
  const Checkpoint parts = Checkpoint::open(file);  // they are of one save
  std::vector<StoredTensor> out;
  for (const std::string& name : parts.names()) out.push_back(parts.at(name));
  return out;
}

// The elements that the tensor of this name has, where it is a run.
std::optional<parallel::Run> run_in(const std::string& name) {
  const size_t open = name.rfind('['), colon = name.rfind(':');
  if (open == std::string::npos || colon == std::string::npos || !name.ends_with(']')) return {};
  parallel::Run out;
  const char* const end = name.data() + name.size() - 1;
  const auto is_read = [](const char* from, const char* to, int64_t& number) {
    const auto [at, error] = std::from_chars(from, to, number);
    return error == std::errc() && at == to;
  };
  const bool is_run =
      open < colon && is_read(name.data() + open + 1, name.data() + colon, out.begin) &&
      is_read(name.data() + colon + 1, end, out.end) && out.begin >= 0 && out.begin < out.end;
  return is_run ? std::optional(out) : std::nullopt;
}

class StateReader {
 public:
  // `tensors_file`: of one rank, or the index of several.
  StateReader(const fs::path& tensors_file, const TrainingShape& shape, const std::string& tenant)
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
    for (size_t i = 0; i < sums_.size(); ++i)
      out.gradients.push_back(sums_[i].empty() ? at::Tensor() : read(sums_[i], i));
    for (size_t i = 0; shape_.masters && i < shape_.params.size(); ++i) {
      const auto it = masters_.find(i);
      require(it != masters_.end(), Code::kInvalid,
              "engine: load: the training state has no tensor master/", shape_.params[i].name);
      out.masters.push_back(read(it->second, i));
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
    const std::optional<parallel::Run> run = run_in(view.name);
    const std::string name = run ? view.name.substr(0, view.name.rfind('[')) : view.name;
    if (name.starts_with("grad/")) {
      const size_t i = gradient(name.substr(5), view);
      return add(sums_.at(i), view, run, shape_.gradients[i].shape);
    }
    const bool moment = name.starts_with("optimizer/");
    const bool master = shape_.masters && name.starts_with("master/");
    if (!moment && !master) refuse(view);
    const std::string rest = name.substr(moment ? 10 : 7);
    const auto found = params_.find(moment ? rest.substr(0, rest.rfind('.')) : rest);
    if (found == params_.end()) refuse(view);
    add(moment ? moments_[rest] : masters_[found->second], view, run,
        shape_.params[found->second].shape);
  }

  // The elements of a tensor that one of the file's has.
  struct Stored {
    parallel::Run run;
    const StoredTensor* view;
  };
  using Tensor = std::vector<Stored>;  // in the order of elements, when all are placed

  void add(Tensor& to, const StoredTensor& view, const std::optional<parallel::Run>& run,
           const std::vector<int64_t>& shape) const {
    const int64_t count = num_elements(shape).value_or(0);
    check_shape(view, run ? std::vector<int64_t>{run->size()} : shape);
    const parallel::Run all = run.value_or(parallel::Run{0, count});
    require(all.end <= count, Code::kInvalid, "engine: load: tensor ", view.name, " is of ", count,
            " elements");
    for (const Stored& other : to)
      require(other.run.in(all).size() == 0, Code::kInvalid, where(), view.name, " and ",
              other.view->name, " are the same elements");
    to.insert(
        std::ranges::upper_bound(to, all.begin, {}, [](const Stored& s) { return s.run.begin; }),
        Stored{all, &view});
  }

  size_t gradient(const std::string& name, const StoredTensor& view) const {
    const auto found = gradients_.find(name);
    if (found == gradients_.end()) refuse(view);
    return found->second;
  }

  static void check_shape(const StoredTensor& view, const std::vector<int64_t>& shape) {
    require(view.shape == shape, Code::kInvalid, "engine: load: tensor ", view.name, " has shape ",
            shape_text(view.shape), ", expected ", shape_text(shape));
  }

  // The part of a parameter's tensor that is asked for.
  at::Tensor read(const Tensor& tensor, size_t param) const {
    const bool in_runs = !shape_.runs.empty();
    // A tied head, which comes after all of them, has the embedding's.
    if (param >= shape_.params.size()) param = 0;
    const std::vector<int64_t>& shape = shape_.params[param].shape;
    const int64_t count = num_elements(shape).value_or(0);
    int64_t next = 0;  // all of it must be there, whoever reads what
    for (const Stored& stored : tensor) {
      require(stored.run.begin == next, Code::kInvalid, where(), stored.view->name,
              " has no tensor before it with the elements from ", next, " on");
      next = stored.run.end;
    }
    require(next == count, Code::kInvalid, where(), tensor.back().view->name,
            " has no tensor after it with the elements up to ", count);
    const parallel::Run wanted = in_runs ? shape_.runs[param] : parallel::Run{0, count};
    std::vector<at::Tensor> out;
    for (const auto& [run, view] : tensor) {
      const parallel::Run both = run.in(wanted);
      StoredTensor flat = *view;
      flat.shape = {run.size()};
      const model::TensorSlice slice{0, both.begin - run.begin, both.end - run.begin};
      if (both.size() > 0) out.push_back(model::read_tensor(flat, slice).to(at::kFloat));
      require(both.size() == 0 || at::isfinite(out.back()).all().item<bool>(), Code::kInvalid,
              where(), view->name, " holds NaN or infinity");
    }
    if (out.empty()) out.push_back(at::empty({0}, at::kFloat));
    const at::Tensor all = out.size() == 1 ? out.front() : at::cat(out);
    return in_runs ? all : all.view(shape);
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
    out.published = count("published", kMaxCount);
    const Json* seed = find(fields, "seed");
    out.seed = seed && seed->is_uint64() ? seed->get_uint64()
                                         : static_cast<uint64_t>(get<int64_t>(fields, "seed"));
    out.clipped = get<bool>(fields, "clipped");
    out.num_tokens = get<double>(fields, "num_tokens");
    require(out.num_tokens >= 0 && out.num_tokens <= static_cast<double>(kMaxCount), Code::kInvalid,
            "engine: load: ", fields_file_.string(), ": field 'num_tokens' is ", out.num_tokens,
            ", it must be from 0 to ", kMaxCount);
    const bool some = std::ranges::any_of(sums_, [](const Tensor& sum) { return !sum.empty(); });
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
    // The options decide the buffers: SGD has one only with momentum.
    for (size_t i = 0; steps && steps->is_object() && i < shape_.params.size(); ++i) {
      const std::string& param = shape_.params[i].name;
      if (!steps->get_object().contains(param)) continue;
      for (const std::string& buffer : out->buffers()) wanted.insert(param + "." + buffer);
    }
    for (const std::string& name : wanted) {
      require(moments_.contains(name), Code::kInvalid,
              "engine: load: the training state has no tensor optimizer/", name);
    }
    for (const auto& [name, tensor] : moments_) {
      require(wanted.contains(name), Code::kInvalid, "engine: load: tensor ",
              tensor.front().view->name, " is not a state of ", out->name(),
              ", or its parameter has no steps");
    }
    for (const auto& [key, value] :
         steps && steps->is_object() ? steps->get_object() : JsonObject())
      require(params_.contains(std::string(key)), Code::kInvalid,
              "engine: load: ", fields_file_.string(), ": field 'steps' names ",
              std::string_view(key), ", which is not a parameter of tenant '", tenant_, "'");
    for (const auto& [name, tensor] : moments_)
      state.tensors.emplace_back(name, read(tensor, params_.at(name.substr(0, name.rfind('.')))));
    out->load(state);
    return out;
  }

  const TrainingShape& shape_;
  const std::string& tenant_;
  const fs::path fields_file_, tensors_file_;
  const std::vector<StoredTensor> tensors_;
  std::map<std::string, size_t, std::less<>> params_, gradients_;
  std::vector<Tensor> sums_ = std::vector<Tensor>(shape_.gradients.size());
  std::map<std::string, Tensor> moments_;  // by parameter and buffer
  std::map<size_t, Tensor> masters_;
};

}  // namespace

std::string training_part(int rank, int num_ranks) {
  std::ostringstream out;
  out << std::setfill('0') << kTrainingPart << std::setw(5) << rank + 1 << "-of-" << std::setw(5)
      << num_ranks << ".safetensors";
  return out.str();
}

std::string name_of_run(const std::string& tensor, const parallel::Run& run) {
  return tensor + '[' + std::to_string(run.begin) + ':' + std::to_string(run.end) + ']';
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
  require(version == kCheckpointVersion, Code::kInvalid, "engine: ", file.string(),
          " has checkpoint_version ", version, ", this program reads ", kCheckpointVersion,
          ": load it without the optimizer, or in the version that saved it");
  if (arithmetic) {
    require_same_arithmetic(state, *arithmetic, file);
    require_same_mesh(state, shape.mesh, file);
  }
  require_its_adapter(state, file);
  const Json* fields = find(state, "training");
  require(fields && fields->is_object(), Code::kInvalid, "engine: load: ", file.string(),
          ": field 'training' is missing or not an object");
  const bool in_parts = get<int64_t>(state, "num_ranks") > 1;
  const char* const tensors = in_parts ? kTrainingIndex : kTrainingTensors;
  const StateReader reader(directory / tensors, shape, tenant);
  if (reserve) reserve(reader.num_bytes());
  TrainingState out = reader.read(*fields);
  out.extra = get_or<std::string>(state, "extra", "");
  return out;
}

}  // namespace twinkle::engine
