#include "twinkle/lora/peft/patterns.h"

#include <algorithm>
#include <stdexcept>

#include "twinkle/base/error.h"

namespace twinkle::lora {
namespace {

bool is_plain(const std::string& text) {
  constexpr const char* kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.";
  return text.find_first_not_of(kPlain) == text.npos;
}

}  // namespace

boost::regex regex_of(const char* field, const std::string& text, const std::string& whole) {
  try {
    return boost::regex(whole, boost::regex::perl);
  } catch (const boost::regex_error& e) {
    fail(Code::kInvalid, "lora: ", field, " '", text, "' is not a regular expression: ", e.what());
  }
}

bool matches(const std::string& path, const boost::regex& pattern, boost::smatch* found) {
  try {
    boost::smatch ignored;
    return boost::regex_match(path, found ? *found : ignored, pattern);
  } catch (const std::runtime_error& e) {
    fail(Code::kInvalid, "lora: the pattern '", pattern.str(), "' cannot be matched: ", e.what());
  }
}

Patterns::Patterns(const char* field, const std::vector<std::string>& texts) {
  for (size_t i = 0; i < texts.size(); ++i) {
    if (is_plain(texts[i]))
      add_plain(texts[i], i);
    else
      others_.emplace_back(i, regex_of(field, texts[i], "(?:.*\\.)?(?:" + texts[i] + ")"));
  }
}

void Patterns::add_plain(const std::string& text, size_t index) {
  std::vector<size_t> dots;
  for (size_t dot = text.find('.'); dot != text.npos; dot = text.find('.', dot + 1))
    dots.push_back(dot);
  std::vector<Plain>& alike = plain_[text.size()];
  auto found = std::ranges::find(alike, dots, &Plain::dots);
  if (found == alike.end()) found = alike.insert(alike.end(), Plain{std::move(dots), {}});
  found->indices[text].push_back(index);
}

std::vector<size_t> Patterns::plain(const std::string& path) const {
  std::vector<size_t> out;
  if (plain_.empty()) return out;
  for (size_t begin = 0; begin <= path.size(); begin = path.find('.', begin) + 1) {
    const auto alike = plain_.find(path.size() - begin);
    if (alike != plain_.end()) {
      for (const Plain& of : alike->second) {
        std::string text = path.substr(begin);
        for (const size_t dot : of.dots) text[dot] = '.';
        const auto found = of.indices.find(text);
        if (found != of.indices.end())
          out.insert(out.end(), found->second.begin(), found->second.end());
      }
    }
    if (path.find('.', begin) == path.npos) break;
  }
  std::ranges::sort(out);
  return out;
}

std::vector<size_t> Patterns::all(const std::string& path) const {
  std::vector<size_t> out = plain(path);
  const auto num_plain = static_cast<ptrdiff_t>(out.size());
  for (const auto& [index, pattern] : others_)
    if (matches(path, pattern)) out.push_back(index);
  std::inplace_merge(out.begin(), out.begin() + num_plain, out.end());
  return out;
}

std::optional<size_t> Patterns::first(const std::string& path) const {
  const std::vector<size_t> found = plain(path);
  std::optional<size_t> out = found.empty() ? std::nullopt : std::optional(found.front());
  for (const auto& [index, pattern] : others_) {
    if (out && index > *out) break;
    if (matches(path, pattern)) return index;
  }
  return out;
}

}  // namespace twinkle::lora
