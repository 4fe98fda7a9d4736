#include "twinkle/lora/peft/form.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <variant>

#include "twinkle/base/error.h"
#include "twinkle/lora/adapter.h"
#include "twinkle/lora/peft/names.h"
#include "twinkle/model/weights/tensors.h"

namespace twinkle::lora {
namespace {

constexpr const char* kWeight = ".weight";

// The linears that peft makes stacks of, wherever they are named.
bool is_taken_for_experts(const std::string& path) {
  const std::string name = last_name(path);
  return name == "gate_proj" || name == "up_proj" || name == "down_proj";
}

// The parameter that an expert's linear is of.
std::string stack_of(const ExpertPath& expert) {
  return expert.module + (expert.name == "down_proj" ? ".down_proj" : ".gate_up_proj");
}

bool has_own_form(const PeftConfig& config, std::span<const LinearShape> linears,
                  std::span<const size_t> matched) {
  if (std::holds_alternative<std::string>(config.target_modules)) return false;
  const std::vector<size_t> stacked = match_parameters(config, linears);
  const std::set<size_t> by_parameter(stacked.begin(), stacked.end());
  return std::ranges::none_of(matched, [&](size_t i) {
    const std::string& path = linears[i].path;
    return expert_path(path) ? !by_parameter.contains(i) : is_taken_for_experts(path);
  });
}

// The factors of an adapter of some config, by peft's names.
struct Target {
  std::string key;  // a module's path, or a parameter's
  int64_t rank;
  double alpha;
};

class Former {
 public:
  Former(const PeftConfig& config, std::span<const LinearShape> linears,
         std::span<const size_t> matched)
      : config_(config), linears_(linears), sizes_(config) {
    for (const LinearShape& linear : linears) {
      shapes_[linear.path] = &linear;
      in_turn_ = in_turn_ || linear.turned;
      if (const auto expert = expert_path(linear.path))
        num_experts_[expert->module] = std::max(num_experts_[expert->module], expert->expert + 1);
    }
    for (const size_t i : matched) add(i);
    for (auto& [parameter, stack] : stacks_) finish(parameter, stack);
  }

  PeftForm form() {
    PeftForm out{.config = config_, .is_own = false, .missing = missing_};
    if (!missing_.empty()) {
      out.is_own = true;
      return out;
    }
    for (auto& [parameter, stack] : stacks_) out.stacks.push_back(std::move(stack));
    name_targets(out.config);
    out.config.rank_pattern = patterns(&Target::rank, config_.rank);
    out.config.alpha_pattern = patterns(&Target::alpha, config_.alpha);
    return out;
  }

 private:
  void add(size_t index) {
    const std::string& path = linears_[index].path;
    const auto expert = expert_path(path);
    if (!expert) {
      const bool moves = is_taken_for_experts(path);
      (moves ? parameters_ : modules_).push_back(moves ? path + kWeight : path);
      targets_.push_back({moves ? path + kWeight : path, sizes_.rank(path), sizes_.alpha(path)});
      return;
    }
    std::vector<PeftStack::Part>& parts = stacks_[stack_of(*expert)].parts;
    auto part = std::ranges::find(parts, expert->name, &PeftStack::Part::name);
    if (part == parts.end()) {
      const auto count = static_cast<size_t>(num_experts_.at(expert->module));
      parts.push_back(
          {.name = expert->name, .rank = sizes_.rank(path), .scale = sizes_.scale(path)});
      part = parts.end() - 1;
      part->linears.resize(count);
      if (part->name == "gate_proj" && parts.size() == 2) {
        std::swap(parts[0], parts[1]);  // the gate's come first
        part = parts.begin();
      }
    }
    part->linears[static_cast<size_t>(expert->expert)] = index;
    if (part->rank != sizes_.rank(path) || part->scale != sizes_.scale(path))
      missing_ = expert->parameter() + " has experts of different ranks or scales";
  }

