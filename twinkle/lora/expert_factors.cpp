#include "twinkle/lora/expert_factors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <set>
#include <string_view>

#include "twinkle/base/error.h"
#include "twinkle/lora/peft/names.h"
#include "twinkle/lora/variants/kinds.h"

namespace twinkle::lora {
namespace {

constexpr std::string_view kExperts = ".experts.";
constexpr const char *kGateUp = "gate_up_proj", *kDown = "down_proj";
constexpr std::array<std::pair<const char*, const char*>, 3> kTinkers{
    {{"gate_proj", ".w1"}, {"up_proj", ".w3"}, {kDown, ".w2"}}};

constexpr std::string_view kModule = "mlp.experts", kMixtralsModule = "block_sparse_moe.experts";
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kMixtrals{
    {{"gate_proj", "w1"}, {"up_proj", "w3"}, {"down_proj", "w2"}}};

void replace_first(std::string& in, std::string_view old, std::string_view now) {
  if (const size_t at = in.find(old); at != in.npos) in.replace(at, old.size(), now);
}

// Where the last name is this one. True if it is.
bool replace_last_name(std::string& in, std::string_view old, std::string_view now) {
  if (!ends_in(in, std::string(old))) return false;
  in.replace(in.size() - old.size(), old.size(), now);
  return true;
}

// peft's 0.18 and before took a stack [E, out, in] for one of [E, in, out].
bool is_turned(const std::string& version) {
  int major = 0, minor = 0;
  const char* const end = version.data() + version.size();
  const auto [dot, error] = std::from_chars(version.data(), end, major);
  if (error != std::errc() || dot == end) return false;
  std::from_chars(dot + 1, end, minor);
  return major == 0 && minor < 19;
}

}  // namespace

std::optional<ExpertPath> expert_path(const std::string& path) {
  const size_t at = path.find(kExperts);
  if (at == std::string::npos) return std::nullopt;
  ExpertPath out{.module = path.substr(0, at + kExperts.size() - 1), .expert = -1, .name = {}};
  const char *first = path.data() + at + kExperts.size(), *last = path.data() + path.size();
  const auto [end, error] = std::from_chars(first, last, out.expert);
  if (error != std::errc() || end == last || *end != '.') return std::nullopt;
  out.name.assign(end + 1, last);
  return out;
}

void to_mixtrals_name(std::string& path) {
  replace_first(path, kModule, kMixtralsModule);
  for (const auto& [ours, theirs] : kMixtrals)
    if (replace_last_name(path, ours, theirs)) return;
}

void from_mixtrals_name(std::string& path) {
  replace_first(path, kMixtralsModule, kModule);
  for (const auto& [ours, theirs] : kMixtrals)
    if (replace_last_name(path, theirs, ours)) return;
}

std::vector<size_t> match_parameters(const PeftConfig& config,
                                     std::span<const LinearShape> linears) {
  std::vector<size_t> out;
  std::set<std::string> known;
  std::vector<bool> used(config.target_parameters.size(), false);
  for (size_t i = 0; i < linears.size() && !used.empty(); ++i) {
    const auto path = expert_path(linears[i].path);
    if (!path || (path->name != kGateUp && path->name != kDown)) continue;
    known.insert("mlp.experts." + path->name);
    bool hit = false;
    for (size_t t = 0; t < used.size(); ++t) {
      const std::string& target = config.target_parameters[t];
      if (ends_in(path->parameter(), target) || other_path(path->parameter()) == target)
        used[t] = hit = true;
    }
    if (hit) out.push_back(i);
  }
  for (size_t t = 0; t < used.size(); ++t) {
    std::string listed;
    for (const std::string& name : known) listed += (listed.empty() ? "" : ", ") + name;
    require(used[t], Code::kInvalid, "lora: target parameter '", config.target_parameters[t],
            "' matches nothing",
            listed.empty() ? ", this model has no experts" : "; there is: ", listed,
            "; a router is not adapted: leave it out");
  }
  return out;
}

bool shares_b(const ExpertPath& path) { return path.name == kDown; }

std::vector<StackedPair> tinkers_pairs(std::span<const LinearShape> linears) {
  std::map<std::string, std::vector<size_t>> modules;
  for (size_t i = 0; i < linears.size(); ++i) {
    const auto path = expert_path(linears[i].path);
    if (!path) continue;
    for (const auto& [name, theirs] : kTinkers)
      if (path->name == name) modules[path->module + theirs].push_back(i);
  }
  std::vector<StackedPair> out;
  for (auto& [module, its] : modules) out.push_back({module, std::move(its)});
  return out;
}

void check_tinkers(std::span<const int64_t> a, std::span<const int64_t> b,
                   const StackLayout& layout, bool shared, const std::string& what) {
  const LinearShape& expert = layout.expert;
  const int64_t count = layout.num_experts;
  const bool of_b = shares_b(*expert_path(expert.path));
  const std::vector<int64_t> want_a{shared && !of_b ? 1 : count, layout.rank, expert.inputs},
      want_b{shared && of_b ? 1 : count, expert.outputs, layout.rank};
  require(std::ranges::equal(a, want_a) && std::ranges::equal(b, want_b), Code::kInvalid,
          "lora: ", what, " has lora_A ", shape_text(a), " and lora_B ", shape_text(b),
          ", this model's ", count, " experts, which ", shared ? "" : "do not ",
          "share factors, have ", shape_text(want_a), " and ", shape_text(want_b),
          ": is it of another base model?");
}

std::vector<size_t> holders(const PeftConfig& config, std::span<const std::string> paths) {
  const size_t num = kinds_of(config).size();
  std::vector<size_t> out(num * paths.size());
  std::iota(out.begin(), out.end(), size_t{0});
  if (!config.share_expert_factors) return out;
  std::map<std::string, size_t> first;  // by stack
  for (size_t i = 0; i < paths.size(); ++i) {
    const auto path = expert_path(paths[i]);
    if (!path) continue;
    const size_t shared = num * i + (shares_b(*path) ? 1 : 0);
    out[shared] = first.try_emplace(path->parameter(), shared).first->second;
  }
  return out;
}

std::vector<StackedPair> stacked_pairs(std::span<const LinearShape> linears,
                                       std::span<const size_t> matched) {
  std::map<std::string, std::vector<size_t>> parameters;
  for (const size_t i : matched) parameters[expert_path(linears[i].path)->parameter()].push_back(i);
  std::vector<StackedPair> out;
  for (auto& [parameter, its] : parameters) {
    const ExpertPath path = *expert_path(linears[its[0]].path);
    const bool inner = path.name == kGateUp && parameters.contains(path.module + "." + kDown);
    out.push_back({path.module + (inner ? ".base_layer" : ""), std::move(its)});
  }
  return out;
}

void check_stack(std::span<const int64_t> a, std::span<const int64_t> b, const StackLayout& layout,
                 const std::string& what) {
  const LinearShape& expert = layout.expert;
  const int64_t count = layout.num_experts, rows = count * layout.rank;
  const auto fit = [&](const std::array<int64_t, 2>& a, const std::array<int64_t, 2>& b) {
    return a[0] == rows && b[1] == rows &&
           ((a[1] == expert.inputs && b[0] == expert.outputs) ||
            (a[1] == expert.outputs && b[0] == expert.inputs));
  };
  const bool flat = a.size() == 2 && b.size() == 2;
  require(flat && fit({a[0], a[1]}, {b[0], b[1]}), Code::kInvalid, "lora: ", what, " has lora_A ",
          shape_text(a), " and lora_B ", shape_text(b), ", written by peft ",
          layout.peft_version.empty() ? "of an unknown version" : layout.peft_version,
          "; this model's ", count, " experts have [", rows, ", ", expert.inputs, "] and [",
          expert.outputs, ", ", rows, "], before peft 0.19 [", rows, ", ", expert.outputs,
          "] and [", expert.inputs, ", ", rows, "]",
          remedy_of(flat && fit({a[1], a[0]}, {b[1], b[0]})));
}

std::optional<bool> turned_by_shape(std::span<const int64_t> a, const LinearShape& expert) {
  if (expert.inputs == expert.outputs) return std::nullopt;
  return a[1] != expert.inputs;
}

std::vector<Pair> split_pair(const Pair& all, const StackLayout& layout) {
  const LinearShape& expert = layout.expert;
  const int64_t in = all.a.size(1), out = all.b.size(0);
  // A stack [E, in, out] is what it was taken for, by peft 0.19 and later since its module says so:
  // that of transformers 5.
  const bool by_version = !expert.turned && is_turned(layout.peft_version);
  const bool turned =
      turned_by_shape(all.a.sizes(), expert).value_or(layout.turned_round.value_or(by_version));
  const at::Tensor a = all.a.view({layout.num_experts, layout.rank, in});
  const at::Tensor b = all.b.view({out, layout.rank, layout.num_experts});
  std::vector<Pair> pairs;
  for (int64_t e = 0; e < layout.num_experts; ++e) {
    Pair pair{a.select(0, e), b.select(2, e)};
    if (turned) pair = {pair.b.t(), pair.a.t()};
    pairs.push_back({pair.a.contiguous(), pair.b.contiguous()});
  }
  return pairs;
}

Pair joined_pair(std::span<const Pair> experts) {
  std::vector<at::Tensor> a, b;
  for (const Pair& pair : experts) a.push_back(pair.a), b.push_back(pair.b);
  return {at::cat(a), at::stack(b, 2).flatten(1)};
}

}  // namespace twinkle::lora
