#include "twinkle/lora/peft/names.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace twinkle::lora {

std::vector<std::string> ends_of(const std::string& path) {
  std::vector<std::string> out;
  for (size_t dot = path.rfind('.'); dot != std::string::npos && dot > 0;
       dot = path.rfind('.', dot - 1))
    out.push_back(path.substr(dot + 1));
  out.push_back(path);
  return out;
}

bool ends_in(const std::string& path, const std::string& name) {
  return path == name || (path.size() > name.size() && path.ends_with(name) &&
                          path[path.size() - name.size() - 1] == '.');
}

std::string last_name(const std::string& path) { return path.substr(path.rfind('.') + 1); }

std::vector<std::string> shortest_names(std::span<const std::string> chosen,
                                        std::span<const std::string> others, size_t least_parts) {
  std::unordered_set<std::string> taken, seen;
  for (const std::string& path : others)
    for (std::string& end : ends_of(path)) taken.insert(std::move(end));
  std::vector<std::string> out;
  for (const std::string& path : chosen) {
    const std::vector<std::string> ends = ends_of(path);
    size_t i = std::min(least_parts, ends.size()) - 1;
    while (i + 1 < ends.size() && taken.contains(ends[i])) ++i;
    if (seen.insert(ends[i]).second) out.push_back(ends[i]);
  }
  return out;
}

}  // namespace twinkle::lora
