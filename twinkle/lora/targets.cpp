#include "twinkle/lora/targets.h"

#include <boost/regex.hpp>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/lora/expert_factors.h"
#include "twinkle/lora/peft/filters.h"
#include "twinkle/lora/peft/names.h"
#include "twinkle/lora/peft/patterns.h"

namespace twinkle::lora {
namespace {

bool matches_by_a_name(const std::string& path, const boost::regex& pattern) {
  const std::string other = other_path(path);
  return matches(path, pattern) || (!other.empty() && matches(other, pattern));
}

// The last names of the paths, each once: q_proj, k_proj, ...
std::vector<std::string> endings(std::span<const LinearShape> linears) {
  std::vector<std::string> seen;
  for (const LinearShape& linear : linears) {
    std::string name = linear.path.substr(linear.path.rfind('.') + 1);
    if (std::find(seen.begin(), seen.end(), name) == seen.end()) seen.push_back(std::move(name));
  }
  return seen;
}

// True if "all-linear" stands for it, too: as peft has it, for all but the output layer. Of experts
// that target_parameters name some of, for none: peft knows these as parameters alone.
bool is_among_all(const PeftConfig& config, const LinearShape& linear) {
  if (linear.path == model::kHead) return false;
  const auto expert = expert_path(linear.path);
  return !expert || (expert->name != "gate_up_proj" && config.target_parameters.empty());
}

// For Mixtral, and for others whose experts have no dense neighbours: w1 is then every gate_proj.
bool all_gates_are_experts(std::span<const LinearShape> linears) {
  bool any = false;
  for (const LinearShape& linear : linears) {
    if (!ends_in(linear.path, "gate_proj")) continue;
    if (!expert_path(linear.path)) return false;
    any = true;
  }
  return any;
}

// Error kInvalid: an expert's gate_up_proj and one of its halves.
void refuse_overlap(std::span<const LinearShape> linears, std::span<const size_t> matched) {
  std::set<std::string> both;
  for (const size_t i : matched) {
    const auto expert = expert_path(linears[i].path);
    if (expert && expert->name == "gate_up_proj") both.insert(linears[i].path);
  }
  if (both.empty()) return;
  for (const size_t i : matched) {
    const std::string& path = linears[i].path;
    const auto expert = expert_path(path);
    if (!expert || (expert->name != "gate_proj" && expert->name != "up_proj")) continue;
    const std::string stem = path.substr(0, path.rfind('.') + 1);
    require(!both.contains(stem + "gate_up_proj"), Code::kInvalid, "lora: the adapter targets ",
            path, " and ", stem, "gate_up_proj, which holds it: leave one of them out");
  }
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

void check_rank(const char* name, int64_t rank) {
  require(rank >= 1, Code::kInvalid, "lora: ", name, rank, ", it must be at least 1");
  require(rank <= 4096, Code::kInvalid, "lora: ", name, rank, ", the limit is 4096");
}

void check_options(const PeftConfig& c) {
  check_rank("rank is ", c.rank);
  for (const auto& [pattern, rank] : c.rank_pattern)
    check_rank("rank_pattern has a rank of ", rank);
  require(std::isfinite(c.alpha), Code::kInvalid, "lora: lora_alpha is ", c.alpha,
          ", it must be finite");
  for (const auto& [pattern, alpha] : c.alpha_pattern) {
    require(std::isfinite(alpha), Code::kInvalid, "lora: alpha_pattern has an alpha of ", alpha,
            ", it must be finite");
  }
  require(c.dropout >= 0 && c.dropout < 1, Code::kInvalid, "lora: lora_dropout is ", c.dropout,
          ", it must be in [0, 1)");
}

// By which patterns know it: its path and the stack's, each under both names.
std::vector<std::string> names_of(const std::string& path, Sizes::By by) {
  std::vector<std::string> out{path};
  const auto expert = by == Sizes::By::kOwn ? std::nullopt : expert_path(path);
  if (expert) out.push_back(expert->parameter());
  for (size_t i = 0, num = out.size(); i < num; ++i)
    if (std::string other = other_path(out[i]); !other.empty()) out.push_back(std::move(other));
  return out;
}

template <class T>
T first_match(const Patterns& patterns, const std::vector<std::pair<std::string, T>>& values,
              const std::string& path, Sizes::By by, T otherwise) {
  if (values.empty()) return otherwise;
  size_t first = values.size();
  for (const std::string& name : names_of(path, by))
    first = std::min(first, patterns.first(name).value_or(first));
  return first == values.size() ? otherwise : values[first].second;
}

// The names that stand for a path in lists of modules.
std::vector<std::string> names_in_lists(const std::string& path, bool by_mixtrals) {
  std::vector<std::string> out = ends_of(path);
  if (std::string other = other_path(path); !other.empty()) out.push_back(std::move(other));
  if (std::string mixtrals = path; by_mixtrals) {
    to_mixtrals_name(mixtrals);
    std::ranges::move(ends_of(mixtrals), std::back_inserter(out));
  }
  return out;
}

// True if the filters leave a target in. `names`: those that stand for it; `wanted`: the list of
// targets.
bool passes(const Filters& filters, const std::string& path, std::span<const std::string> names,
            const std::unordered_set<std::string>& wanted) {
  const std::string other = other_path(path);
  if (filters.excludes(path, names) || (!other.empty() && filters.excludes(other, {})))
    return false;
  return wanted.contains(path) || wanted.contains(other) || filters.reaches(path) ||
         filters.reaches(other);
}

// The names that the pattern matches, if some of them by their other path alone: programs that know
// them by the one they have here would not find them by the pattern.
std::optional<std::vector<std::string>> names_for(const boost::regex& pattern,
                                                  std::span<const std::string> names) {
  std::vector<std::string> matched;
  bool by_other = false;
  for (const std::string& name : names) {
    const bool here = matches(name, pattern);
    if (!here && !matches_by_a_name(name, pattern)) continue;
    by_other = by_other || !here;
    matched.push_back(name);
  }
  return by_other ? std::optional(std::move(matched)) : std::nullopt;
}

// Puts before the others patterns that give these of all names their values, and match no others.
template <class T>
void put_names_in_front(std::vector<std::pair<std::string, T>>& patterns,
                        const std::map<std::string, T>& values, const std::set<std::string>& all) {
  std::map<T, std::vector<std::string>> by_value;
  for (const auto& [name, value] : values) by_value[value].push_back(name);
  std::vector<std::pair<std::string, T>> front;
  for (const auto& [value, names] : by_value) {
    std::vector<std::string> others;
    std::ranges::set_difference(all, names, std::back_inserter(others));
    for (std::string& name : shortest_names(names, others, 3))
      front.emplace_back(std::move(name), value);
  }
  patterns.insert(patterns.begin(), front.begin(), front.end());
}

// Puts these names in place of each pattern that has some, or the same pattern of the other path
// where that matches these and no more.
template <class T>
void use_names(const char* field, std::vector<std::pair<std::string, T>>& patterns,
               std::span<const std::string> names) {
  using Names = std::vector<std::string>;
  if (patterns.empty()) return;
  const Patterns given(field, texts_of(patterns));
  std::vector<bool> by_other(patterns.size());  // matches some by their other path alone
  std::vector<Names> matched(patterns.size());  // by either, of those
  const auto each_match = [&](const auto& told) {
    for (const std::string& name : names) {
      const std::string theirs = other_path(name);  // "" of a name that has none
      const std::vector<size_t> here = given.all(name);
      const std::vector<size_t> other = theirs.empty() ? here : given.all(theirs);
      for (const size_t i : here) told(i, name, true);
      for (const size_t i : other)
        if (!std::ranges::binary_search(here, i)) told(i, name, false);
    }
  };
  each_match([&](size_t i, const std::string&, bool is_here) {
    if (!is_here) by_other[i] = true;
  });
  if (std::ranges::find(by_other, true) == by_other.end()) return;
  each_match([&](size_t i, const std::string& name, bool) {
    if (by_other[i]) matched[i].push_back(name);
  });
  Names moved(patterns.size());
  for (size_t i = 0; i < moved.size(); ++i)
    if (by_other[i]) moved[i] = other_path(patterns[i].first);
  const Patterns as_moved(field, moved);
  std::vector<Names> by_moved(patterns.size());
  for (const std::string& name : names)
    for (const size_t i : as_moved.all(name)) by_moved[i].push_back(name);
  std::vector<std::pair<std::string, T>> out;
  for (size_t i = 0; i < patterns.size(); ++i) {
    const auto& [text, value] = patterns[i];
    const bool is_same = !moved[i].empty() && by_moved[i] == matched[i];
    if (!by_other[i] || is_same) out.emplace_back(is_same ? moved[i] : text, value);
    for (const std::string& name : by_other[i] && !is_same ? matched[i] : Names())
      out.emplace_back(name, value);
  }
  patterns = std::move(out);
}

bool is_excluded(const PeftConfig& config, const std::string& path) {
  return config.has_filters() && Filters(config).excludes(path, {&path, 1});
}

// Error kInvalid: the filters leave nothing of what is targeted.
void refuse_filters_of_all(const PeftConfig& config, std::span<const LinearShape> linears,
                           std::span<const size_t> matched) {
  if (!matched.empty() || !config.has_filters()) return;
  PeftConfig all = config;
  all.clear_filters();
  std::vector<std::string> unused;
  if (match_modules(all, linears, unused).empty()) return;
  std::string what, last;
  for (const int64_t layer : config.layers_to_transform)
    what += (what.empty() ? "layers_to_transform [" : ", ") + std::to_string(layer);
  if (!what.empty()) what += "]";
  all.exclude_modules = config.exclude_modules;
  if (all.has_filters()) what += what.empty() ? "exclude_modules" : " and exclude_modules";
  const Filters filters(config);
  for (const LinearShape& linear : linears)
    if (const auto layer = filters.layer_of(linear.path)) last = std::to_string(*layer);
  fail(Code::kInvalid, "lora: of target_modules nothing is left by ", what,
       config.layers_to_transform.empty() ? "" : "; the model's layers are 0 to " + last);
}

// True if programs that know the linears by the paths that they have here count others.
bool counts_layers_by_other_path(const PeftConfig& config, std::span<const LinearShape> linears) {
  const Filters filters(config);
  return std::ranges::any_of(linears, [&](const LinearShape& linear) {
    const std::string other = other_path(linear.path);
    return !filters.reaches(linear.path) && !other.empty() && filters.reaches(other);
  });
}

}  // namespace

Sizes::Sizes(const PeftConfig& config, By by) : config_(config), by_(by) {
  check_options(config);
  ranks_ = std::make_unique<Patterns>("rank_pattern", texts_of(config.rank_pattern));
  alphas_ = std::make_unique<Patterns>("alpha_pattern", texts_of(config.alpha_pattern));
}

Sizes::~Sizes() = default;

int64_t Sizes::rank(const std::string& path) const {
  return first_match(*ranks_, config_.rank_pattern, path, by_, config_.rank);
}

double Sizes::alpha(const std::string& path) const {
  return first_match(*alphas_, config_.alpha_pattern, path, by_, config_.alpha);
}

double Sizes::scale(const std::string& path) const {
  const auto r = static_cast<double>(rank(path));
  return alpha(path) / (config_.use_rslora ? std::sqrt(r) : r);
}

std::vector<std::string> idle_patterns(const PeftConfig& config,
                                       std::span<const std::string> paths) {
  std::vector<std::string> out;
  const auto add = [&](const char* field, const std::vector<std::string>& texts) {
    const Patterns patterns(field, texts);
    std::vector<bool> used(texts.size());
    for (const std::string& path : paths)
      for (const std::string& name : names_of(path, Sizes::By::kEither))
        for (const size_t i : patterns.all(name)) used[i] = true;
    for (size_t i = 0; i < texts.size(); ++i)
      if (!used[i]) out.push_back(texts[i]);
  };
  add("rank_pattern", texts_of(config.rank_pattern));
  add("alpha_pattern", texts_of(config.alpha_pattern));
  return out;
}

std::string other_path(std::string_view path) {
  constexpr std::string_view text = "model.", inner = "model.language_model.";
  if (path.starts_with(inner)) return std::string(text) + std::string(path.substr(inner.size()));
  if (path.starts_with(text)) return std::string(inner) + std::string(path.substr(text.size()));
  return {};
}

std::vector<LinearShape> shapes_of(const std::vector<model::NamedLinear>& linears) {
  std::vector<LinearShape> out;
  for (const auto& l : linears)
    out.push_back({l.path, l.linear->weight.size(1), l.linear->weight.size(0), l.turned});
  return out;
}

std::vector<size_t> match_modules(const PeftConfig& config, std::span<const LinearShape> linears,
                                  std::vector<std::string>& unused) {
  const auto* names = std::get_if<std::vector<std::string>>(&config.target_modules);
  const std::string text = names ? "" : std::get<std::string>(config.target_modules);
  std::optional<boost::regex> pattern;
  if (!names && text != "all-linear") pattern = regex_of("target_modules", text, text);
  const bool is_filtered = config.has_filters(), by_mixtrals = all_gates_are_experts(linears);
  const Filters filters(config);
  std::vector<size_t> out;
  std::unordered_set<std::string> wanted, used;
  if (names) wanted.insert(names->begin(), names->end());
  for (size_t i = 0; i < linears.size(); ++i) {
    const std::string& path = linears[i].path;
    bool hit =
        !names && (pattern ? matches_by_a_name(path, *pattern) : is_among_all(config, linears[i]));
    const std::vector<std::string> theirs =
        names || is_filtered ? names_in_lists(path, by_mixtrals) : std::vector<std::string>();
    for (const std::string& name : theirs) {
      if (!wanted.contains(name)) continue;
      used.insert(name);
      hit = true;
    }
    if (hit && is_filtered) hit = passes(filters, path, theirs, wanted);
    if (hit) out.push_back(i);
  }
  if (names)
    for (const std::string& name : *names)
      if (!used.contains(name)) unused.push_back(name);
  return out;
}

std::vector<size_t> match_targets(const PeftConfig& config, std::span<const LinearShape> linears,
                                  std::vector<std::string>* unused) {
  const auto* names = std::get_if<std::vector<std::string>>(&config.target_modules);
  const std::string text = names ? "" : std::get<std::string>(config.target_modules);
  std::vector<size_t> out = match_parameters(config, linears);
  require(!out.empty() || (names ? !names->empty() : !text.empty()), Code::kInvalid,
          "lora: target_modules is empty; name modules or use \"all-linear\"");
  std::vector<std::string> idle;
  const std::vector<size_t> by_module = match_modules(config, linears, idle);
  out.insert(out.end(), by_module.begin(), by_module.end());
  refuse_filters_of_all(config, linears, out);
  require(!out.empty(), Code::kInvalid, names ? "lora: target module '" : "lora: target_modules '",
          idle.empty() ? text : idle[0], "' matches nothing; there is: ", listed(endings(linears)));
  if (unused) std::ranges::move(idle, std::back_inserter(*unused));
  if (!config.target_parameters.empty()) {
    std::ranges::sort(out);
    out.erase(std::unique(out.begin(), out.end()), out.end());
  }
  refuse_overlap(linears, out);
  return out;
}

bool targets_head(const PeftConfig& config) {
  const std::string head = model::kHead;
  if (const auto* names = std::get_if<std::vector<std::string>>(&config.target_modules)) {
    return !is_excluded(config, head) &&
           std::ranges::any_of(*names, [&](const auto& name) { return ends_in(head, name); });
  }
  const auto& text = std::get<std::string>(config.target_modules);
  try {
    return text != "all-linear" && !is_excluded(config, head) &&
           matches(head, boost::regex(text, boost::regex::perl));
  } catch (const std::exception&) {
    return false;  // such an adapter is refused when it is made
  }
}

void name_sizes_of_stacks(PeftConfig& config, std::span<const LinearShape> linears) {
  if (config.target_parameters.empty()) return;
  const PeftConfig before = config;
  const Sizes sizes(before);
  std::map<std::string, int64_t> ranks;  // by parameter
  std::map<std::string, double> alphas;
  for (const size_t i : match_parameters(before, linears)) {
    const std::string& path = linears[i].path;
    const std::string parameter = expert_path(path)->parameter();
    if (const int64_t rank = sizes.rank(parameter); sizes.rank(path) != rank)
      ranks.emplace(parameter, rank);
    if (const double alpha = sizes.alpha(parameter); sizes.alpha(path) != alpha)
      alphas.emplace(parameter, alpha);
  }
  std::set<std::string> parameters;  // names of all stacks
  for (const LinearShape& linear : linears)
    if (const auto expert = expert_path(linear.path)) parameters.insert(expert->parameter());
  put_names_in_front(config.rank_pattern, ranks, parameters);
  put_names_in_front(config.alpha_pattern, alphas, parameters);
}

std::vector<std::string> idle_filters(const PeftConfig& config,
                                      std::span<const LinearShape> linears) {
  std::vector<std::string> out;
  if (!config.has_filters()) return out;
  const bool by_mixtrals = all_gates_are_experts(linears);
  const Filters filters(config);
  std::set<std::string> names;
  std::set<int64_t> layers;
  bool excludes = false;
  for (const LinearShape& linear : linears) {
    const std::vector<std::string> theirs = names_in_lists(linear.path, by_mixtrals);
    names.insert(theirs.begin(), theirs.end());
    for (const std::string& path : {linear.path, other_path(linear.path)}) {
      excludes = excludes || filters.excludes(path, {});
      if (const auto layer = filters.layer_of(path)) layers.insert(*layer);
    }
  }
  if (const auto* listed = std::get_if<std::vector<std::string>>(&config.exclude_modules)) {
    for (const std::string& name : *listed)
      if (!names.contains(name)) out.push_back("exclude_modules '" + name + "'");
  } else if (!excludes) {
    out.push_back("exclude_modules '" + std::get<std::string>(config.exclude_modules) + "'");
  }
  for (const int64_t layer : config.layers_to_transform)
    if (!layers.contains(layer)) out.push_back("layers_to_transform " + std::to_string(layer));
  return out;
}

PeftConfig with_named_targets(PeftConfig config, std::span<const LinearShape> linears) {
  std::vector<std::string> paths, names;  // paths of linears; of stacks, too
  std::set<std::string> stacks;
  for (const LinearShape& linear : linears) {
    paths.push_back(linear.path);
    const auto expert = expert_path(linear.path);
    if (expert && stacks.insert(expert->parameter()).second) names.push_back(expert->parameter());
  }
  names.insert(names.end(), paths.begin(), paths.end());
  use_names("rank_pattern", config.rank_pattern, names);
  use_names("alpha_pattern", config.alpha_pattern, names);
  name_sizes_of_stacks(config, linears);
  std::map<std::string, std::string> here;  // by the other path
  for (const std::string& name : names) here[other_path(name)] = name;
  const bool by_mixtrals = all_gates_are_experts(linears);
  const auto rename = [&](std::string& name) {
    if (const auto found = here.find(name); found != here.end()) name = found->second;
    if (by_mixtrals) from_mixtrals_name(name);
  };
  std::ranges::for_each(config.target_parameters, rename);
  if (auto* excluded = std::get_if<std::vector<std::string>>(&config.exclude_modules)) {
    std::ranges::for_each(*excluded, rename);
  } else {
    const std::string& text = std::get<std::string>(config.exclude_modules);
    if (auto named = names_for(regex_of("exclude_modules", text, text), paths))
      config.exclude_modules = *std::move(named);
  }
  if (counts_layers_by_other_path(config, linears)) {
    std::vector<std::string> unused, modules;
    for (const size_t i : match_modules(config, linears, unused)) modules.push_back(paths[i]);
    config.target_modules = std::move(modules);
    config.clear_filters();
    return config;
  }
  if (auto* modules = std::get_if<std::vector<std::string>>(&config.target_modules)) {
    std::ranges::for_each(*modules, rename);
    return config;
  }
  const std::string text = std::get<std::string>(config.target_modules);
  if (text == "all-linear") {
    std::vector<std::string> all, others;
    for (const LinearShape& linear : linears) {
      if (is_among_all(config, linear))
        all.push_back(linear.path);
      else if (expert_path(linear.path))
        others.push_back(linear.path);
    }
    config.target_modules = shortest_names(all, others);
  } else if (auto matched = names_for(regex_of("target_modules", text, text), paths)) {
    config.target_modules = *std::move(matched);
  }
  return config;
}

}  // namespace twinkle::lora
