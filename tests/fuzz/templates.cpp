// Chat templates, which come with a model and run on every conversation.
#include <algorithm>
#include <array>

#include "tests/fuzz/fuzz.h"
#include "twinkle/text/rust/chat_template.h"

namespace twinkle::fuzz {
namespace {

void read_templates(const std::string& bytes) {
  static const text::Conversation said{
      .messages = parse_json(R"([{"role": "system", "content": "Be brief."},
  {"role": "user", "content": "héllo x"}, {"role": "assistant", "content": "", "tool_calls":
  [{"type": "function", "id": "1", "function": {"name": "f", "arguments": {"a": [1, 2.5]}}}]},
  {"role": "tool", "content": "{}"}, {"role": "assistant", "content": "<think>a</think>b"}])",
                             "messages"),
      .tools = parse_json(R"([{"type": "function", "function": {"name": "f", "parameters":
  {"type": "object", "properties": {"a": {"type": "array"}}}}}])",
                          "tools"),
      .variables = {{"bos_token", "<s>"}, {"enable_thinking", true}}};
  const text::ChatTemplate chat(bytes);
  const std::vector<text::RenderRequest> requests{
      {.add_generation_prompt = true}, {.blocks = true}, {.turns = true}};
  chat.render(said, requests);
}

constexpr size_t kMaxSource = size_t{1} << 20;  // bytes of a template, no more are looked at

// Nested `times` deep, or as deep as a template may be long.
std::string repeated(const std::string& before, const std::string& one, const std::string& after,
                     size_t times) {
  times = std::min(times, (kMaxSource - before.size() - after.size()) / one.size());
  std::string out = before;
  for (size_t i = 0; i < times; ++i) out += one;
  return out + after;
}

std::string grown(const std::string& body) {
  return "{% set ns = namespace(x=[1], y='ab') %}{% for i in range(9999) %}{% set ns.x = " + body +
         " %}{% endfor %}{{ ns.x }}";
}

// Lists 100,000 deep, and what is done with them.
std::string nested(const std::string& use) {
  return "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] "
         "%}{% set ns.y = [ns.y] %}{% endfor %}" +
         use;
}

std::vector<std::string> templates_corpus() {
  std::vector<std::string> out = {
      "{% for m in messages %}<s>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation "
      "%}{{ m.content }}{% endgeneration %}{% else %}{{ m['content'] | trim }}{% endif %}"
      "</s>{% endfor %}{% if add_generation_prompt %}<s>assistant\n{% endif %}",
      "{%- macro f(x, y=2) -%}{{ x|tojson(indent=y) }}{%- endmacro -%}{% set ns = "
      "namespace(a=1, b=[]) %}{% for m in messages[::-1] %}{% set ns.a = ns.a + loop.index0 "
      "%}{{ f(m) }}{{ loop.last }}{% endfor %}{{ ns.a }}{{ strftime_now('%d %b %Y') }}{{ "
      "tools|default([])|length }}{{ messages|selectattr('role', 'equalto', 'user')|list|"
      "length }}{{ 'a,b'.split(',')|join('-')|upper }}{{ messages[0].items()|list|length }}",
      "{% for m in messages recursive %}{% if m is mapping %}{{ loop(m.values()|list) }}"
      "{% else %}{{ m }}{% endif %}{% endfor %}{{ '{:>9}'.format('x') }}{{ 'x'|indent(4) }}",
      "{% set ns=namespace() %}{% set ns.x=ns %}{{ ns }}",
      grown("[ns.x]"),
      grown("ns.x ~ ns.x"),
      grown("ns.x + ns.x"),
      grown("{'a': ns.x, 'b': ns.x}"),
      grown("ns.y.replace('', ns.y)"),
      grown("[ns.x[0:0]]"),
      nested("{{ ns.x }}"),
      nested("{{ ns.x|tojson }}"),
      nested("{{ ns.x == ns.y }}"),
      "{% macro a(n) %}{% if n>0 %}{{ a(n-1) }}{{ a(n-1) }}{% endif %}{% endmacro %}{{ a(9) }}"};
  const std::vector<std::array<std::string, 3>> chains = {{"{{ ", "not ", "1 }}"},
                                                          {"{{ ", "-", "1 }}"},
                                                          {"{{ 1", "~1", " }}"},
                                                          {"{{ 1", "+1", " }}"},
                                                          {"{{ 1", "|e", " }}"},
                                                          {"{{ a", ".a", " }}"},
                                                          {"{{ a", "[0]", " }}"},
                                                          {"{{ a", "()", " }}"},
                                                          {"{{ ", "1 if 1 else ", "1 }}"},
                                                          {"{%if 0%}", "{%elif 0%}", "{%endif%}"},
                                                          {"{{ ", "(", "1 }}"}};
  for (const auto& [before, one, after] : chains) {
    for (const size_t times : {400, 100'000}) out.push_back(repeated(before, one, after, times));
  }
  return out;
}

}  // namespace

Reader templates() {
  return {.name = "templates",
          .corpus = templates_corpus(),
          .words = {"{{",
                    "}}",
                    "{%",
                    "%}",
                    "{%-",
                    "-%}",
                    "{#",
                    "#}",
                    " for ",
                    " in ",
                    " recursive",
                    "messages",
                    "loop(",
                    "range(9999)",
                    "[0:0]",
                    "~",
                    "|tojson",
                    "|list",
                    "|batch(9)",
                    "|join(",
                    ".replace('',",
                    ".items()",
                    ".keys()",
                    "|map('",
                    "|string",
                    " * 99999",
                    "|indent(99)",
                    "9999999999",
                    "namespace(",
                    "{% set ns.x = ",
                    "not ",
                    "(((((",
                    "[[[[[",
                    "\xef\xb7\x90",
                    "{% generation %}",
                    "{% endgeneration %}",
                    "{% break %}",
                    "loop.previtem",
                    "self.a()",
                    "caller()"},
          .read = read_templates};
}

}  // namespace twinkle::fuzz
