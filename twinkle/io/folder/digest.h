// A digest of files, to compare what several machines read, in a few bytes. No proof against who
// forges it.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "twinkle/base/random.h"

namespace twinkle {

// A number of all that is added, and of its order.
class Digest {
 public:
  void add(uint64_t word) { hash_ = key_of(hash_, word); }
  void add(double number) { add(std::bit_cast<uint64_t>(number)); }
  void add(std::string_view text) {
    hash_ = key_of(hash_, text);
    add(uint64_t{text.size()});
  }
  void add(std::span<const std::byte> bytes);
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0;
};

// The digest of a model's folder, or of its one file: names (not of one file), sizes, and
// beginnings, middles and ends of weights, since to read all takes long; all of config.json and
// indexes. 16 digits. Error as of File; kInvalid: the folder can't be read.
std::string digest_of_files(const std::filesystem::path& path);
// The same of all of the files by which a folder's texts become ids and end: tokenizer, chat
// template, generation_config.json. Of one file there are none.
std::string digest_of_texts(const std::filesystem::path& path);

}  // namespace twinkle
