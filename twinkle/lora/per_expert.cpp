#include "twinkle/lora/per_expert.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "twinkle/lora/expert_factors.h"
#include "twinkle/model/weights/tensors.h"

namespace twinkle::lora {
namespace {

using Names = std::vector<std::string>;

// The linears that a stack's is, of each expert.
Names parts_of(std::string_view name) {
  return name == "gate_up_proj" ? Names{"gate_proj", "up_proj"} : Names{std::string(name)};
}

bool is_stacks(const Factors& factors, const std::set<std::string>& stacks) {
  const auto expert = expert_path(factors.path);
  return expert && stacks.contains(expert->parameter());
}

// The rows of B that are the parts' of an expert, in memory that the view owns: one after the
// other, or in turn.
TensorView part_of(const at::Tensor& b, size_t part, size_t num, bool in_turn) {
  const auto i = static_cast<int64_t>(part), n = static_cast<int64_t>(num);
  if (!in_turn || n == 1) return model::view_of("b", b.chunk(n)[part]);
  const auto rows = std::make_shared<at::Tensor>(b.slice(0, i, b.size(0), n).contiguous());
  TensorView out = model::view_of("b", *rows);
  if (!out.owner) out.owner = rows;
  return out;
}

std::string path_of(const ExpertPath& expert, const std::string& name) {
  return expert.module + "." + std::to_string(expert.expert) + "." + name;
}

// The stacks that the adapter has pairs for, by their parameters.
std::set<std::string> stacks_of(const Adapter& adapter, std::span<const LinearShape> linears) {
  std::set<std::string> out;
  for (const size_t i : match_parameters(adapter.config(), linears))
    out.insert(expert_path(linears[i].path)->parameter());
  return out;
}

// Names of modules for the targets that are none: the last names where they match no others
// (dense layers and shared experts have linears of these names), else with each expert's number.
Names named(const Adapter& adapter, const std::set<std::string>& stacks,
            std::span<const LinearShape> linears) {
  const bool is_listed = !adapter.config().has_filters();
  const auto* listed = is_listed ? std::get_if<Names>(&adapter.config().target_modules) : nullptr;
  Names others = listed ? *listed : Names();
  std::set<std::string> wanted, last, numbered;
  for (const Factors& factors : adapter.factors()) {
    if (!is_stacks(factors, stacks)) {
      wanted.insert(factors.path);
      if (!listed) others.push_back(factors.path);  // an expression, or filtered
      continue;
    }
    const ExpertPath expert = *expert_path(factors.path);
    for (const std::string& name : parts_of(expert.name)) {
      wanted.insert(path_of(expert, name));
      last.insert(name);
    }
    const std::string parameter = expert.parameter();
    for (const std::string& target : adapter.config().target_parameters) {
      if (parameter != target && !parameter.ends_with("." + target)) continue;
      const size_t dot = target.rfind('.');
      ExpertPath short_of = expert;
      short_of.module = dot == target.npos ? "experts" : target.substr(0, dot);
      for (const std::string& name : parts_of(expert.name))
        numbered.insert(path_of(short_of, name));
    }
  }
  PeftConfig plain = adapter.config();
  Names names = others;
  names.insert(names.end(), last.begin(), last.end());
  plain.target_modules = names;
  plain.clear_filters();
  plain.target_parameters.clear();
  std::set<std::string> matched;
  for (const size_t i : match_targets(plain, linears)) matched.insert(linears[i].path);
  if (matched == wanted) return names;
  others.insert(others.end(), numbered.begin(), numbered.end());
  return others;
}

PeftConfig config_of(const Adapter& adapter, const std::set<std::string>& stacks,
                     std::span<const LinearShape> linears) {
  PeftConfig out = adapter.config();
  out.share_expert_factors = false;
  if (!stacks.empty()) {
    out.target_modules = named(adapter, stacks, linears);
    out.clear_filters();
    out.target_parameters.clear();
  }
  const Sizes sizes(adapter.config());
  std::map<std::string, ExpertSize> experts = experts_of(adapter, linears);
  for (const Factors& factors : adapter.factors()) {
    if (!is_stacks(factors, stacks)) continue;
    const ExpertPath expert = *expert_path(factors.path);
    for (const std::string& name : parts_of(expert.name))
      experts[path_of(expert, name)] = {sizes.rank(factors.path), sizes.alpha(factors.path)};
  }
  name_sizes_of_experts(out, experts);
  return out;
}

// Puts before the others what gives experts' linears these values where theirs are `wrong`: a
// pattern for most experts of a module, behind those of single ones.
template <class T>
void put_experts_in_front(std::vector<std::pair<std::string, T>>& patterns,
                          const std::map<std::string, T>& values,
                          const std::set<std::string>& wrong) {
  std::map<std::string, std::vector<std::string>> modules;  // paths, by pattern
  for (const auto& [path, value] : values) {
    const ExpertPath expert = *expert_path(path);
    modules[expert.module + ".[0-9]+." + expert.name].push_back(path);
  }
  std::vector<std::pair<std::string, T>> front;
  for (const auto& [pattern, paths] : modules) {
    if (std::ranges::none_of(paths, [&](const std::string& p) { return wrong.contains(p); }))
      continue;
    std::map<T, size_t> counts;
    for (const std::string& path : paths) ++counts[values.at(path)];
    const T most =
        std::ranges::max_element(counts, {}, [](const auto& of) { return of.second; })->first;
    for (const std::string& path : paths)
      if (values.at(path) != most) front.emplace_back(path, values.at(path));
    front.emplace_back(pattern, most);
  }
  patterns.insert(patterns.begin(), front.begin(), front.end());
}

void rename(PeftConfig& config, const std::function<void(std::string&)>& by) {
  if (auto* const names = std::get_if<Names>(&config.target_modules))
    std::ranges::for_each(*names, by);
  if (auto* const names = std::get_if<Names>(&config.exclude_modules))
    std::ranges::for_each(*names, by);
  for (auto& [pattern, rank] : config.rank_pattern) by(pattern);
  for (auto& [pattern, alpha] : config.alpha_pattern) by(pattern);
}

}  // namespace

bool has_mixtrals_names(const model::Layout& layout) {
  std::string path = "model.layers.0.mlp.experts";
  const std::string theirs = layout.name(path);
  to_mixtrals_name(path);
  return path == theirs;
}

// Patterns and an expression need not mean of the new names what they mean of the old ones: where
// they don't, each module is named.
void give_mixtrals_names(PeftConfig& config, std::span<PeftEntry> entries) {
  std::vector<std::pair<std::string, std::string>> renamed;
  for (PeftEntry& entry : entries) {
    if (!expert_path(entry.module)) continue;  // a stack's, which has peft's name
    const std::string before = entry.module;
    to_mixtrals_name(entry.module);
    renamed.emplace_back(before, entry.module);
  }
  if (renamed.empty()) return;
  const PeftConfig ours = config;
  rename(config, to_mixtrals_name);
  if (!std::holds_alternative<Names>(config.target_modules)) {
    Names modules;
    for (const PeftEntry& entry : entries)
      if (!entry.module.ends_with(".experts") && !entry.module.ends_with(".base_layer"))
        modules.push_back(entry.module);
    config.target_modules = std::move(modules);
    config.clear_filters();
  }
  const PeftConfig theirs = config;
  const Sizes before(ours), own(theirs, Sizes::By::kOwn), either(theirs);
  for (const auto& [old, now] : renamed) {
    if (before.rank(old) != own.rank(now) || before.rank(old) != either.rank(now))
      config.rank_pattern.emplace(config.rank_pattern.begin(), now, before.rank(old));
    if (before.alpha(old) != own.alpha(now) || before.alpha(old) != either.alpha(now))
      config.alpha_pattern.emplace(config.alpha_pattern.begin(), now, before.alpha(old));
  }
}

std::map<std::string, ExpertSize> experts_of(const Adapter& adapter,
                                             std::span<const LinearShape> linears) {
  const std::set<std::string> stacks = stacks_of(adapter, linears);
  const Sizes sizes(adapter.config());
  std::map<std::string, ExpertSize> out;
  for (const Factors& factors : adapter.factors())
    if (expert_path(factors.path) && !is_stacks(factors, stacks))
      out[factors.path] = {sizes.rank(factors.path), sizes.alpha(factors.path)};
  return out;
}

void name_sizes_of_experts(PeftConfig& config, const std::map<std::string, ExpertSize>& linears) {
  const PeftConfig given = config;
  const Sizes own(given, Sizes::By::kOwn), either(given);
  std::map<std::string, int64_t> ranks;
  std::map<std::string, double> alphas;
  std::set<std::string> of_other_rank, of_other_alpha;
  for (const auto& [path, size] : linears) {
    ranks[path] = size.rank;
    alphas[path] = size.alpha;
    if (own.rank(path) != size.rank || either.rank(path) != size.rank) of_other_rank.insert(path);
    if (own.alpha(path) != size.alpha || either.alpha(path) != size.alpha)
      of_other_alpha.insert(path);
  }
  put_experts_in_front(config.rank_pattern, ranks, of_other_rank);
  put_experts_in_front(config.alpha_pattern, alphas, of_other_alpha);
}

void take_mixtrals_names(PeftAdapter& saved) {
  bool any = false;
  for (StoredPeftEntry& entry : saved.entries) {
    if (!expert_path(entry.module)) continue;
    const std::string before = entry.module;
    from_mixtrals_name(entry.module);
    any = any || entry.module != before;
  }
  if (any) rename(saved.config, from_mixtrals_name);
}

PerExpert per_expert(const Adapter& adapter, std::span<const LinearShape> linears) {
  const std::set<std::string> stacks = stacks_of(adapter, linears);
  const bool in_turn = std::ranges::any_of(linears, &LinearShape::turned);
  PerExpert out{config_of(adapter, stacks, linears), {}};
  for (const Factors& factors : adapter.factors()) {
    const TensorView a = model::view_of("a", factors.f.a);
    if (!is_stacks(factors, stacks)) {
      const auto expert = expert_path(factors.path);
      require(!expert || expert->name != "gate_up_proj", Code::kInvalid,
              "lora: expert_format is 'per_expert', but the adapter has ", factors.path,
              " as a module of its own, which no other program reads; create it with gate_up_proj "
              "in target_parameters, or with gate_proj and up_proj");
      out.entries.push_back({factors.path, a, model::view_of("b", factors.f.b)});
      continue;
    }
    const ExpertPath expert = *expert_path(factors.path);
    const Names parts = parts_of(expert.name);
    for (size_t i = 0; i < parts.size(); ++i) {
      out.entries.push_back(
          {path_of(expert, parts[i]), a, part_of(factors.f.b, i, parts.size(), in_turn)});
    }
  }
  return out;
}

}  // namespace twinkle::lora
