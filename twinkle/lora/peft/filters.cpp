#include "twinkle/lora/peft/filters.h"

#include <algorithm>
#include <variant>

#include "twinkle/lora/peft/patterns.h"

namespace twinkle::lora {
Filters::Filters(const PeftConfig& config)
    : layers_(config.layers_to_transform.begin(), config.layers_to_transform.end()) {
  if (const auto* names = std::get_if<std::vector<std::string>>(&config.exclude_modules)) {
    excluded_.insert(names->begin(), names->end());
  } else {
    const std::string& text = std::get<std::string>(config.exclude_modules);
    excluded_pattern_ = regex_of("exclude_modules", text, text);
  }
  // The first number is the layer's: experts have numbers, too.
  constexpr const char* kNumber = R"(\.(?<layer>\d+)\..*)";
  for (const std::string& text : config.layers_pattern)
    layer_patterns_.push_back(
        regex_of("layers_pattern", text, "(?:|.*?\\.)(?:" + text + ")" + kNumber));
  if (layer_patterns_.empty())
    layer_patterns_.push_back(boost::regex(std::string(R"(.*?\.[^.]*)") + kNumber));
}

bool Filters::excludes(const std::string& path, std::span<const std::string> names) const {
  if (excluded_pattern_) return matches(path, *excluded_pattern_);
  return std::ranges::any_of(names,
                             [this](const std::string& name) { return excluded_.contains(name); });
}

std::optional<int64_t> Filters::layer_of(const std::string& path) const {
  for (const boost::regex& pattern : layer_patterns_) {
    boost::smatch found;
    if (matches(path, pattern, &found)) return std::stoll(found["layer"].str());
  }
  return std::nullopt;
}

bool Filters::reaches(const std::string& path) const {
  if (layers_.empty()) return true;
  const std::optional<int64_t> layer = layer_of(path);
  return layer && layers_.contains(*layer);
}

}  // namespace twinkle::lora
