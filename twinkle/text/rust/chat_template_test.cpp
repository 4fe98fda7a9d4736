#include "twinkle/text/rust/chat_template.h"

#include <gtest/gtest.h>

#include "twinkle/base/parallel.h"
#include "twinkle/text/tiny_model_test.h"

namespace twinkle::text {
namespace {

Conversation hello(const std::string& content = "hi") {
  const Json message{{"role", "user"}, {"content", content}};
  return {.messages = JsonArray{message}, .tools = nullptr, .variables = {}};
}

std::string render(const std::string& source, const std::string& content = "hi") {
  return ChatTemplate(source).render(hello(content));
}

TEST(ChatTemplate, TrimsBlocksAsTransformersDoes) {
  EXPECT_EQ(render("{% for m in messages %}\n  {% if true %}\n{{ m.content }}\n  {% endif %}\n"
                   "{% endfor %}\nend\n"),
            "hi\nend");
}

TEST(ChatTemplate, HasPythonsMethodsAndLoopControls) {
  EXPECT_EQ(render("{{ messages[0].content.strip().upper().split('I') | length }}", " hi\x1f "),
            "2");
  EXPECT_EQ(render("{{ 'abc'.removeprefix('a') }}{{ 'abc'.removesuffix('c') }}"
                   "{{ 'a=b=c'.partition('=')[2] }}{{ 'x'.partition('=')[0] }}"),
            "bcabb=cx");
  EXPECT_EQ(render("{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}"
                   "{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}"),
            "013");
  EXPECT_EQ(render("{{ 'a' is sequence }} {{ {} is iterable }} {{ none }} {{ nothing }}|"),
            "True True None |");
  EXPECT_EQ(render("{{ ' \x1c x\n' | trim }}|"), "x|");
  EXPECT_EQ(render("{{ strftime_now('%Y') | length }}"), "4");
}

TEST(ChatTemplate, WritesJsonAsPythonDoes) {
  EXPECT_EQ(render("{{ {'b': [1, 2.0, 1e16, none, true], 'a': 'ü<&>\"\\n'} | tojson }}"),
            R"({"b": [1, 2.0, 1e+16, null, true], "a": "ü<&>\"\n"})");
  EXPECT_EQ(render("{{ {'b': [], 'a': [1]} | tojson(indent=2, sort_keys=true) }}"),
            "{\n  \"a\": [\n    1\n  ],\n  \"b\": []\n}");
  EXPECT_EQ(render("{{ ['é🙂'] | tojson(ensure_ascii=true, separators=(',', ':')) }}"),
            R"(["\u00e9\ud83d\ude42"])");
}

TEST(ChatTemplate, SaysWhereGenerationBlocksAndMessagesStand) {
  const ChatTemplate chat(
      "{% for m in messages %}<{% generation %}{{ m.content }}{% endgeneration %}>{% endfor %}");
  EXPECT_TRUE(chat.has_generation(false));
  const Conversation two{
      .messages = parse_json(R"([{"content": "é"}, {"content": "xyz"}])", "test"),
      .tools = nullptr,
      .variables = {}};
  const std::vector<RenderRequest> requests{
      {}, {.blocks = true}, {.turns = true}, {.num_messages = 1}};
  const auto renderings = chat.render(two, requests);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(renderings[i].text, "<é><xyz>");
  EXPECT_TRUE(renderings[0].generated.empty());
  EXPECT_EQ(renderings[1].generated, (std::vector<Span>{{1, 3}, {5, 8}}));
  EXPECT_EQ(renderings[2].turns, (std::vector<std::optional<Span>>{Span{0, 4}, Span{4, 9}}));
  EXPECT_EQ(renderings[3].text, "<é>");
}

TEST(ChatTemplate, ReadsLineEndsOfItsSourceAsJinja2Does) {
  EXPECT_EQ(render("{% for m in messages %}\r\n{{ m.content }}\r\n{% endfor %}\r\n", "a\r\nb"),
            "a\r\nb\n");
  EXPECT_EQ(render("{{ 'a\r\nb\rc' }}{{ '\\r\\n' }}\rend\r\n"), "a\nb\nc\r\n\nend");
}

TEST(ChatTemplate, IteratesOverTextsAndNotOverNone) {
  EXPECT_EQ(render("{{ none is iterable }} {{ 'a' is iterable }} {{ nothing is iterable }}"),
            "False True True");
  EXPECT_EQ(error_of([] { render("{% for tool in tools %}{{ tool }}{% endfor %}"); }),
            "text: the chat template failed: none is not iterable (line 1 of the template)");
  EXPECT_EQ(render("{% for x in nothing %}{{ x }}{% endfor %}{{ '{\n' | indent(2, first=true) }}|"),
            "  {\n|");
}

TEST(ChatTemplate, TakesThePresentTimeThatItIsGiven) {
  Conversation conversation = hello();
  conversation.now = 86400 * 366;
  EXPECT_EQ(ChatTemplate("{% macro date() %}{{ strftime_now('%Y') }}{% endmacro %}{{ date() }}")
                .render(conversation),
            "1971");
}

TEST(ChatTemplate, IsFoundWhereModelsKeepIt) {
  const TinyModel model("config {{ messages[0].content }}");
  const auto render = [&](const Conversation& conversation) {
    return ChatTemplate::of_directory(model.directory()).render(conversation);
  };
  EXPECT_EQ(render(hello()), "config hi");
  model.write("chat_template.jinja", "file {{ messages[0].content }}");
  EXPECT_EQ(render(hello()), "file hi");
  model.remove("chat_template.jinja");
  model.write("tokenizer_config.json", R"({"chat_template": [
      {"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]})");
  Conversation with_tools = hello();
  EXPECT_EQ(render(with_tools), "plain");
  with_tools.tools = JsonArray{JsonObject{{"type", "function"}}};
  EXPECT_EQ(render(with_tools), "tools");
}

TEST(ChatTemplate, KnowsWhetherContentMayBeAListOfParts) {
  EXPECT_FALSE(ChatTemplate(kTinyChat).takes_parts());
  EXPECT_FALSE(ChatTemplate("{{ messages[0].content }}").takes_parts());
  EXPECT_TRUE(
      ChatTemplate("{% for p in messages[0].content %}{{ p.text }}{% endfor %}").takes_parts());
}

TEST(ChatTemplate, ThatNeverEndsOrFillsTheMemoryIsAnError) {
  EXPECT_EQ(error_of([] {
              render(
                  "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor "
                  "%}");
            }),
            "text: the chat template failed: it takes too many steps: does it loop "
            "forever? (line 1 of the template)");
  EXPECT_EQ(
      error_of([] { render("{% set ns = namespace() %}\n{% set ns.x = ns %}{{ ns }}"); }),
      "text: the chat template failed: a namespace holds a namespace (line 2 of the template)");
  EXPECT_EQ(error_of([] { render("{{ 'a\nb' | indent(9999999999) }}"); })
                .find("text: the chat template failed: it makes a text of 19999999998 bytes, the "
                      "limit is 4194"),
            0u);
}

TEST(ChatTemplate, IsInterruptedByWhoWaits) {
  const ChatTemplate endless(
      "{% if messages[0].content == 'go' %}{% for a in range(99999) %}{% for b in range(99999) %}"
      "{% endfor %}{% endfor %}{% endif %}");
  const Interrupt interrupt([] { return true; });
  EXPECT_THROW(endless.render(hello("go")), Interrupted);
}

TEST(ChatTemplate, KnowsWhetherACallsArgumentsMayBeText) {
  const auto takes = [](const std::string& written) {
    return ChatTemplate("{% for m in messages %}{% for c in m.tool_calls %}" + written +
                        "{% endfor %}{% endfor %}")
        .takes_argument_text();
  };
  EXPECT_TRUE(takes("{{ c.type + c.function.arguments }}"));
  EXPECT_TRUE(takes("{% if m.content is none %}{{ c.function.arguments }}{% endif %}"));
  EXPECT_TRUE(takes("{% if m.content is not none %}{{ c.function.arguments }}{% endif %}"));
  // As of functionary-medium 3.2.
  EXPECT_TRUE(takes("{{ bos_token + c.function.arguments + eos_token }}{{ tools | length }}"));
  EXPECT_FALSE(takes("{{ c.function.arguments | tojson }}"));
  EXPECT_FALSE(takes("{{ raise_exception('no tools') }}"));
  EXPECT_FALSE(ChatTemplate(kTinyChat).takes_argument_text());
}

TEST(ChatTemplate, KnowsWhatStandsForAMissingContentBesideACall) {
  const auto absent = [](const std::string& message) {
    return ChatTemplate("{% for m in messages %}" + message + "{% endfor %}").absent_content();
  };
  const std::string or_content = " %}{{ m.tool_calls }}{% else %}{{ '' + m.content }}{% endif %}";
  EXPECT_EQ(absent("{% if m.content is none" + or_content), Json(nullptr));
  EXPECT_EQ(absent("{% if not m.content" + or_content), std::nullopt);
  EXPECT_EQ(absent("{{ '' + m.content }}{{ m.tool_calls }}"), Json(""));
  EXPECT_EQ(absent("{{ '' + m.content }}"), std::nullopt);
}

TEST(ChatTemplate, ReportsWhatTheTemplateRaised) {
  const Conversation silent{.messages = parse_json(R"([{"role": "assistant"}])", "test")};
  EXPECT_EQ(error_of([&] { ChatTemplate(kTinyChat).render(silent); }).substr(0, 78),
            "text: the chat template failed (a message of role assistant has no content): t");
  EXPECT_EQ(error_of([] { render("\n{{ raise_exception('roles must alternate') }}"); }),
            "text: the chat template failed: roles must alternate (line 2 of the template)");
  EXPECT_EQ(error_of([] { render("{{ [1] | tojson(5, wrong=1) }}"); }).substr(0, 32),
            "text: the chat template failed: ");
}

TEST(ChatTemplate, RefusesWhatIsNoTemplate) {
  EXPECT_EQ(error_of([] { ChatTemplate("{% if %}"); }).substr(0, 31),
            "text: chat template 'default': ");
  const TinyModel model("");
  EXPECT_EQ(error_of([&] { ChatTemplate::of_directory(model.directory()); }),
            "text: " + model.directory().string() +
                " has no chat template (chat_template.jinja, or 'chat_template' in "
                "tokenizer_config.json); add one, or take texts as they are: 'twinkle sample' with "
                "--plain, use_chat_template=False in Python");
  model.write("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_EQ(error_of([&] { ChatTemplate::of_directory(model.directory()); }),
            "text: field 'chat_template' of " +
                (model.directory() / "tokenizer_config.json").string() +
                " is neither a string nor a list of {name, template}");
  model.write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": ""}]})");
  EXPECT_EQ(error_of([&] { ChatTemplate::of_directory(model.directory()); }),
            "text: none of the chat templates is named 'default'");
}

}  // namespace
}  // namespace twinkle::text
