#include "twinkle/cli/options/yaml.h"

#include <yaml.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/fields/options.h"
#include "twinkle/base/file.h"
#include "twinkle/base/json.h"

namespace twinkle::cli {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 20;

struct Entry {
  std::string key;
  std::vector<std::string> values;  // none: null
  size_t line;
  bool is_list = false;
  bool is_missing = false;  // nothing is there, not even null
};

std::string at(const std::string& file, size_t line) {
  return "cli: " + file + ":" + std::to_string(line) + ": ";
}

// libyaml's events of one file, in turn.
class Events {
 public:
  Events(const std::string& text, std::string file) : file_(std::move(file)) {
    require(yaml_parser_initialize(&parser_) == 1, Code::kInternal, "cli: no memory for YAML");
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()),
                                 text.size());
    next();
  }
  ~Events() {
    yaml_event_delete(&event_);
    yaml_parser_delete(&parser_);
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  void next() {
    yaml_event_delete(&event_);
    if (yaml_parser_parse(&parser_, &event_) == 1) return;
    const size_t line = parser_.problem_mark.line;
    event_ = {};
    refuse(line + 1, std::string("this is no YAML: ") + parser_.problem);
  }
  yaml_event_type_t type() const { return event_.type; }
  size_t line() const { return event_.start_mark.line + 1; }
  bool take(yaml_event_type_t type) {
    const bool is = event_.type == type;
    if (is) next();
    return is;
  }
  // The scalar, and whether it is null.
  std::pair<std::string, bool> scalar(const std::string& what, const std::string& must) {
    if (type() == YAML_MAPPING_START_EVENT)
      refuse(line(), what + " must be " + must +
                         ": all keys stand at the beginning of a line, "
                         "in no section");
    if (type() != YAML_SCALAR_EVENT) refuse(line(), what + " must be " + must);
    const auto& s = event_.data.scalar;
    std::string text(reinterpret_cast<const char*>(s.value), s.length);
    const bool null = s.style == YAML_PLAIN_SCALAR_STYLE &&
                      (text.empty() || text == "~" || text == "null" || text == "Null");
    next();
    return {std::move(text), null};
  }
  [[noreturn]] void refuse(size_t line, const std::string& what) const {
    fail(Code::kInvalid, at(file_, line), what);
  }

 private:
  const std::string file_;
  yaml_parser_t parser_{};
  yaml_event_t event_{};
};

std::vector<Entry> entries_of(const std::string& text, const std::string& file) {
  Events events(text, file);
  std::vector<Entry> out;
  events.take(YAML_STREAM_START_EVENT);
  if (!events.take(YAML_DOCUMENT_START_EVENT)) return out;
  if (!events.take(YAML_MAPPING_START_EVENT))
    events.refuse(events.line(), "this must be lines of `key: value`");
  while (!events.take(YAML_MAPPING_END_EVENT)) {
    const size_t line = events.line();
    Entry entry{
        .key = events.scalar("a key", "one word or text").first, .values = {}, .line = line};
    entry.is_list = events.take(YAML_SEQUENCE_START_EVENT);
    while (!entry.is_list || !events.take(YAML_SEQUENCE_END_EVENT)) {
      auto [value, is_null] =
          events.scalar("the value of '" + entry.key + "'", "one word or text, or a list of those");
      entry.is_missing = is_null && value.empty();
      if (entry.is_list || !is_null) entry.values.push_back(std::move(value));
      if (!entry.is_list) break;
    }
    entry.is_missing |= entry.is_list && entry.values.empty();
    out.push_back(std::move(entry));
  }
  events.take(YAML_DOCUMENT_END_EVENT);
  if (!events.take(YAML_STREAM_END_EVENT) && events.type() == YAML_DOCUMENT_START_EVENT)
    events.refuse(events.line(), "a second document begins, one is read");
  return out;
}

std::string yaml_key(const CLI::Option& option) {
  std::string key = option.get_lnames().empty() ? "" : option.get_lnames()[0];
  std::ranges::replace(key, '-', '_');
  return option.get_configurable() && key != "help" ? key : "";
}

