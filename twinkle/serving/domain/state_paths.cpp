#include "twinkle/serving/domain/state_paths.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <system_error>

namespace twinkle::server::core {
namespace {

namespace fs = std::filesystem;

bool is_plain(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("-._@/").find(c) != std::string_view::npos;
}

// The length of the path that begins here: the ':' of "RUN/a: No such file" is none of it, that of
// a run's is.
size_t length_of_path(std::string_view text) {
  size_t out = 0;
  const auto goes_on = [&] {
    return is_plain(text[out]) ||
           (text[out] == ':' && out + 1 < text.size() && is_plain(text[out + 1]));
  };
  while (out < text.size() && goes_on()) ++out;
  return out;
}

// "a", of "a@7" and of ".a.partial-0123456789ab", as it is written.
std::string name_of(std::string folder) {
  const size_t partial = folder.rfind(".partial-");
  if (folder.starts_with('.') && partial != std::string::npos)
    folder = folder.substr(1, partial - 1);
  return folder.substr(0, folder.find('@'));
}

// The name of a file below the state, for clients.
std::string told_path(const fs::path& file) {
  const std::vector<std::string> parts(file.begin(), file.end());
  if (parts.size() < 4 || parts[0] != "checkpoints") return file.string();
  return "checkpoint://" + parts[1] + "/" + parts[2] + "/" + name_of(parts[3]);
}

}  // namespace

StatePaths::StatePaths(const fs::path& state) {
  std::error_code ignored;
  beginnings_ = {state.string() + "/", fs::weakly_canonical(state, ignored).string() + "/"};
  // One may end with the other.
  std::ranges::sort(beginnings_, std::ranges::greater(), &std::string::size);
  std::erase(beginnings_, "/");  // it could not be told
}

std::optional<StatePaths::Told> StatePaths::told(std::string text) const {
  std::string first;
  for (const std::string& beginning : beginnings_) {
    for (size_t at = 0; (at = text.find(beginning, at)) != std::string::npos;) {
      const std::string_view file = std::string_view(text).substr(at + beginning.size());
      const size_t length = length_of_path(file);
      const std::string path = told_path(file.substr(0, length));
      text.replace(at, beginning.size() + length, path);
      at += path.size();
      if (first.empty()) first = path;
    }
  }
  if (first.empty()) return std::nullopt;
  return Told{std::move(text), std::move(first)};
}

}  // namespace twinkle::server::core
