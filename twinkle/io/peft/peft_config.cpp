#include <boost/algorithm/string/predicate.hpp>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/io/peft/peft.h"

namespace twinkle {
namespace {

// Fields that say nothing about the arithmetic of a finished adapter, or are read below.
constexpr std::array<std::string_view, 29> kKnown = {"alpha_pattern",
                                                     "auto_mapping",
                                                     "base_model_name_or_path",
                                                     "bias",
                                                     "corda_config",
                                                     "ensure_weight_tying",
                                                     "eva_config",
                                                     "exclude_modules",
                                                     "inference_mode",
                                                     "init_lora_weights",
                                                     "layers_pattern",
                                                     "layers_to_transform",
                                                     "lora_alpha",
                                                     "lora_dropout",
                                                     "megatron_core",
                                                     "modules_to_save",
                                                     "num_labels",
                                                     "peft_type",
                                                     "peft_version",
                                                     "qalora_group_size",
                                                     "r",
                                                     "rank_pattern",
                                                     "revision",
                                                     "share_expert_factors",
                                                     "target_modules",
                                                     "target_parameters",
                                                     "task_type",
                                                     "use_dora",
                                                     "use_rslora"};

// The values that peft writes for a feature that is not used.
bool is_off(const Json& value) {
  return value.is_null() || value == Json(false) ||
         (value.is_object() && value.get_object().empty()) ||
         (value.is_array() && value.get_array().empty());
}

void refuse_unless(bool ok, const Json& object, std::string_view key, std::string_view allowed,
                   const std::string& what) {
  if (ok) return;
  const Json* value = find(object, key);
  fail(Code::kInvalid, "io: ", what, ": field '", key, "' is ",
       value ? boost::json::serialize(*value) : "null", ", it must be ", allowed);
}

bool is_one_of(const Json* value, std::initializer_list<Json> allowed) {
  return value == nullptr || std::find(allowed.begin(), allowed.end(), *value) != allowed.end();
}

void refuse_other_features(const Json& object, const std::string& what) {
  for (const auto& [key, value] : object.get_object()) {
    const std::string_view name(key.data(), key.size());
    if (std::find(kKnown.begin(), kKnown.end(), name) != kKnown.end()) continue;
    require(is_off(value), Code::kInvalid, "io: ", what, ": field '", name, "' is ",
            boost::json::serialize(value), ", a feature of peft that Twinkle does not support");
  }
  const Json* bias = find(object, "bias");
  refuse_unless(is_one_of(bias, {"none"}), object, "bias", "\"none\"", what);
  const Json* task = find(object, "task_type");
  refuse_unless(is_one_of(task, {"CAUSAL_LM", "SEQ_CLS"}), object, "task_type",
                "\"CAUSAL_LM\", \"SEQ_CLS\" or null", what);
  const Json* start = find(object, "init_lora_weights");
  const bool pissa = start != nullptr && start->is_string() &&
                     (*start == "pissa" || start->get_string().starts_with("pissa_niter_"));
  // The other ways to start take a part of the base's weights away.
  refuse_unless(
      pissa || is_one_of(start, {true, false, "gaussian", "orthogonal", "eva"}), object,
      "init_lora_weights",
      "true, false, \"gaussian\", \"pissa\", \"pissa_niter_N\", \"orthogonal\" or \"eva\"", what);
}

std::string init_of(const Json& object) {
  const Json* start = find(object, "init_lora_weights");
  if (start == nullptr || *start == Json(true)) return "";
  return start->is_string() ? std::string(start->get_string()) : "false";
}

// The names of a list, or the only one; none where there is nothing.
std::vector<std::string> names_of(const Json& object, std::string_view key,
                                  const std::string& what) {
  const Json* value = find(object, key);
  if (value == nullptr || is_off(*value) || *value == Json("")) return {};
  if (value->is_string()) return {std::string(value->get_string())};
  const auto is_name = [](const Json& item) { return item.is_string(); };
  refuse_unless(value->is_array() && std::ranges::all_of(value->get_array(), is_name), object, key,
                "a list of names, or a text", what);
  std::vector<std::string> names;
  for (const Json& item : value->get_array()) names.emplace_back(item.get_string());
  return names;
}

std::vector<int64_t> layers_of(const Json& object, const std::string& what) {
  constexpr const char* kKey = "layers_to_transform";
  const Json* value = find(object, kKey);
  if (value == nullptr || value->is_null()) return {};
  const JsonArray numbers = value->is_array() ? value->get_array() : JsonArray{*value};
  std::vector<int64_t> out;
  for (const Json& number : numbers) {
    refuse_unless(number.is_int64() && number.get_int64() >= 0, object, kKey,
                  "a number of a layer, from 0, or a list of such", what);
    out.push_back(number.get_int64());
  }
  return out;
}

void read_filters(const Json& object, PeftConfig& config, const std::string& what) {
  config.layers_to_transform = layers_of(object, what);
  config.layers_pattern = names_of(object, "layers_pattern", what);
  const Json* excluded = find(object, "exclude_modules");
  std::vector<std::string> names = names_of(object, "exclude_modules", what);
  if (excluded != nullptr && excluded->is_string() && !names.empty())
    config.exclude_modules = names[0];
  else
    config.exclude_modules = std::move(names);
  refuse_unless(config.layers_to_transform.empty() ||
                    std::holds_alternative<std::vector<std::string>>(config.target_modules),
                object, "layers_to_transform",
                "null where target_modules is a text, as in peft: list names in target_modules",
                what);
  refuse_unless(config.layers_pattern.empty() || !config.layers_to_transform.empty(), object,
                "layers_pattern", "null without layers_to_transform, which it belongs to", what);
}

// Labels of the head beside the factors. peft saves transformers' "score" with task_type SEQ_CLS,
// and would save a "classifier", which the families here do not have.
int64_t labels_of(const Json& object, const std::string& what) {
  const Json* task = find(object, "task_type");
  const bool is_of_sequences = task != nullptr && *task == "SEQ_CLS";
  const Json* modules = find(object, "modules_to_save");
  const auto is_head = [](const Json& name) { return name == "score" || name == "classifier"; };
  const bool is_only_head = is_of_sequences && modules != nullptr && modules->is_array() &&
                            std::ranges::all_of(modules->get_array(), is_head);
  require(modules == nullptr || is_off(*modules) || is_only_head, Code::kInvalid, "io: ", what,
          ": field 'modules_to_save' is ", modules ? boost::json::serialize(*modules) : "",
          ", a feature of peft that Twinkle does not support",
          is_of_sequences ? " but for [\"score\"]" : ", but for the head of task_type \"SEQ_CLS\"");
  constexpr int64_t kMostLabels = 65536;
  const Json* count = find(object, "num_labels");
  if (count == nullptr) return is_of_sequences ? kLabelsOfFile : 0;
  refuse_unless(
      is_of_sequences && count->is_int64() && count->get_int64() >= 1 &&
          count->get_int64() <= kMostLabels,
      object, "num_labels",
      is_of_sequences ? "an integer from 1 to 65536" : "null without task_type \"SEQ_CLS\"", what);
  return count->get_int64();
}

std::variant<std::vector<std::string>, std::string> targets_of(const Json& object,
                                                               const std::string& what) {
  const Json* value = find(object, "target_modules");
  const Json* parameters = find(object, "target_parameters");
  if (parameters != nullptr && !is_off(*parameters) && (value == nullptr || is_off(*value)))
    return {};
  if (value != nullptr && value->is_string()) {
    constexpr const char* kAll = "all-linear";
    const std::string text(value->get_string());
    return boost::algorithm::iequals(text, kAll) ? kAll : text;  // as peft has it
  }
  std::vector<std::string> names;
  const bool list = value != nullptr && value->is_array() && !value->get_array().empty() &&
                    std::all_of(value->get_array().begin(), value->get_array().end(),
                                [](const Json& item) { return item.is_string(); });
  refuse_unless(list, object, "target_modules", "a list of names, or a text", what);
  for (const Json& item : value->get_array()) names.emplace_back(item.get_string());
  return names;
}

std::vector<std::string> parameters_of(const Json& object, const PeftConfig& config,
                                       const std::string& what) {
  std::vector<std::string> names;
  const Json* value = find(object, "target_parameters");
  if (value == nullptr || is_off(*value)) return names;
  refuse_unless(
      value->is_array() && std::ranges::all_of(value->get_array(),
                                               [](const Json& name) { return name.is_string(); }),
      object, "target_parameters", "a list of names", what);
  for (const Json& name : value->get_array()) names.emplace_back(name.get_string());
  refuse_unless(config.dropout == 0, object, "lora_dropout", "0 with target_parameters, as in peft",
                what);
  return names;
}

// Such an adapter changes a tied embedding, too.
void refuse_tying(const Json& object, const PeftConfig& config, const std::string& what) {
  const auto* names = std::get_if<std::vector<std::string>>(&config.target_modules);
  const bool off_head = names ? std::ranges::find(*names, "lm_head") == names->end()
                              : std::get<std::string>(config.target_modules) == "all-linear";
  refuse_unless(off_head || is_one_of(find(object, "ensure_weight_tying"), {false, nullptr}),
                object, "ensure_weight_tying",
                "false where target_modules may reach lm_head: embeddings are not adapted", what);
}

double number_or(const Json& object, std::string_view key, double fallback,
                 const std::string& what) {
  const Json* value = find(object, key);
  if (value == nullptr) return fallback;
  refuse_unless(value->is_number(), object, key, "a number", what);
  return value->to_number<double>();
}

// The pairs of an object whose values `fits` accepts.
template <class T, class Fits>
std::vector<std::pair<std::string, T>> pattern_of(const Json& object, std::string_view key,
                                                  const char* allowed, const std::string& what,
                                                  const Fits& fits) {
  std::vector<std::pair<std::string, T>> out;
  const Json* value = find(object, key);
  if (value == nullptr) return out;
  refuse_unless(value->is_object(), object, key, allowed, what);
  for (const auto& [name, number] : value->get_object()) {
    refuse_unless(fits(number), object, key, allowed, what);
    out.emplace_back(std::string(name), number.template to_number<T>());
  }
  return out;
}

Json json_of_names(const std::variant<std::vector<std::string>, std::string>& names) {
  if (const auto* list = std::get_if<std::vector<std::string>>(&names))
    return JsonArray(list->begin(), list->end());
  return Json(std::get<std::string>(names));
}

template <class T>
Json json_of_pattern(const std::vector<std::pair<std::string, T>>& pattern) {
  JsonObject out;
  for (const auto& [name, number] : pattern) out.emplace(name, number);  // the first counts
  return out;
}

}  // namespace

bool PeftConfig::has_filters() const {
  const auto* names = std::get_if<std::vector<std::string>>(&exclude_modules);
  return !layers_to_transform.empty() || names == nullptr || !names->empty();
}

void PeftConfig::clear_filters() {
  layers_to_transform.clear();
  layers_pattern.clear();
  exclude_modules = {};
}

PeftConfig peft_config(const Json& object, const std::string& what) {
  require(object.is_object(), Code::kInvalid, "io: ", what, " must be a JSON object");
  const Json* type = find(object, "peft_type");
  refuse_unless(type != nullptr && *type == "LORA", object, "peft_type", "\"LORA\"", what);
  refuse_other_features(object, what);
  PeftConfig config;
  const Json* rank = find(object, "r");
  refuse_unless(rank != nullptr && rank->is_int64() && rank->get_int64() >= 1, object, "r",
                "an integer of at least 1", what);
  config.rank = rank->get_int64();
  config.alpha = number_or(object, "lora_alpha", config.alpha, what);
  config.dropout = number_or(object, "lora_dropout", config.dropout, what);
  refuse_unless(config.dropout >= 0 && config.dropout < 1, object, "lora_dropout",
                "from 0 to below 1", what);
  const Json* rslora = find(object, "use_rslora");
  refuse_unless(is_one_of(rslora, {true, false}), object, "use_rslora", "true or false", what);
  config.use_rslora = rslora != nullptr && rslora->get_bool();
  config.target_modules = targets_of(object, what);
  config.target_parameters = parameters_of(object, config, what);
  config.init = init_of(object);
  const Json* dora = find(object, "use_dora");
  refuse_unless(is_one_of(dora, {true, false, nullptr}), object, "use_dora", "true or false", what);
  config.use_dora = dora != nullptr && *dora == Json(true);
  refuse_unless(!config.use_dora || config.target_parameters.empty(), object, "use_dora",
                "false with target_parameters, as in peft", what);
  read_filters(object, config, what);
  config.rank_pattern = pattern_of<int64_t>(
      object, "rank_pattern", "an object of integers of at least 1", what,
      [](const Json& rank) { return rank.is_int64() && rank.get_int64() >= 1; });
  config.alpha_pattern = pattern_of<double>(object, "alpha_pattern", "an object of numbers", what,
                                            [](const Json& alpha) { return alpha.is_number(); });
  refuse_tying(object, config, what);
  const Json* shares = find(object, "share_expert_factors");
  refuse_unless(is_one_of(shares, {true, false, nullptr}), object, "share_expert_factors",
                "true or false", what);
  config.share_expert_factors = shares != nullptr && shares->is_bool() && shares->get_bool();
  refuse_unless(!config.share_expert_factors || config.target_parameters.empty(), object,
                "share_expert_factors",
                "false with target_parameters: name gate_proj, up_proj and down_proj as modules",
                what);
  config.num_labels = labels_of(object, what);
  const Json* base = find(object, "base_model_name_or_path");
  if (base != nullptr && base->is_string()) config.base_model = base->get_string();
  return config;
}

Json json_of(const PeftConfig& config) {
  JsonObject out{
      {"base_model_name_or_path", config.base_model.empty() ? Json() : Json(config.base_model)},
      {"bias", "none"},
      {"fan_in_fan_out", false},
      {"inference_mode", true},
      {"init_lora_weights", config.init.empty() ? Json(true) : Json(config.init)},
      {"lora_alpha", config.alpha == static_cast<double>(static_cast<int64_t>(config.alpha))
                         ? Json(static_cast<int64_t>(config.alpha))
                         : Json(config.alpha)},
      {"lora_dropout", config.dropout},
      {"modules_to_save", config.num_labels == 0 ? Json() : Json(JsonArray{"score"})},
      {"peft_type", "LORA"},
      {"r", config.rank},
      {"target_modules", json_of_names(config.target_modules)},
      {"task_type", Json(config.num_labels == 0 ? "CAUSAL_LM" : "SEQ_CLS")},
      {"use_dora", config.use_dora},
      {"use_rslora", config.use_rslora}};
  if (!config.target_parameters.empty())
    out["target_parameters"] =
        JsonArray(config.target_parameters.begin(), config.target_parameters.end());
  if (!config.rank_pattern.empty()) out["rank_pattern"] = json_of_pattern(config.rank_pattern);
  if (!config.alpha_pattern.empty()) out["alpha_pattern"] = json_of_pattern(config.alpha_pattern);
  if (config.share_expert_factors) out["share_expert_factors"] = true;
  if (!config.layers_to_transform.empty())
    out["layers_to_transform"] =
        JsonArray(config.layers_to_transform.begin(), config.layers_to_transform.end());
  if (!config.layers_pattern.empty())
    out["layers_pattern"] = JsonArray(config.layers_pattern.begin(), config.layers_pattern.end());
  const Json excluded = json_of_names(config.exclude_modules);
  if (!is_off(excluded)) out["exclude_modules"] = excluded;
  if (config.num_labels > 0) out["num_labels"] = config.num_labels;
  return out;
}

}  // namespace twinkle
