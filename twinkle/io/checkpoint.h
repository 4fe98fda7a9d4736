// A model's weights as a read-only set of named tensors, whatever file holds them: safetensors, one
// file or sharded, or GGUF. Names, types and shapes are known once it is open; bytes are read when
// they are asked for. Names are Hugging Face's ("model.layers.0.self_attn.q_proj.weight"). Knows no
// model and no torch. Cheap to copy; any thread may read.
#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/base/json.h"
#include "twinkle/io/stored_tensor.h"

namespace twinkle {

class Checkpoint {
 public:
  // A file (*.safetensors, *.gguf, or the index of shards, *.json) or a directory with, in this
  // order, model.safetensors, model.safetensors.index.json and its shards, one *.safetensors, or
  // one *.gguf. Error kNotFound: nothing of these, or a missing shard; kInvalid: a broken one.
  static Checkpoint open(const std::filesystem::path& dir_or_file);

  // Every tensor's name, sorted.
  const std::vector<std::string>& names() const;
  bool contains(std::string_view name) const;

  // Valid as long as this Checkpoint or a copy of it. A quantised GGUF tensor is read as BF16, so
  // are gpt-oss's of mxfp4 (mxfp4.h), an FP8 one with its scales (fp8.h) as F32.
  // Error kNotFound: no tensor of that name.
  const StoredTensor& at(std::string_view name) const;

  // The file's own description: safetensors' __metadata__ (merged over shards).
  const std::map<std::string, std::string>& metadata() const;

  // The model's config.json as an object: the file next to the weights, or the GGUF's metadata in
  // its place; of FP8 and mxfp4 weights without the quantization_config, as which they are not
  // seen. Error kNotFound: safetensors without config.json next to them.
  Json config() const;

  // As given to open.
  const std::filesystem::path& path() const;

  struct Source;

 private:
  explicit Checkpoint(std::shared_ptr<const Source> source) : source_(std::move(source)) {}
  std::shared_ptr<const Source> source_;
};

}  // namespace twinkle
