// The safetensors format: u64 header length, JSON header, data. Reading believes nothing in the
// header before it is checked, and reads no tensor unasked; writing streams the tensors' bytes.
// Knows no model and no torch. An open file may be read from any thread. Format:
// https://github.com/huggingface/safetensors#format
#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "twinkle/io/atomic.h"
#include "twinkle/io/stored_tensor.h"
#include "twinkle/io/tensor_view.h"

namespace twinkle {

class SafetensorsFile {
 public:
  // Error kNotFound: no such file. kInvalid, naming file, tensor, value and limit: header longer
  // than the file or than 100 MB, broken JSON or more than 2^22 values of it, unknown dtype, shape
  // * size != bytes, offsets outside the file, overlapping or leaving holes, a name twice.
  explicit SafetensorsFile(const std::filesystem::path& file);

  // In the order of their bytes; a copy of one may outlive this object.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::filesystem::path& path() const { return file_->path(); }

 private:
  std::shared_ptr<const File> file_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

struct SafetensorsOptions {
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  int64_t max_shard_bytes =
      0;  // bytes of tensor data per file; 0: one file; a larger tensor has its own
};

// Writes one file atomically, its tensors ordered by element size and name, as the reference does.
// Error kInvalid: a name twice or "__metadata__", shape * size != bytes; AtomicFile's (the old file
// stays), kInternal for a full disk among them.
void write_safetensors(const std::filesystem::path& file, std::span<const TensorView> tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}},
                       Commits how = Commits::kAlone);

// Writes a checkpoint into the folder `dir`: model.safetensors, or, where the tensors exceed
// max_shard_bytes, model-00001-of-0000N.safetensors with model.safetensors.index.json. `dir` is
// the staging folder of an AtomicDirectory, which syncs the files: what it holds already is left
// there. `more`: tensors of other files, of which little is held at a time. Errors as
// write_safetensors, and File's.
void write_model(const std::filesystem::path& dir, std::span<const TensorView> tensors,
                 const SafetensorsOptions& options = {}, std::span<const StoredTensor> more = {});

// write_model of tensors in other files, of which little is held at a time. Errors as File's, too.
void copy_model(const std::filesystem::path& dir, std::span<const StoredTensor> tensors,
                const SafetensorsOptions& options = {});

}  // namespace twinkle
