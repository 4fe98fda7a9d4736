// Whether a path is one of a route.
#pragma once
#include <map>
#include <string>
#include <string_view>

namespace twinkle::server {

// `pattern`: /a/{name}/{path...}: a part that any stands for, by its name, and all that is left, as
// "path". These go to `parameters`, also of a path that does not match.
inline bool matches(std::string_view pattern, std::string_view path,
                    std::map<std::string, std::string>& parameters) {
  while (!pattern.empty() && !path.empty()) {
    const size_t end = pattern.find('/', 1), path_end = path.find('/', 1);
    const std::string_view want = pattern.substr(1, end - 1), has = path.substr(1, path_end - 1);
    if (want == "{path...}") {
      parameters["path"] = path.substr(1);
      return true;
    }
    if (want.starts_with('{'))
      parameters[std::string(want.substr(1, want.size() - 2))] = has;
    else if (want != has)
      return false;
    pattern = end == std::string_view::npos ? "" : pattern.substr(end);
    path = path_end == std::string_view::npos ? "" : path.substr(path_end);
  }
  return pattern.empty() && path.empty();
}

}  // namespace twinkle::server
