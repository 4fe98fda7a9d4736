#include "twinkle/io/checkpoint.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/io/checkpoint_source.h"
#include "twinkle/io/fp8/fp8.h"
#include "twinkle/io/mxfp4/mxfp4.h"
#include "twinkle/io/safetensors.h"

namespace twinkle {

namespace fs = std::filesystem;

namespace {

using Source = Checkpoint::Source;

std::unique_ptr<Source> new_source(const fs::path& dir) {
  auto source = std::make_unique<Source>();
  source->config = [dir] { return read_json(dir / "config.json"); };
  return source;
}

std::unique_ptr<Source> open_file(const fs::path& path) {
  auto source = new_source(path.parent_path());
  const SafetensorsFile file(path);
  for (const StoredTensor& tensor : file.tensors()) source->add(tensor);
  source->metadata = file.metadata();
  return source;
}

// The name of a save in the metadata of an index and of its shards (engine's kSave): they are of
// one. Empty: it has none, as files of other programs.
std::string save_of(const Json& index) {
  const Json* metadata = find(index, "metadata");
  const Json* save = metadata && metadata->is_object() ? find(*metadata, "save") : nullptr;
  return save && save->is_string() ? std::string(save->get_string()) : "";
}

// Tensors of one shard that the index assigns to it; the index alone decides what the checkpoint
// holds. `save`: of the index.
void add_shard(Source& source, const fs::path& index, const std::string& save,
               const std::string& shard, const std::vector<std::string>& names) {
  const fs::path file = index.parent_path() / shard;
  require(fs::path(shard).filename() == shard, Code::kInvalid, "io: ", index.string(), ": shard '",
          shard, "' must be a file name without folders");
  require(is_there(file), Code::kNotFound, "io: ", index.string(), " names the shard '", shard,
          "', but there is no such file: fetch the checkpoint again");
  const SafetensorsFile opened(file);
  const auto own = opened.metadata().find("save");
  require(save.empty() || (own != opened.metadata().end() && own->second == save), Code::kInvalid,
          "io: ", file.string(), " is of another save than ", index.filename().string(),
          ": copy all files of one save");
  source.metadata.insert(opened.metadata().begin(), opened.metadata().end());
  std::unordered_map<std::string_view, const StoredTensor*> held;
  for (const StoredTensor& tensor : opened.tensors()) held.emplace(tensor.name, &tensor);
  for (const std::string& name : names) {
    const auto found = held.find(name);
    require(found != held.end(), Code::kInvalid, "io: ", index.string(), " says that tensor '",
            name, "' is in '", shard, "', but it is not");
    source.add(*found->second);
  }
}

std::unique_ptr<Source> open_sharded(const fs::path& index) {
  auto source = new_source(index.parent_path());
  const Json document = read_json(index);
  const Json* weight_map = find(document, "weight_map");
  require(weight_map != nullptr && weight_map->is_object(), Code::kInvalid, "io: ", index.string(),
          ": 'weight_map' must be an object of tensor names and file names");
  std::map<std::string, std::vector<std::string>> shards;
  for (const auto& [name, shard] : weight_map->get_object()) {
    require(shard.is_string(), Code::kInvalid, "io: ", index.string(), ": 'weight_map' of '",
            std::string_view(name.data(), name.size()), "' must be a file name");
    shards[std::string(shard.get_string())].emplace_back(name);
  }
  const std::string save = save_of(document);
  for (const auto& [shard, names] : shards) add_shard(*source, index, save, shard, names);
  return source;
}

// Files that a training run leaves next to a model, or instead of one.
bool holds_no_model(const fs::path& file) {
  return file.filename() == "adapter_model.safetensors" ||
         file.filename() == "training.safetensors" ||
         file.filename().string().starts_with("training-") ||
         file.filename() == "optimizer.safetensors";
}

// The one file that ends in `extension`, or nothing. Error kInvalid: several.
fs::path only_file(const fs::path& dir, std::string_view extension) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const std::string& name : names_in(dir, error)) {
    const fs::path path = dir / name;
    if (path.extension() == extension && !holds_no_model(path)) found.push_back(path);
  }
  require(!error, Code::kInvalid, "io: cannot read the folder ", dir.string(), ": ",
          error.message());
  std::sort(found.begin(), found.end());
  require(found.size() < 2, Code::kInvalid, "io: ", dir.string(), " holds ", found.size(), " *",
          extension, " files and no index, so which one is meant is unclear: name the file");
  return found.empty() ? fs::path() : found[0];
}

std::unique_ptr<Source> open_source(const fs::path& path) {
  require(is_there(path), Code::kNotFound, "io: there is no checkpoint at ", path.string());
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    if (path.extension() == ".json") return open_sharded(path);
    return path.extension() == ".gguf" ? open_gguf(path) : open_file(path);
  }
  if (is_there(path / "model.safetensors")) return open_file(path / "model.safetensors");
  const fs::path index = path / "model.safetensors.index.json";
  if (is_there(index)) return open_sharded(index);
  if (const fs::path file = only_file(path, ".safetensors"); !file.empty()) return open_file(file);
  if (const fs::path file = only_file(path, ".gguf"); !file.empty()) return open_gguf(file);
  for (const char* pickles : {"pytorch_model.bin", "pytorch_model.bin.index.json"})
    require(!is_there(path / pickles), Code::kInvalid, "io: ", path.string(),
            " holds its weights as pytorch_model.bin, a pickle, which may run code and is not "
            "read: save it again as safetensors");
  const bool adapter = is_there(path / "adapter_config.json");
  fail(Code::kNotFound, "io: ", path.string(), adapter ? " is a PEFT adapter and" : "",
       " holds no weights: a checkpoint has model.safetensors, model.safetensors.index.json, one "
       "*.safetensors or one *.gguf",
       adapter ? "; name the base model's directory" : "");
}

}  // namespace

void Checkpoint::Source::end_quantised() {
  std::erase_if(names, [&](const std::string& name) { return !tensors.contains(name); });
  config = [before = std::move(config)] {
    Json out = before();
    out.as_object().erase("quantization_config");
    return out;
  };
}

Checkpoint Checkpoint::open(const fs::path& dir_or_file) {
  std::unique_ptr<Source> source = open_source(dir_or_file);
  source->path = dir_or_file;
  dequantise_fp8(*source);
  dequantise_mxfp4(*source);
  std::sort(source->names.begin(), source->names.end());
  return Checkpoint(std::move(source));
}

const std::vector<std::string>& Checkpoint::names() const { return source_->names; }

bool Checkpoint::contains(std::string_view name) const { return source_->tensors.contains(name); }

const StoredTensor& Checkpoint::at(std::string_view name) const {
  const auto found = source_->tensors.find(name);
  require(found != source_->tensors.end(), Code::kNotFound, "io: ", source_->path.string(),
          " has no tensor '", name, "'");
  return found->second;
}

const std::map<std::string, std::string>& Checkpoint::metadata() const { return source_->metadata; }

Json Checkpoint::config() const { return source_->config(); }

const fs::path& Checkpoint::path() const { return source_->path; }

}  // namespace twinkle
