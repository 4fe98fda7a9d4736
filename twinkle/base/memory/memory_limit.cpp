#include "twinkle/base/memory/memory_limit.h"

#include <unistd.h>

#include <charconv>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace twinkle {
namespace {

namespace fs = std::filesystem;

// A hierarchy of groups that limits memory, and the process's place in it.
struct Hierarchy {
  bool is_second = false;  // version 2
  std::string root, at;    // the group that is mounted, and where
};

bool has(const std::string& list, std::string_view word) {
  std::istringstream in(list);
  for (std::string one; std::getline(in, one, ',');)
    if (one == word) return true;
  return false;
}

// mountinfo(5): ... root point options [optional fields] - type source superoptions.
std::vector<Hierarchy> hierarchies_in(const fs::path& mounts) {
  std::vector<Hierarchy> out;
  std::ifstream in(mounts);
  for (std::string line; std::getline(in, line);) {
    const size_t dash = line.find(" - ");
    if (dash == line.npos) continue;
    std::istringstream before(line.substr(0, dash)), behind(line.substr(dash + 3));
    std::string id, parent, device, root, at, type, source, options;
    before >> id >> parent >> device >> root >> at;
    behind >> type >> source >> options;
    if (type == "cgroup2" || (type == "cgroup" && has(options, "memory")))
      out.push_back({type == "cgroup2", root, at});
  }
  return out;
}

// cgroups(7): number:controllers:path, without controllers in version 2. "": it is in none.
std::string group_in(const fs::path& cgroup, bool is_second) {
  std::ifstream in(cgroup);
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (is_second ? controllers.empty() : has(controllers, "memory"))
      return line.substr(second + 1);
  }
  return "";
}

// In version 2 "max" is no limit; in version 1 a number beyond any memory is.
int64_t limit_in(const fs::path& file, int64_t otherwise) {
  std::ifstream in(file);
  std::string text;
  in >> text;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  if (!is_number || value >= static_cast<uint64_t>(otherwise)) return otherwise;
  return static_cast<int64_t>(value);
}

}  // namespace

int64_t memory_limit(const MemoryFiles& files) {
  int64_t least = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  for (const Hierarchy& h : hierarchies_in(files.mounts)) {
    const fs::path group = group_in(files.cgroup, h.is_second);
    // In a container the mounted group may be the process's own, which the path names from outside.
    fs::path below = group.lexically_relative(h.root);
    if (!below.empty() && *below.begin() == "..") below.clear();
    const char* const name = h.is_second ? "memory.max" : "memory.limit_in_bytes";
    fs::path folder = h.at;
    least = limit_in(folder / name, least);
    for (const fs::path& part : below) least = limit_in((folder /= part) / name, least);
  }
  return least;
}

}  // namespace twinkle
