#include "twinkle/lora/peft/new_adapter.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/base/fields/options.h"
#include "twinkle/io/peft/peft.h"

namespace twinkle::lora {
namespace {

constexpr int64_t kRank = 8;  // peft's default
constexpr int64_t kMostRank = std::numeric_limits<int32_t>::max();
constexpr int64_t kMostRankOfPattern = 4096;
constexpr int64_t kMostLabels = 65536;

bool is_within(const Json& value, int64_t least, int64_t most) {
  return value.is_int64() && value.get_int64() >= least && value.get_int64() <= most;
}

bool is_unset(const Json& value) {
  return value.is_null() || value == Json(false) || value == Json(JsonObject{});
}

bool is_alpha(const Json& value) {
  return value.is_number() && std::isfinite(value.to_number<double>()) &&
         value.to_number<double>() > 0;
}

bool is_share(const Json& value) {
  return value.is_number() && value.to_number<double>() >= 0 && value.to_number<double>() < 1;
}

bool is_text(const Json& value) { return value.is_string() && !value.get_string().empty(); }

bool is_names(const Json& value) {
  return value.is_array() && std::ranges::all_of(value.get_array(), is_text);
}

bool is_modules(const Json& value) {
  return value.is_null() || value.is_string() || is_names(value);
}

bool is_targets(const Json& value) {
  return value.is_null() || is_text(value) || (is_names(value) && !value.get_array().empty());
}

bool is_layers(const Json& value) {
  const auto is_layer = [](const Json& v) { return is_within(v, 0, kMostRank); };
  return value.is_null() || is_layer(value) ||
         (value.is_array() && std::ranges::all_of(value.get_array(), is_layer));
}

template <class Fits>
bool is_pattern(const Json& value, const Fits& fits) {
  return value.is_object() && std::ranges::all_of(value.get_object(), [&](const auto& pattern) {
           return fits(pattern.value());
         });
}

bool is_start(const Json& value) {
  if (!value.is_string()) return value == Json(true);
  std::string_view name = value.get_string();
  if (name == "gaussian" || name == "pissa") return true;
  constexpr std::string_view kSteps = "pissa_niter_";
  if (!name.starts_with(kSteps)) return false;
  name.remove_prefix(kSteps.size());
  return !name.empty() && name.size() < 10 &&
         name.find_first_not_of("0123456789") == std::string_view::npos;
}

struct Rule {
  std::string_view field;
  bool (*allows)(const Json& value);
  const char* must;
};

constexpr Rule kRules[] = {
    {"r", [](const Json& v) { return is_within(v, 1, kMostRank); },
     "an integer of at least 1, and below 2**31"},
    {"lora_alpha", is_alpha, "a number above 0 and finite"},
    {"lora_dropout", is_share, "a number of at least 0 and below 1"},
    {"target_modules", is_targets, "\"all-linear\", a list of names or a regular expression"},
    {"target_parameters", [](const Json& v) { return v.is_null() || is_names(v); },
     "a list of names"},
    {"exclude_modules", is_modules, "a list of names or a regular expression"},
    {"layers_pattern", is_modules, "a name or a list of names"},
    {"layers_to_transform", is_layers, "the number of a layer, from 0, or a list of such"},
    {"rank_pattern",
     [](const Json& value) {
       return is_pattern(value, [](const Json& v) { return is_within(v, 1, kMostRankOfPattern); });
     },
     "a dict of regular expressions and integers from 1 to 4096"},
    {"alpha_pattern", [](const Json& v) { return is_pattern(v, is_alpha); },
     "a dict of regular expressions and numbers above 0"},
    {"init_lora_weights", is_start,
     "true, \"gaussian\", \"pissa\" or \"pissa_niter_\" and a number"},
    {"use_rslora", [](const Json& v) { return v.is_bool(); }, "true or false"},
    {"use_dora", [](const Json& v) { return v.is_bool(); }, "true or false"},
    {"share_expert_factors", [](const Json& v) { return v.is_bool(); }, "true or false"},
    {"base_model_name_or_path", [](const Json& v) { return v.is_null() || v.is_string(); },
     "a text"},
    {"bias", [](const Json& v) { return v == "none"; }, "\"none\": biases are not adapted"},
    // These say nothing of a finished adapter's file.
    {"corda_config", is_unset, "null: this version has no such start"},
    {"eva_config", is_unset, "null: this version has no such start"},
    {"ensure_weight_tying", is_unset, "false: embeddings are not adapted"}};

[[noreturn]] void refuse_field(std::string_view field, const Json& value, std::string_view must) {
  const std::string shown = value.is_double() ? told(value) : boost::json::serialize(value);
  fail(Code::kInvalid, "lora: ", field, " is ", shown.substr(0, 80), ", it must be ", must);
}

// `rank` is the longer name of r.
void name_rank(JsonObject& fields) {
  const Json* rank = fields.if_contains("rank");
  const Json wanted = rank ? *rank : Json(kRank);
  const Json& r = fields.emplace("r", wanted).first->value();
  require(!rank || r == wanted, Code::kInvalid, "lora: r is ", boost::json::serialize(r),
          " and rank is ", boost::json::serialize(wanted),
          ", two names of one number: leave one of them out");
  fields.erase("rank");
}

void put_in_form(JsonObject& fields) {
  name_rank(fields);
  for (const char* name : {"rank_pattern", "alpha_pattern"})
    if (Json* pattern = fields.if_contains(name); pattern && pattern->is_null())
      *pattern = JsonObject{};
  Json* targets = fields.if_contains("target_modules");
  if (!targets || !targets->is_array()) return;
  const JsonArray& names = targets->get_array();
  const Json* parameters = fields.if_contains("target_parameters");
  if (names.empty() && parameters && is_names(*parameters) && !parameters->get_array().empty())
    *targets = nullptr;  // as peft's help has it
  else if (names == JsonArray{"all-linear"})
    *targets = "all-linear";
}

// The number of labels of the head, which only an adapter of sequences has.
void check_labels(const JsonObject& fields, bool is_of_sequences) {
  const Json* given = fields.if_contains("num_labels");
  const Json labels = given ? *given : Json();
  if (is_of_sequences ? is_within(labels, 1, kMostLabels) : labels.is_null()) return;
  refuse_field("num_labels", labels,
               is_of_sequences
                   ? "1 for rewards, or the number of classes, at most 65536, with task_type "
                     "\"SEQ_CLS\"; of peft's config set the attribute num_labels"
                   : "null: only task_type \"SEQ_CLS\" has a head of labels");
}

}  // namespace

JsonObject new_adapter_fields(JsonObject given) {
  put_in_form(given);
  for (const auto& [field, allows, must] : kRules)
    if (const Json* value = given.if_contains(field); value && !allows(*value))
      refuse_field(field, *value, must);
  const Json* task = given.if_contains("task_type");
  const bool is_of_sequences = task && *task == "SEQ_CLS";
  check_labels(given, is_of_sequences);
  // The rest is as of a finished adapter, for which another task_type is a note.
  Json read(given);
  JsonObject& all = read.get_object();
  if (!find(read, "peft_type")) all["peft_type"] = "LORA";
  if (!find(read, "target_modules")) all["target_modules"] = JsonArray{"q_proj", "v_proj"};
  if (!is_of_sequences) all["task_type"] = nullptr;
  peft_config(read, "LoraConfig");
  if (is_of_sequences) given["modules_to_save"] = JsonArray{"score"};
  return given;
}

}  // namespace twinkle::lora
