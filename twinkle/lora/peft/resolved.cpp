#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include "twinkle/lora/peft/form.h"
#include "twinkle/lora/peft/names.h"

namespace twinkle::lora {
namespace {

using Paths = std::set<std::string>;

Paths paths_of(std::span<const LinearShape> linears, std::span<const size_t> which) {
  Paths out;
  for (const size_t i : which) out.insert(linears[i].path);
  return out;
}

// The linears whose weight a name has that is no stack's.
Paths with_weight(const std::string& parameter, std::span<const LinearShape> linears) {
  constexpr std::string_view kWeight = ".weight";
  Paths out;
  if (!parameter.ends_with(kWeight)) return out;
  const std::string name = parameter.substr(0, parameter.size() - kWeight.size());
  for (const LinearShape& linear : linears) {
    if (ends_in(linear.path, name) || other_path(linear.path) == name) out.insert(linear.path);
  }
  return out;
}

bool is_stack(const std::string& parameter, std::span<const LinearShape> linears) {
  return std::ranges::any_of(linears, [&](const LinearShape& linear) {
    const auto expert = expert_path(linear.path);
    return expert && (ends_in(expert->parameter(), parameter) ||
                      other_path(expert->parameter()) == parameter);
  });
}

// Gives linears that were named by their weights the ranks and alphas of these names.
template <class T>
void take_pattern(std::vector<std::pair<std::string, T>>& pattern, const Paths& paths,
                  const auto& of_file, const auto& of_path) {
  std::vector<std::pair<std::string, T>> own;
  for (const std::string& path : paths) {
    const T value = of_file(path + ".weight");
    if (value != of_path(path)) own.emplace_back(path, value);
  }
  pattern.insert(pattern.begin(), own.begin(), own.end());
}

}  // namespace

PeftConfig resolved(const PeftAdapter& saved, std::span<const LinearShape> linears) {
  const bool of_each = std::ranges::any_of(saved.entries, [](const StoredPeftEntry& entry) {
    return expert_path(entry.module).has_value() || is_tinkers(entry.module);
  });
  std::vector<LinearShape> modules, reached;  // linears of no expert; that target_modules reach
  for (const LinearShape& linear : linears) {
    const bool is_expert = expert_path(linear.path).has_value();
    if (!is_expert) modules.push_back(linear);
    if (!is_expert || of_each) reached.push_back(linear);
  }
  PeftConfig out = saved.config;
  Paths weights;
  out.target_parameters.clear();
  for (const std::string& parameter : saved.config.target_parameters) {
    if (is_stack(parameter, linears))
      out.target_parameters.push_back(parameter);
    else
      weights.merge(with_weight(parameter, modules));
  }
  std::vector<std::string> unused;
  Paths wanted = paths_of(reached, match_modules(out, reached, unused));
  wanted.insert(weights.begin(), weights.end());
  if (wanted.empty() && out.target_parameters.empty()) return saved.config;  // it is refused
  if (auto* const names = std::get_if<std::vector<std::string>>(&out.target_modules)) {
    std::erase_if(*names, [&](const std::string& name) {
      return std::ranges::find(unused, name) != unused.end();
    });
  }
  if (paths_of(linears, match_modules(out, linears, unused)) != wanted) {
    std::vector<std::string> chosen(wanted.begin(), wanted.end()), others;
    for (const LinearShape& linear : linears)
      if (!wanted.contains(linear.path)) others.push_back(linear.path);
    out.target_modules = shortest_names(chosen, others);
    out.clear_filters();
  }
  name_sizes_of_stacks(out, linears);
  if (weights.empty()) return out;
  const PeftConfig before = out;
  const Sizes file(saved.config), now(before);
  take_pattern<int64_t>(
      out.rank_pattern, weights, [&](const std::string& path) { return file.rank(path); },
      [&](const std::string& path) { return now.rank(path); });
  take_pattern<double>(
      out.alpha_pattern, weights, [&](const std::string& path) { return file.alpha(path); },
      [&](const std::string& path) { return now.alpha(path); });
  return out;
}

}  // namespace twinkle::lora
