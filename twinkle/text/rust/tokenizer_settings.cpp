#include "twinkle/text/rust/tokenizer_settings.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/base/file.h"

namespace twinkle::text {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};
constexpr const char* kExtra = "extra_special_tokens";
constexpr const char* kAdditional = "additional_special_tokens";  // its older name

JsonObject object_in(const fs::path& file) {
  if (!is_there(file)) return {};
  Json value = read_json(file);
  require(value.is_object(), Code::kInvalid, "text: ", file.string(),
          " holds no JSON object, it must hold one");
  return std::move(value.get_object());
}

// A token stands as its text or as an object with its `content`.
const Json* content_of(const Json& token) {
  const Json* text = token.is_object() ? find(token, "content") : &token;
  return text && text->is_string() ? text : nullptr;
}

bool is_standard(std::string_view name) {
  return std::ranges::find(kNames, name) != std::end(kNames);
}

bool holds_any(const Json* value) {
  return value && ((value->is_array() && !value->get_array().empty()) ||
                   (value->is_object() && !value->get_object().empty()));
}

JsonObject added_token(const Json& text, const Json& fields, bool special) {
  const auto flag = [&](std::string_view name, bool otherwise) {
    return fields.is_object() ? get_or<bool>(fields, name, otherwise) : otherwise;
  };
  return {{"content", text},
          {"single_word", flag("single_word", false)},
          {"lstrip", flag("lstrip", false)},
          {"rstrip", flag("rstrip", false)},
          {"normalized", flag("normalized", !special)},
          {"special", special}};
}

// The steps of transformers' from_pretrained and of the class's constructor, in their order.
class Reader {
 public:
  explicit Reader(const fs::path& directory)
      : directory_(directory), config_(object_in(directory / "tokenizer_config.json")) {}

  TokenizerSettings read() {
    refuse_unread();
    const bool is_old = !config_.contains("added_tokens_decoder");
    take_extra();
    take_named_of_model();
    if (is_old) take_map();
    take_names();
    take_list();
    TokenizerSettings out;
    add_decoder(out.added, is_old);
    for (const auto& [name, token] : named_) {
      out.special_tokens[name] = *content_of(token);
      add(out.added, token, true);
    }
    for (const Json& token : list_) add(out.added, token, true);
    take_applied(out.applied);
    return out;
  }

 private:
  [[noreturn]] void refuse(std::string_view key, const Json& value, const char* must) const {
    fail(Code::kInvalid, "text: field '", key, "' of ",
         (directory_ / "tokenizer_config.json").string(), " is ",
         boost::json::serialize(value).substr(0, 80), ", ", must);
  }

  void refuse_unread() const {
    for (const char* key : {"split_special_tokens", "fix_mistral_regex"})
      if (const Json* value = config_.if_contains(key); value && *value == true)
        refuse(key, *value, "this version takes only false");
  }

  void take_extra() {
    if (const Json* older = config_.if_contains(kAdditional);
        older && !holds_any(config_.if_contains(kExtra))) {
      Json list = *older;
      config_.erase(kAdditional);
      config_[kExtra] = std::move(list);
    }
  }

  // Tokens with names of this model's own: image_token, or those of an object.
  void take_named_of_model() {
    std::vector<std::string> taken;
    for (const auto& [key, value] : config_)
      if (key.ends_with("_token") && !is_standard(key) && value.is_string()) {
        own_[key] = value;
        taken.emplace_back(key);
      }
    for (const std::string& key : taken) config_.erase(key);
    take_object();
    if (!own_.empty()) return;
    if (const Json* saved = config_.if_contains("model_specific_special_tokens");
        saved && saved->is_object())
      own_ = saved->get_object();
  }

  void take_object() {
    const Json* extra = config_.if_contains(kExtra);
    if (!extra || !extra->is_object()) return;
    for (const auto& [name, token] : extra->get_object()) {
      if (!content_of(token)) refuse(kExtra, *extra, "each of its values must be a token");
      own_[name] = token;
    }
    config_.erase(kExtra);
  }

  // Older versions wrote these into a file of their own.
  void take_map() {
    for (auto& [key, value] : object_in(directory_ / "special_tokens_map.json")) {
      const Json* earlier = config_.if_contains(key);
      if (key == kExtra && value.is_array() && earlier && earlier->is_array()) {
        JsonArray all = earlier->get_array();
        for (const Json& token : value.get_array())
          if (std::ranges::find(all, token) == all.end()) all.push_back(token);
        config_[key] = std::move(all);
      } else {
        config_[key] = value;
      }
    }
    take_object();
  }

