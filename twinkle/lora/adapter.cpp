#include "twinkle/lora/adapter.h"

#include <ATen/ATen.h>

#include <cmath>
#include <regex>

#include "twinkle/base/error.h"
#include "twinkle/base/random.h"

namespace twinkle::lora {
namespace {

// Fields of adapter_config.json that change nothing, or that we read.
bool harmless(std::string_view key) {
  static constexpr std::string_view known[] = {"r",
                                               "lora_alpha",
                                               "lora_dropout",
                                               "use_rslora",
                                               "target_modules",
                                               "peft_type",
                                               "task_type",
                                               "inference_mode",
                                               "base_model_name_or_path",
                                               "revision",
                                               "auto_mapping",
                                               "peft_version",
                                               "runtime_config",
                                               "loftq_config",
                                               "megatron_config",
                                               "megatron_core",
                                               "exclude_modules",
                                               "qalora_group_size",
                                               "eva_config",
                                               "corda_config"};
  for (const auto k : known) {
    if (k == key) return true;
  }
  return false;
}

// PEFT's defaults for everything else: false, null, "none", {}, [] and init_lora_weights = true.
bool is_default(std::string_view key, const Json& value) {
  if (key == "init_lora_weights") return value.is_bool() && value.get_bool();
  if (value.is_null() || value == "none") return true;
  if (value.is_bool()) return !value.get_bool();
  if (value.is_object()) return value.get_object().empty();
  if (value.is_array()) return value.get_array().empty();
  return false;
}

bool ends_with_target(const std::string& path, const std::string& target) {
  return path == target || (path.size() > target.size() && path.ends_with(target) &&
                            path[path.size() - target.size() - 1] == '.');
}

std::string endings(const std::vector<model::NamedLinear>& linears) {
  std::vector<std::string> seen;
  std::string text;
  for (const auto& linear : linears) {
    const std::string name = linear.path.substr(linear.path.rfind('.') + 1);
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) continue;
    seen.push_back(name);
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

}  // namespace

AdapterOptions AdapterOptions::parse(const Json& peft) {
  require(peft.is_object(), Code::kInvalid,
          "lora: the adapter's configuration must be a JSON object");
  AdapterOptions o;
  o.rank = get_or<int64_t>(peft, "r", o.rank);
  o.alpha = get_or<double>(peft, "lora_alpha", o.alpha);
  o.dropout = get_or<double>(peft, "lora_dropout", 0.0);
  o.rslora = get_or(peft, "use_rslora", false);
  if (const Json* t = find(peft, "target_modules"); t && t->is_string()) {
    o.all_linear = *t == "all-linear";
    if (!o.all_linear) o.target_regex = std::string(t->get_string());
  } else if (t && t->is_array()) {
    o.all_linear = false;
    for (const Json& name : t->get_array()) {
      require(name.is_string(), Code::kInvalid, "lora: target_modules must hold strings");
      o.targets.emplace_back(name.get_string());
    }
  } else {
    require(!t, Code::kInvalid,
            "lora: target_modules must be a list of names, a regular expression or \"all-linear\"");
  }
  if (const Json* type = find(peft, "peft_type")) {
    require(*type == "LORA", Code::kInvalid, "lora: peft_type is ", boost::json::serialize(*type),
            ", only LORA is known");
  }
  for (const auto& [key, value] : peft.get_object()) {
    require(harmless(key) || is_default(key, value), Code::kInvalid, "lora: option '",
            std::string_view(key), "' = ", boost::json::serialize(value), " is not supported");
  }
  if (const Json* excluded = find(peft, "exclude_modules")) {
    require(is_default("exclude_modules", *excluded), Code::kInvalid,
            "lora: option 'exclude_modules' is not supported");
  }
  check(o);
  return o;
}

Json AdapterOptions::to_peft() const {
  JsonObject out;
  out["peft_type"] = "LORA";
  out["task_type"] = "CAUSAL_LM";
  out["r"] = rank;
  out["lora_alpha"] = alpha == std::floor(alpha) ? Json(static_cast<int64_t>(alpha)) : Json(alpha);
  out["lora_dropout"] = dropout;
  out["use_rslora"] = rslora;
  if (all_linear)
    out["target_modules"] = "all-linear";
  else if (!target_regex.empty())
    out["target_modules"] = target_regex;
  else
    out["target_modules"] = JsonArray(targets.begin(), targets.end());
  out["bias"] = "none";
  out["fan_in_fan_out"] = false;
  out["inference_mode"] = true;
  out["init_lora_weights"] = true;
  return out;
}

double AdapterOptions::scale() const {
  return rslora ? alpha / std::sqrt(static_cast<double>(rank)) : alpha / static_cast<double>(rank);
}

void check(const AdapterOptions& o) {
  require(o.rank >= 1, Code::kInvalid, "lora: rank is ", o.rank, ", it must be at least 1");
  require(o.rank <= 4096, Code::kInvalid, "lora: rank is ", o.rank, ", the limit is 4096");
  require(std::isfinite(o.alpha), Code::kInvalid, "lora: lora_alpha is ", o.alpha,
          ", it must be finite");
  require(o.dropout >= 0 && o.dropout < 1, Code::kInvalid, "lora: lora_dropout is ", o.dropout,
          ", it must be in [0, 1)");
  require(o.all_linear || !o.targets.empty() || !o.target_regex.empty(), Code::kInvalid,
          "lora: target_modules is empty; name modules or use \"all-linear\"");
}

std::vector<size_t> match_targets(const AdapterOptions& o,
                                  const std::vector<model::NamedLinear>& linears) {
  std::vector<size_t> out;
  std::vector<bool> used(o.targets.size(), false);
  std::optional<std::regex> pattern;
  if (!o.target_regex.empty()) {
    try {
      pattern.emplace(o.target_regex, std::regex::ECMAScript);
    } catch (const std::regex_error& e) {
      fail(Code::kInvalid, "lora: target_modules '", o.target_regex,
           "' is no regular expression: ", e.what());
    }
  }
  for (size_t i = 0; i < linears.size(); ++i) {
    const std::string& path = linears[i].path;
    bool hit = o.all_linear || (pattern && std::regex_match(path, *pattern));
    for (size_t t = 0; t < o.targets.size(); ++t) {
      if (!ends_with_target(path, o.targets[t])) continue;
      used[t] = hit = true;
    }
    if (hit) out.push_back(i);
  }
  for (size_t t = 0; t < used.size(); ++t) {
    require(used[t], Code::kInvalid, "lora: target module '", o.targets[t],
            "' matches nothing; there is: ", endings(linears));
  }
  require(!out.empty(), Code::kInvalid, "lora: target_modules '", o.target_regex,
          "' matches nothing; there is: ", endings(linears));
  return out;
}

Adapter::Adapter(const AdapterOptions& options, std::vector<model::NamedLinear> linears,
                 uint64_t seed)
    : options_(options), index_(linears.size(), -1) {
  check(options);
  for (const size_t i : match_targets(options, linears)) {
    const nn::Linear& linear = *linears[i].linear;
    const int64_t out = linear.weight.size(0), in = linear.weight.size(1), r = options.rank;
    const auto type = linear.weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    Factors entry{.path = linears[i].path};
    entry.f.a = at::empty({r, in}, at::kFloat);
    const uint64_t key = key_of(key_of(seed, "lora_A"), entry.path);
    const double bound = 1.0 / std::sqrt(static_cast<double>(in));
    float* a = entry.f.a.mutable_data_ptr<float>();
    for (int64_t k = 0; k < r * in; ++k) {
      a[k] = static_cast<float>(bound * (2 * uniform_at(key, static_cast<uint64_t>(k)) - 1));
    }
    entry.f.a = entry.f.a.to(type);
    entry.f.b = at::zeros({out, r}, type);
    entry.f.scale = options.scale();
    entry.grad_a = at::zeros_like(entry.f.a);
    entry.grad_b = at::zeros_like(entry.f.b);
    index_[i] = static_cast<int>(factors_.size());
    factors_.push_back(std::move(entry));
  }
  repack();
}

void Adapter::repack() {
  for (Factors& entry : factors_) entry.f.repack();
}

void Adapter::zero_grads() {
  for (Factors& entry : factors_) {
    entry.grad_a.zero_();
    entry.grad_b.zero_();
  }
}

int64_t Adapter::num_parameters() const {
  int64_t n = 0;
  for (const Factors& entry : factors_) n += entry.f.a.numel() + entry.f.b.numel();
  return n;
}

}  // namespace twinkle::lora
