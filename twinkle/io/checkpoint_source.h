// A Checkpoint's view of its files. Private to io.
#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "twinkle/io/checkpoint.h"

namespace twinkle {

struct Checkpoint::Source {
  void add(StoredTensor tensor) {
    names.push_back(tensor.name);
    tensors.insert_or_assign(names.back(), std::move(tensor));
  }
  // Once quantised tensors are read as plain ones: drops the names of those that are no more, and
  // quantization_config.
  void end_quantised();

  std::filesystem::path path;
  std::vector<std::string> names;
  std::map<std::string, StoredTensor, std::less<>> tensors;
  std::map<std::string, std::string> metadata;
  std::function<Json()> config;
};

std::unique_ptr<Checkpoint::Source> open_gguf(const std::filesystem::path& file);

}  // namespace twinkle
