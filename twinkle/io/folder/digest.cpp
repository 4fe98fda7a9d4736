#include "twinkle/io/folder/digest.h"

#include <algorithm>
#include <cstring>
#include <iomanip>
#include <sstream>
#include <system_error>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"

namespace twinkle {
namespace {

namespace fs = std::filesystem;

bool is_of_weights(std::string_view name) {
  return name.ends_with(".safetensors") || name.ends_with(".gguf");
}

bool is_read_whole(std::string_view name) {
  return name == "config.json" || name.ends_with(".index.json");
}

bool is_of_texts(std::string_view name) {
  static constexpr std::string_view kNames[] = {"added_tokens.json",
                                                "chat_template.jinja",
                                                "generation_config.json",
                                                "merges.txt",
                                                "tokenizer.json",
                                                "special_tokens_map.json",
                                                "tokenizer_config.json",
                                                "tokenizer.model",
                                                "vocab.json",
                                                "vocab.txt"};
  return std::ranges::find(kNames, name) != std::end(kNames);
}

void add_file(Digest& to, const fs::path& path) {
  const File file(path);
  to.add(static_cast<uint64_t>(file.size()));
  constexpr int64_t kSample = 4096;
  std::vector<std::byte> bytes(kSample);
  for (const int64_t at :
       {int64_t{0}, file.size() / 2, std::max<int64_t>(0, file.size() - kSample)}) {
    const auto sample =
        std::span(bytes).first(static_cast<size_t>(std::min(kSample, file.size() - at)));
    file.read_at(at, sample);
    to.add(std::span<const std::byte>(sample));
  }
}

}  // namespace

void Digest::add(std::span<const std::byte> bytes) {
  add(uint64_t{bytes.size()});
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min(sizeof(word), bytes.size() - i));
    add(word);
  }
}

namespace {

std::vector<std::string> sorted_names(const fs::path& folder) {
  std::error_code error;
  std::vector<std::string> names = names_in(folder, error);
  require(!error, Code::kInvalid, "io: cannot read the folder ", folder.string(), ": ",
          error.message());
  std::ranges::sort(names);
  return names;
}

std::string digits(const Digest& digest) {
  std::ostringstream out;
  out << std::hex << std::setfill('0') << std::setw(16) << digest.value();
  return out.str();
}

}  // namespace

std::string digest_of_files(const fs::path& path) {
  Digest digest;
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    add_file(digest, path);
    return digits(digest);
  }
  for (const std::string& name : sorted_names(path)) {
    if (!is_of_weights(name) && !is_read_whole(name)) continue;
    digest.add(name);
    if (is_of_weights(name))
      add_file(digest, path / name);
    else
      digest.add(read_file(path / name));
  }
  return digits(digest);
}

std::string digest_of_texts(const fs::path& path) {
  Digest digest;
  std::error_code error;
  if (!fs::is_directory(path, error)) return digits(digest);
  for (const std::string& name : sorted_names(path)) {
    if (!is_of_texts(name)) continue;
    digest.add(name);
    digest.add(read_file(path / name));
  }
  return digits(digest);
}

}  // namespace twinkle