  void finish(const std::string& parameter, PeftStack& stack) {
    const size_t dot = parameter.rfind('.');
    const std::string module = parameter.substr(0, dot), name = parameter.substr(dot + 1);
    const bool inner = name == "gate_up_proj" && stacks_.contains(module + ".down_proj");
    stack.module = module + (inner ? ".base_layer" : "");
    stack.whole = *shapes_.at(module + ".0." + name);
    stack.in_turn = in_turn_;
    const PeftStack::Part& first = stack.parts[0];
    for (PeftStack::Part& part : stack.parts) {
      if (part.scale == first.scale) continue;
      part.factor = part.scale / first.scale;
      int exponent = 0;
      const bool exact = std::isfinite(part.factor) && std::frexp(part.factor, &exponent) == 0.5 &&
                         std::abs(exponent) <= 16;
      if (!exact)
        missing_ = parameter + " has a gate_proj of scale " + std::to_string(first.scale) +
                   " and an up_proj of " + std::to_string(part.scale);
    }
    const double share =
        static_cast<double>(stack.rank()) / static_cast<double>(stack.parts[0].rank);
    const std::string& some = linears_[*first_of(first)].path;
    const double alpha = config_.use_rslora
                             ? sizes_.alpha(some) * std::sqrt(share)
                             : sizes_.alpha(some) * static_cast<double>(stack.rank()) /
                                   static_cast<double>(first.rank);
    targets_.push_back({parameter, stack.rank(), alpha});
    parameters_.push_back(parameter);
  }

  static std::optional<size_t> first_of(const PeftStack::Part& part) {
    return *std::ranges::find_if(part.linears, [](const auto& i) { return i.has_value(); });
  }

  void name_targets(PeftConfig& config) const {
    const std::set<std::string> chosen_modules(modules_.begin(), modules_.end()),
        chosen_parameters(parameters_.begin(), parameters_.end());
    std::vector<std::string> modules, parameters;  // the others
    for (const LinearShape& linear : linears_) {
      const auto expert = expert_path(linear.path);
      if (!expert && !chosen_modules.contains(linear.path)) modules.push_back(linear.path);
      std::string parameter = expert ? stack_of(*expert) : linear.path + kWeight;
      if (!chosen_parameters.contains(parameter)) parameters.push_back(std::move(parameter));
    }
    config.target_modules = shortest_names(modules_, modules);
    config.clear_filters();
    config.target_parameters = shortest_names(parameters_, parameters, 3);
    if (!parameters_.empty()) config.dropout = 0;  // peft has none for parameters
  }

  // For those whose value is not that of the config.
  template <class T>
  std::vector<std::pair<std::string, T>> patterns(T Target::* value, T otherwise) const {
    std::map<T, std::vector<std::string>> of_value;
    for (const Target& target : targets_) of_value[target.*value].push_back(target.key);
    std::vector<std::pair<std::string, T>> out;
    for (const auto& [each, keys] : of_value) {
      if (each == otherwise) continue;
      std::vector<std::string> others;
      for (const Target& target : targets_)
        if (target.*value != each) others.push_back(target.key);
      for (std::string& name : shortest_names(keys, others))
        out.emplace_back(std::move(name), each);
    }
    return out;
  }

