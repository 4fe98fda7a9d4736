#include "twinkle/io/checkpoint.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/io/checkpoint_source.h"
#include "twinkle/io/safetensors.h"

namespace twinkle {

namespace fs = std::filesystem;

namespace {

// False, too, for what may not be looked at.
bool there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

struct SafetensorsSource : Checkpoint::Source {
  bool contains(const std::string& name) const override { return views.contains(name); }
  TensorView at(const std::string& name) const override { return views.at(name); }
  Json config() const override { return read_json(dir / "config.json"); }

  void add(const TensorView& view) {
    names.push_back(view.name);
    views.emplace(view.name, view);
  }

  fs::path dir;
  std::vector<SafetensorsFile> files;
  std::unordered_map<std::string, TensorView> views;
};

std::unique_ptr<SafetensorsSource> open_file(const fs::path& file) {
  auto source = std::make_unique<SafetensorsSource>();
  source->dir = file.parent_path();
  source->files.emplace_back(file);
  for (const TensorView& view : source->files[0].tensors()) source->add(view);
  source->metadata = source->files[0].metadata();
  return source;
}

// Tensors of one shard that the index assigns to it; the index alone decides what the checkpoint
// holds.
void add_shard(SafetensorsSource& source, const fs::path& index, const std::string& shard,
               const std::vector<std::string>& names) {
  const fs::path file = source.dir / shard;
  require(fs::path(shard).filename() == shard, Code::kInvalid, "io: ", index.string(), ": shard '",
          shard, "' must be a file name without folders");
  require(there(file), Code::kNotFound, "io: ", index.string(), " names the shard '", shard,
          "', but there is no such file: fetch the checkpoint again");
  const SafetensorsFile& opened = source.files.emplace_back(file);
  source.metadata.insert(opened.metadata().begin(), opened.metadata().end());
  std::unordered_map<std::string_view, const TensorView*> held;
  for (const TensorView& view : opened.tensors()) held.emplace(view.name, &view);
  for (const std::string& name : names) {
    const auto found = held.find(name);
    require(found != held.end(), Code::kInvalid, "io: ", index.string(), " says that tensor '",
            name, "' is in '", shard, "', but it is not");
    source.add(*found->second);
  }
}

std::unique_ptr<SafetensorsSource> open_sharded(const fs::path& index) {
  auto source = std::make_unique<SafetensorsSource>();
  source->dir = index.parent_path();
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
  for (const auto& [shard, names] : shards) add_shard(*source, index, shard, names);
  return source;
}

// Files that a training run leaves beside a model, or instead of one.
bool holds_no_model(const fs::path& file) {
  return file.filename() == "adapter_model.safetensors" ||
         file.filename() == "training.safetensors" || file.filename() == "optimizer.safetensors";
}

// The one file that ends in `extension`, or nothing. Error kInvalid: several.
fs::path only_file(const fs::path& dir, std::string_view extension) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    if (entry.path().extension() == extension && !holds_no_model(entry.path()))
      found.push_back(entry.path());
  }
  require(!error, Code::kInvalid, "io: cannot read the folder ", dir.string(), ": ",
          error.message());
  std::sort(found.begin(), found.end());
  require(found.size() < 2, Code::kInvalid, "io: ", dir.string(), " holds ", found.size(), " *",
          extension, " files and no index, so which one is meant is unclear: name the file");
  return found.empty() ? fs::path() : found[0];
}

std::unique_ptr<Checkpoint::Source> open_source(const fs::path& path) {
  require(there(path), Code::kNotFound, "io: there is no checkpoint at ", path.string());
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    return path.extension() == ".gguf" ? open_gguf(path) : open_file(path);
  }
  if (there(path / "model.safetensors")) return open_file(path / "model.safetensors");
  const fs::path index = path / "model.safetensors.index.json";
  if (there(index)) return open_sharded(index);
  if (const fs::path file = only_file(path, ".safetensors"); !file.empty()) return open_file(file);
  if (const fs::path file = only_file(path, ".gguf"); !file.empty()) return open_gguf(file);
  const bool adapter = there(path / "adapter_config.json");
  fail(Code::kNotFound, "io: ", path.string(), adapter ? " is a PEFT adapter and" : "",
       " holds no weights: a checkpoint has model.safetensors, model.safetensors.index.json, one "
       "*.safetensors or one *.gguf",
       adapter ? "; name the base model's directory" : "");
}

}  // namespace

Checkpoint Checkpoint::open(const fs::path& dir_or_file) {
  std::unique_ptr<Source> source = open_source(dir_or_file);
  source->path = dir_or_file;
  std::sort(source->names.begin(), source->names.end());
  return Checkpoint(std::move(source));
}

const std::vector<std::string>& Checkpoint::names() const { return source_->names; }

bool Checkpoint::contains(std::string_view name) const {
  return source_->contains(std::string(name));
}

TensorView Checkpoint::at(std::string_view name) const {
  const std::string key(name);
  require(source_->contains(key), Code::kNotFound, "io: ", source_->path.string(),
          " has no tensor '", name, "'");
  return source_->at(key);
}

const std::map<std::string, std::string>& Checkpoint::metadata() const { return source_->metadata; }

Json Checkpoint::config() const { return source_->config(); }

const fs::path& Checkpoint::path() const { return source_->path; }

}  // namespace twinkle