// By any of its names, but --no-x; it prints with the first.
bool is_named(const CLI::Option& option, const std::string& key) {
  return std::ranges::any_of(option.get_lnames(), [&](std::string name) {
    if (option.check_fname(name)) return false;
    std::ranges::replace(name, '-', '_');
    return name == key;
  });
}

std::vector<CLI::Option*> options_in(CLI::App& command) {
  auto all = command.get_options();
  std::erase_if(all, [](const CLI::Option* option) { return yaml_key(*option).empty(); });
  return all;
}

[[noreturn]] void refuse_key(CLI::App& command, const std::string& key, const std::string& where) {
  std::vector<std::string> names;
  for (const CLI::Option* option : options_in(command))
    if (!option->get_group().empty()) names.push_back(yaml_key(*option));
  refuse_name(key, names, where, "key of `twinkle " + command.get_name() + "`");
}

// An error about an option, in terms of the key that the file has for it.
std::string of_key(std::string text, const CLI::Option& option, const std::string& key) {
  for (const std::string& name : option.get_lnames()) {
    const std::string flag = "--" + name;
    for (size_t at = 0; (at = text.find(flag, at)) != std::string::npos; at += key.size())
      text.replace(at, flag.size(), key);
  }
  const std::string before = key + ": ";  // as CLI11 puts it before what a flag's own check says
  return text.starts_with(before + key) ? text.substr(before.size()) : text;
}

bool takes_list(const CLI::Option& option) { return option.get_items_expected_max() > 1; }

bool is_flag(const CLI::Option& option) { return option.get_items_expected_max() == 0; }

std::string as_scalar(const std::string& text) {
  const bool is_plain = !text.empty() && text.find_first_not_of(
                                             "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                             "0123456789_-./+") == std::string::npos;
  const bool is_word = text != "null" && text != "Null" && text[0] != '-';
  return is_plain && is_word ? text : boost::json::serialize(Json(text));
}

}  // namespace

void read_yaml(CLI::App& command, const std::filesystem::path& file) {
  const std::string name = file.string();
  std::set<std::string> seen;
  for (Entry& entry : entries_of(read_file(file, "cli", kMaxBytes), name)) {
    std::ranges::replace(entry.key, '-', '_');
    const std::string where = at(name, entry.line);
    const auto all = options_in(command);
    const auto found = std::ranges::find_if(
        all, [&](const CLI::Option* option) { return is_named(*option, entry.key); });
    if (found == all.end()) refuse_key(command, entry.key, where);
    require(seen.insert(entry.key).second, Code::kInvalid, where, "'", entry.key,
            "' is there twice");
    require(!entry.is_missing, Code::kInvalid, where, "'", entry.key,
            "' has no value; write one, or null for what is taken without it");
    require(!entry.is_list || takes_list(**found), Code::kInvalid, where, "'", entry.key,
            "' is a list, it takes one value: write that without brackets");
    if (entry.values.empty() || (*found)->count() > 0) continue;
    try {
      (*found)->add_result(entry.values);
      (*found)->run_callback();
    } catch (const CLI::Error& e) {  // CLI11's tells no file
      fail(Code::kInvalid, where, of_key(e.what(), **found, entry.key));
    }
  }
}

std::string as_yaml(const CLI::App& command, const std::set<const CLI::Option*>& unsaid) {
  std::string out;
  for (const CLI::Option* option : command.get_options()) {
    const std::string key = yaml_key(*option);
    if (key.empty() || option->get_group().empty()) continue;
    std::string value;
    if (is_flag(*option)) {
      const bool is_on = option->count() > 0 ? option->results().back() == "true"
                                             : option->get_default_str() == "true";
      value = is_on ? "true" : "false";
    } else if (takes_list(*option)) {
      for (const std::string& item : option->results())
        value += (value.empty() ? "" : ", ") + as_scalar(item);
      value = "[" + value + "]";
    } else {
      value = as_scalar(option->count() > 0 ? option->results().back() : option->get_default_str());
    }
    const bool is_said = !unsaid.contains(option) && value != "[]";
    out +=
        "# " + option->get_description() + "\n" + (is_said ? "" : "# ") + key + ": " + value + "\n";
  }
  return out;
}

}  // namespace twinkle::cli
