// The modules that a config's exclude_modules leaves out, and the layers that its
// layers_to_transform names, as peft matches them (tuners_utils.check_target_module_exists).
#pragma once
#include <boost/regex.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "twinkle/io/peft/peft.h"

namespace twinkle::lora {

class Filters {
 public:
  // Error kInvalid: exclude_modules or a layers_pattern is no regular expression.
  explicit Filters(const PeftConfig& config);

  // `names`: a path, and what else stands for it in a list.
  bool excludes(const std::string& path, std::span<const std::string> names) const;
  // True if a target's name that is not the whole path reaches the path.
  bool reaches(const std::string& path) const;
  // The number of the path's layer.
  std::optional<int64_t> layer_of(const std::string& path) const;

 private:
  std::optional<boost::regex> excluded_pattern_;
  std::unordered_set<std::string> excluded_;
  std::unordered_set<int64_t> layers_;
  std::vector<boost::regex> layer_patterns_;
};

}  // namespace twinkle::lora