  const PeftConfig& config_;
  std::span<const LinearShape> linears_;
  const Sizes sizes_;
  std::map<std::string, const LinearShape*> shapes_;  // by path
  std::map<std::string, int64_t> num_experts_;        // by module
  bool in_turn_ = false;
  std::map<std::string, PeftStack> stacks_;  // by parameter
  std::vector<std::string> modules_, parameters_;
  std::vector<Target> targets_;
  std::string missing_;
};

// The rows of a stack's B [out, ...] that are those of a part.
at::Tensor rows_of(const at::Tensor& b, const PeftStack& stack, const std::string& part) {
  if (part != "gate_proj" && part != "up_proj") return b;
  const int64_t second = part == "up_proj" ? 1 : 0, half = b.size(0) / 2;
  return stack.in_turn ? b.slice(0, second, b.size(0), 2) : b.narrow(0, second * half, half);
}

TensorView view_that_owns(const at::Tensor& tensor) {
  const at::Tensor host = tensor.cpu();
  TensorView view = model::view_of("", host);
  view.owner = std::make_shared<at::Tensor>(host);
  return view;
}

}  // namespace

int64_t PeftStack::rank() const {
  int64_t out = 0;
  for (const Part& part : parts) out += part.rank;
  return out;
}

Pair PeftStack::joined(const std::vector<std::vector<Pair>>& pairs) const {
  at::TensorOptions options = at::kFloat;
  for (const auto& of_part : pairs)
    for (const Pair& pair : of_part)
      if (pair.a.defined()) options = pair.a.options();
  const at::Tensor a = at::zeros({num_experts(), rank(), whole.inputs}, options);
  const at::Tensor b = at::zeros({whole.outputs, rank(), num_experts()}, options);
  int64_t first = 0;
  for (size_t p = 0; p < parts.size(); first += parts[p++].rank) {
    const at::Tensor rows = rows_of(b, *this, parts[p].name);
    for (int64_t e = 0; e < num_experts(); ++e) {
      const Pair& pair = pairs[p][static_cast<size_t>(e)];
      if (!pair.a.defined()) continue;
      a.select(0, e).narrow(0, first, parts[p].rank).copy_(pair.a);
      rows.select(2, e).narrow(1, first, parts[p].rank).copy_(pair.b.mul(parts[p].factor));
    }
  }
  return {a.flatten(0, 1), b.flatten(1)};
}

std::vector<std::vector<Pair>> PeftStack::split(const Pair& all) const {
  const at::Tensor a = all.a.view({num_experts(), rank(), whole.inputs});
  const at::Tensor b = all.b.view({whole.outputs, rank(), num_experts()});
  std::vector<std::vector<Pair>> out;
  int64_t first = 0;
  for (const Part& part : parts) {
    const at::Tensor rows = rows_of(b, *this, part.name);
    std::vector<Pair>& pairs = out.emplace_back(static_cast<size_t>(num_experts()));
    for (int64_t e = 0; e < num_experts(); ++e) {
      if (!part.linears[static_cast<size_t>(e)]) continue;
      const at::Tensor own_b = rows.select(2, e).narrow(1, first, part.rank);
      pairs[static_cast<size_t>(e)] = {a.select(0, e).narrow(0, first, part.rank).clone(),
                                       own_b.div(part.factor).contiguous()};
    }
    first += part.rank;
  }
  const Pair again = joined(out);
  require(at::equal(again.a, all.a) && at::equal(again.b, all.b), Code::kInvalid, "lora: ", module,
          " has numbers where the adapter that was saved has none: its tensors were changed since; "
          "remove the metadata of adapter_model.safetensors, and it is read as peft reads it");
  return out;
}

PeftForm peft_form(const PeftConfig& config, std::span<const LinearShape> linears) {
  if (config.share_expert_factors || config.use_dora) return {.config = config};
  const std::vector<size_t> matched = match_targets(config, linears);
  if (has_own_form(config, linears, matched)) return {.config = config};
  return Former(config, linears, matched).form();
}

std::vector<PeftEntry> peft_entries(const Adapter& adapter, const PeftForm& form,
                                    std::span<const LinearShape> linears) {
  std::vector<PeftEntry> out;
  std::map<std::string, const Factors*> experts;
  for (const Factors& factors : adapter.factors()) {
    if (expert_path(factors.path))
      experts[factors.path] = &factors;
    else
      out.push_back(factors.entry());
  }
  for (const PeftStack& stack : form.stacks) {
    std::vector<std::vector<Pair>> pairs;
    for (const PeftStack::Part& part : stack.parts) {
      std::vector<Pair>& own = pairs.emplace_back();
      for (const auto& linear : part.linears) {
        Pair& pair = own.emplace_back();
        if (!linear) continue;
        const Factors& factors = *experts.at(linears[*linear].path);
        pair = {factors.f.a, factors.f.b};
      }
    }
    const Pair all = stack.joined(pairs);
    out.push_back({stack.module, view_that_owns(all.a), view_that_owns(all.b)});
  }
  return out;
}

}  // namespace twinkle::lora
