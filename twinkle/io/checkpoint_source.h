// What a Checkpoint asks of the files behind it; one implementation per kind of file. Private to
// io.
#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "twinkle/io/checkpoint.h"

namespace twinkle {

struct Checkpoint::Source {
  virtual ~Source() = default;
  virtual bool contains(const std::string& name) const = 0;
  virtual TensorView at(const std::string& name) const = 0;  // of a name that it contains
  virtual Json config() const = 0;

  std::filesystem::path path;
  std::vector<std::string> names;
  std::map<std::string, std::string> metadata;
};

std::unique_ptr<Checkpoint::Source> open_gguf(const std::filesystem::path& file);

}  // namespace twinkle
