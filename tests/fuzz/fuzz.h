// Readers of what others wrote, each to be given damaged cases without end: it may refuse one with
// an Error and nothing else. A reader is a file beside this one and a line in readers.def.
#pragma once
#include <cstring>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace twinkle::fuzz {

struct Reader {
  std::string name;
  std::vector<std::string> corpus;  // to damage: good cases, and those that once were findings
  std::vector<std::string> words;   // that are put into cases now and then
  std::function<void(const std::string& bytes)> read;
};

// A folder in memory, that of the process that asked first: a child inherits it, so that it can be
// removed whatever becomes of the child.
std::filesystem::path scratch_folder();

// A file in memory with these bytes; the name is this process's own.
std::filesystem::path file_of(const std::string& bytes, const std::string& name);

// The value's bytes.
template <class T>
std::string raw(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

}  // namespace twinkle::fuzz
