#include "twinkle/cli/export/modelfile.h"

#include <optional>
#include <string_view>
#include <utility>

namespace twinkle::cli {
namespace {

// Contents that no template has, to find them again.
constexpr const char *kSystem = "TWINKLESYSTEM", *kFirst = "TWINKLEFIRST", *kReply = "TWINKLEREPLY",
                     *kSecond = "TWINKLESECOND";

// Text before and after a message's content.
struct Around {
  std::string before, after;

  std::string with(const char* content) const { return before + content + after; }
};

struct Turns {
  Around system, user, assistant;
  std::string default_system, generation;  // the latter begins a reply
};

std::string rendered(const text::Template& tmpl,
                     std::initializer_list<std::pair<const char*, const char*>> messages,
                     bool generation = false) {
  JsonArray all;
  for (const auto& [role, content] : messages)
    all.push_back(JsonObject{{"role", role}, {"content", content}});
  return tmpl.render(JsonObject{{"messages", std::move(all)}}, generation);
}

// Cuts the text at each of the contents, in their order; one piece more than those. Fewer: one is
// missing.
std::vector<std::string> cut(const std::string& text, std::initializer_list<const char*> contents) {
  std::vector<std::string> out;
  size_t begin = 0;
  for (const std::string_view content : contents) {
    const size_t at = text.find(content, begin);
    if (at == text.npos) return {};
    out.push_back(text.substr(begin, at - begin));
    begin = at + content.size();
  }
  out.push_back(text.substr(begin));
  return out;
}

// Takes `part` off the beginning, or the end.
bool take_front(std::string& text, const std::string& part) {
  if (!text.starts_with(part)) return false;
  text.erase(0, part.size());
  return true;
}
bool take_back(std::string& text, const std::string& part) {
  if (!text.ends_with(part)) return false;
  text.erase(text.size() - part.size());
  return true;
}

std::optional<Turns> turns_of(const text::Template& tmpl) {
  const std::pair user{"user", kFirst}, reply{"assistant", kReply}, second{"user", kSecond};
  auto all = cut(rendered(tmpl, {user, reply, second}), {kFirst, kReply, kSecond});
  auto ended = cut(rendered(tmpl, {user, reply}), {kFirst, kReply});
  auto with_system = cut(rendered(tmpl, {{"system", kSystem}, user}), {kSystem, kFirst});
  if (all.empty() || ended.empty() || with_system.empty()) return {};
  Turns out;
  out.user.after = all[3];
  out.assistant = {all[1], ended[2]};
  out.user.before = all[2];
  std::string head = all[0];
  out.system = {with_system[0], with_system[1]};
  out.generation = rendered(tmpl, {user}, true);
  const bool fits =
      take_front(out.assistant.before, out.user.after) &&
      take_front(out.user.before, out.assistant.after) && take_back(head, out.user.before) &&
      take_back(out.system.after, out.user.before) && with_system[2] == out.user.after &&
      take_front(out.generation, rendered(tmpl, {user}));
  if (!fits) return {};
  // The BOS token, which llama.cpp puts there.
  const auto bos = tmpl.tokenizer().special_tokens().find("bos_token");
  if (bos != tmpl.tokenizer().special_tokens().end() && tmpl.tokenizer().bos_id()) {
    const std::string text(bos->value().as_string());
    if (!out.user.before.starts_with(text) && take_front(head, text))
      take_front(out.system.before, text);
  }
  if (head.empty()) return out;
  if (!take_front(head, out.system.before) || !take_back(head, out.system.after) || head.empty())
    return {};
  out.default_system = head;
  return out;
}

bool is_plain(const std::string& text) {
  return text.find("{{") == text.npos && text.find("\"\"\"") == text.npos;
}

std::string template_of(const Turns& turns) {
  constexpr const char* kContent = "{{ .Content }}";
  return "TEMPLATE \"\"\"{{- range .Messages }}{{ if eq .Role \"system\" }}" +
         turns.system.with(kContent) + "{{ else if eq .Role \"user\" }}" +
         turns.user.with(kContent) + "{{ else if eq .Role \"assistant\" }}" +
         turns.assistant.with(kContent) + "{{ end }}{{ end }}" + turns.generation + "\"\"\"\n";
}

}  // namespace

std::string modelfile(const std::string& gguf, const text::Template& tmpl,
                      const std::vector<std::string>& stops) {
  std::string out = "FROM ./" + gguf + "\n";
  const std::optional<Turns> turns = turns_of(tmpl);
  bool plain = turns.has_value();
  if (turns)
    for (const std::string& text :
         {turns->system.with(""), turns->user.with(""), turns->assistant.with(""),
          turns->default_system, turns->generation})
      plain = plain && is_plain(text);
  out += plain ? template_of(*turns)
               : "# The chat template is that of the GGUF file, where ollama knows it.\n";
  if (plain && !turns->default_system.empty())
    out += "SYSTEM \"\"\"" + turns->default_system + "\"\"\"\n";
  for (const std::string& stop : stops)
    if (is_plain(stop)) out += "PARAMETER stop \"" + stop + "\"\n";
  return out;
}

}  // namespace twinkle::cli