  void take_names() {
    for (const std::string_view name : kNames)
      if (const Json* token = config_.if_contains(name); token && content_of(*token))
        named_.emplace_back(name, *token);
    std::vector<std::pair<std::string, Json>> of_model;
    for (const auto& [key, value] : config_)
      if (key.ends_with("_token") && !is_standard(key) && content_of(value))
        of_model.emplace_back(key, value);
    for (const auto& [key, value] : own_) {
      if (!content_of(value)) continue;
      const auto same =
          std::ranges::find(of_model, std::string(key), &decltype(of_model)::value_type::first);
      if (same != of_model.end())
        same->second = value;
      else
        of_model.emplace_back(key, value);
    }
    named_.insert(named_.end(), of_model.begin(), of_model.end());
  }

  void take_list() {
    const Json* list = config_.if_contains(kExtra);
    if (!list) list = config_.if_contains(kAdditional);
    if (!list || list->is_null()) return;
    if (!list->is_array())
      refuse(kExtra, *list, "it must be a list of tokens, or an object of them");
    for (const Json& token : list->get_array()) {
      if (!content_of(token)) refuse(kExtra, *list, "each of its values must be a token");
      list_.push_back(token);
    }
  }

  bool is_special(const Json& text) const {
    const auto is_it = [&text](const Json& token) { return *content_of(token) == text; };
    return std::ranges::any_of(list_, is_it) ||
           std::ranges::any_of(named_, [&](const auto& one) { return is_it(one.second); });
  }

  void add_decoder(JsonArray& out, bool is_old) const {
    std::map<int64_t, std::pair<Json, bool>> by_id;  // token, special
    if (is_old) {
      for (const auto& [text, id] : object_in(directory_ / "added_tokens.json"))
        if (id.is_int64()) by_id[id.get_int64()] = {Json(text), is_special(Json(text))};
    } else if (const Json& decoder = config_.at("added_tokens_decoder"); decoder.is_object()) {
      for (const auto& [id, token] : decoder.get_object())
        if (content_of(token))
          by_id[std::strtoll(std::string(id).c_str(), nullptr, 10)] = {
              token, token.is_object() && get_or(token, "special", false)};
    }
    for (const auto& [id, token] : by_id) {
      const size_t before = out.size();
      add(out, token.first, token.second);
      if (out.size() == before) continue;
      if (is_old)
        out.back().get_object()["file_id"] = id;
      else
        out.back().get_object()["has_flags"] = true;
    }
  }

  // Classes that make their own parts of these keys; others have tokenizer.json's.
  void take_applied(JsonObject& out) const {
    static const std::set<std::string_view> kByteLevel = {
        "CodeGenTokenizer", "CohereTokenizer",  "GPT2Tokenizer",   "GPTNeoXTokenizer",
        "Qwen2Tokenizer",   "Qwen3_5Tokenizer", "RobertaTokenizer"};
    static const std::set<std::string_view> kBert = {"BertTokenizer", "DistilBertTokenizer"};
    const Json* name = config_.if_contains("tokenizer_class");
    if (!name || !name->is_string()) return;
    std::string_view base = name->get_string();
    if (base.ends_with("Fast")) base.remove_suffix(4);
    const auto take = [&](const char* key, const std::set<std::string_view>& classes) {
      const Json* value = config_.if_contains(key);
      if (value && value->is_bool() && classes.contains(base)) out[key] = *value;
    };
    take("add_prefix_space", kByteLevel);
    take("do_lower_case", kBert);
  }

  static void add(JsonArray& out, const Json& token, bool special) {
    const Json& text = *content_of(token);
    const bool known =
        std::ranges::any_of(out, [&](const Json& item) { return item.at("content") == text; });
    if (!known) out.push_back(added_token(text, token, special));
  }

  const fs::path directory_;
  JsonObject config_;
  JsonObject own_;                                   // named by this model only
  std::vector<std::pair<std::string, Json>> named_;  // in the order of their ids
  std::vector<Json> list_;                           // without names
};

}  // namespace

TokenizerSettings tokenizer_settings(const fs::path& directory) { return Reader(directory).read(); }

}  // namespace twinkle::text
