// The patterns of a config's rank_pattern or alpha_pattern: regular expressions of a module's whole
// path, or of what is behind one of its dots, as peft matches them. One of letters, digits, '_',
// '-' and dots alone is looked up, not searched for: an adapter may have one for each of tens of
// thousands of experts' linears.
#pragma once
#include <boost/regex.hpp>

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace twinkle::lora {

// Boost's engine gives up on an expression whose search explodes, where std::regex would not come
// back. `found`: what its groups matched. Error kInvalid: it has.
bool matches(const std::string& path, const boost::regex& pattern, boost::smatch* found = nullptr);

// `whole`: what is made of a field's `text`. Error kInvalid: it is no regular expression.
boost::regex regex_of(const char* field, const std::string& text, const std::string& whole);

class Patterns {
 public:
  // `field`: for errors. Error kInvalid: one is no regular expression.
  Patterns(const char* field, const std::vector<std::string>& texts);

  // The indices of those that match, in their order. Error kInvalid: as of matches().
  std::vector<size_t> all(const std::string& path) const;
  // The first of them.
  std::optional<size_t> first(const std::string& path) const;

 private:
  // Plain ones whose dots, each of which matches any character, are at the same places.
  struct Plain {
    std::vector<size_t> dots;
    std::unordered_map<std::string, std::vector<size_t>> indices;  // by text
  };

  void add_plain(const std::string& text, size_t index);
  std::vector<size_t> plain(const std::string& path) const;

  std::map<size_t, std::vector<Plain>> plain_;  // by length
  std::vector<std::pair<size_t, boost::regex>> others_;
};

// The texts of a config's patterns, without their values.
template <class T>
std::vector<std::string> texts_of(const std::vector<std::pair<std::string, T>>& patterns) {
  std::vector<std::string> out;
  for (const auto& [text, value] : patterns) out.push_back(text);
  return out;
}

}  // namespace twinkle::lora
