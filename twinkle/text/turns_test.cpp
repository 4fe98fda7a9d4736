#include "twinkle/text/turns.h"

#include <gtest/gtest.h>

#include "twinkle/text/tiny_model_test.h"

namespace twinkle::text {
namespace {

Json message(const std::string& role, const std::string& content) {
  return JsonObject{{"role", role}, {"content", content}};
}

Prepared prepared_of(const std::vector<std::string>& contents) {
  JsonArray messages;
  for (size_t i = 0; i < contents.size(); ++i)
    messages.push_back(message(i % 2 ? "assistant" : "user", contents[i]));
  return prepare(JsonObject{{"messages", messages}}, {});
}

Conversation said(const Prepared& prepared) {
  return {.messages = prepared.messages, .tools = nullptr, .variables = {}};
}

// The texts that render_turns takes as the assistant's.
std::vector<std::string> written_of(const std::string& source, const Prepared& prepared) {
  Conversation conversation = said(prepared);
  conversation.tools = prepared.tools;
  const Turns turns = render_turns(ChatTemplate(source), conversation, prepared);
  std::vector<std::string> out;
  for (const Span& s : turns.written) out.push_back(turns.text.substr(s.begin, s.end - s.begin));
  return out;
}

std::vector<std::string> written(const std::string& source,
                                 const std::vector<std::string>& contents) {
  return written_of(source, prepared_of(contents));
}

std::string not_found_in(size_t message, const std::string& because = "") {
  return "text: the text that the assistant wrote in messages[" + std::to_string(message) +
         "] cannot be found: " +
         (because.empty() ? "the chat template renders the conversation up to it differently than "
                            "within the whole; put {% generation %} tags around the assistant's "
                            "text"
                          : because);
}

// The rule of prefix differences on tokens, as it is stated: it tokenises two prefixes per turn.
// A token that a template's space before a reply shares with the reply's first word is added.
std::vector<int64_t> labels_by_the_rule(const Tokenizer& tokenizer, const ChatTemplate& chat,
                                        const Prepared& prepared) {
  const auto upto = [&](size_t num_messages, bool prompt) {
    Prepared part = prepared;
    part.messages.get_array().resize(num_messages);
    return tokenizer.encode(chat.render(said(part), prompt));
  };
  const auto ids = tokenizer.encode(chat.render(said(prepared)));
  std::vector<int64_t> labels(ids.size(), -100);
  for (const size_t i : prepared.trained) {
    const auto before = upto(i, true);
    size_t t = before.size();
    if (t > 0 && before[t - 1] == ' ' && ids[t - 1] != ' ') --t;
    for (; t < upto(i + 1, false).size(); ++t) labels[t] = ids[t];
  }
  return labels;
}

TEST(Turns, AreWhatIsBeyondTheConversationBefore) {
  EXPECT_EQ(written(kTinyChat, {"q", "a", "r", "b"}),
            (std::vector<std::string>{"a</s>\n", "b</s>\n"}));
}

TEST(Turns, LabelTheTokensThatTheRuleLabels) {
  const TinyModel model;
  const Tokenizer tokenizer(model.directory());
  const std::vector<std::string> templates{
      kTinyChat,
      // Tokens across the borders of turns: "\n\n" is one token, and so is " a".
      "{% for m in messages %}{{ m.role + ':\\n' + m.content + '\\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ 'assistant:\\n' }}{% endif %}",
      "{% for m in messages %}{% if m.role == 'user' %}[{{ m.content }}]{% else %}"
      " {{ m.content }}</s>{% endif %}{% endfor %}",
      // The first message is not in the loop.
      "{{ messages[0].content }}{% for m in messages[1:] %}<s>{{ m.role }} {{ m.content }}"
      "{% endfor %}{% if add_generation_prompt %}<s>assistant {% endif %}"};
  const std::vector<std::vector<std::string>> conversations{
      {"q", "a"}, {"q", "\na", "\n\n", "\n\na\n"}, {"", "a", " a", " a é🙂", "<s>", ""}};
  for (const auto& source : templates) {
    for (const auto& contents : conversations) {
      const ChatTemplate chat(source);
      const Prepared prepared = prepared_of(contents);
      const Turns turns = render_turns(chat, said(prepared), prepared);
      const Encoding encoding = tokenizer.encode_with_offsets(turns.text, Offsets::kWhole);
      EXPECT_EQ(label_tokens(turns.text, encoding, turns.written, turns.rule),
                labels_by_the_rule(tokenizer, chat, prepared))
          << source << "\n"
          << turns.text;
    }
  }
}

TEST(Turns, OfATemplateWithoutALoopComeFromItsPrefixes) {
  EXPECT_EQ(written("{{ messages | map(attribute='content') | join('|') }}"
                    "{% if messages | length is odd %}|{% endif %}",
                    {"q", "a", "r", "b"}),
            (std::vector<std::string>{"a", "b"}));
}

TEST(Turns, KeepTheirPlaceWhenATemplateDropsOldReasoning) {
  const std::string source =
      "{% for m in messages %}<s>{{ m.role }}\n"
      "{% if m.role == 'assistant' and loop.last %}{{ '<think>x</think>' }}{% endif %}"
      "{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}{{ '<s>assistant\n' }}"
      "{% endif %}";
  EXPECT_EQ(written(source, {"q", "a", "r", "b"}),
            (std::vector<std::string>{"a</s>", "<think>x</think>b</s>"}));
}

TEST(Turns, MayComeFirstAndMayBeFollowedByAQuestion) {
  const std::string source =
      "{% for m in messages %}<s>{{ m.role }}\n{% if not loop.last and m.role == 'assistant' and "
      "messages[loop.index0 + 1].content == 'r' and messages | length == 3 %}was {% endif %}"
      "{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}{{ '<s>assistant\n' }}"
      "{% endif %}";
  EXPECT_EQ(written(source, {"q", "a", "r", "b", "s"}),
            (std::vector<std::string>{"a</s>", "b</s>"}));
  const Prepared first = prepare(
      JsonObject{{"messages", JsonArray{message("assistant", "a"), message("user", "q")}}}, {});
  const Turns turns = render_turns(ChatTemplate(source), said(first), first);
  ASSERT_EQ(turns.written.size(), 1u);
  EXPECT_EQ(turns.text.substr(turns.written[0].begin, 5), "a</s>");
}

TEST(Turns, BeginBehindWhatTheyShareWithAPromptThatOpensAThought) {
  const std::string source =
      "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>{% endfor %}"
      "{% if add_generation_prompt %}{{ '<s>assistant\n<think>\n' }}{% endif %}";
  EXPECT_EQ(written(source, {"q", "<b>", "r", "<think>\nb"}),
            (std::vector<std::string>{"<b></s>", "b</s>"}));
}

TEST(Turns, BeginBehindTheirOwnPromptWhichAToolsResultMayLack) {
  const std::string source =
      "{% for m in messages %}{% if m.role == 'tool' %}[{{ m.content }}]{% else %}"
      "{% if m.role == 'user' or messages[loop.index0 - 1].role == 'user' %}<s>{{ m.role }}\n"
      "{% endif %}{{ m.content }}</s>{% endif %}{% endfor %}"
      "{% if add_generation_prompt and messages[-1].role == 'user' %}{{ '<s>assistant\n' }}"
      "{% endif %}";
  const JsonArray messages{message("user", "q"),      message("assistant", "call"),
                           message("tool", "result"), message("assistant", "a"),
                           message("user", "r"),      message("assistant", "b"),
                           message("tool", "more"),   message("assistant", "c")};
  const Prepared prepared = prepare(JsonObject{{"messages", messages}}, {});
  const Turns turns = render_turns(ChatTemplate(source), said(prepared), prepared);
  std::vector<std::string> found;
  for (const Span& s : turns.written) found.push_back(turns.text.substr(s.begin, s.end - s.begin));
  EXPECT_EQ(found, (std::vector<std::string>{"call</s>", "a</s>", "b</s>", "c</s>"}));
}

TEST(Turns, FollowGenerationBlocksWhereThereAreSome) {
  const std::string source =
      "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}"
      "{% generation %}{{ m.content }}{% endgeneration %};{% endif %}{% endfor %}";
  EXPECT_EQ(written(source, {"q", "a", "r", "b"}), (std::vector<std::string>{"a", "b"}));
  Prepared prepared = prepared_of({"q", "a", "r", "b"});
  prepared.trained = {3};
  prepared.is_limited = true;
  const Turns turns = render_turns(ChatTemplate(source), said(prepared), prepared);
  ASSERT_EQ(turns.written.size(), 1u);
  EXPECT_EQ(turns.text.substr(turns.written[0].begin), "b;");
}

TEST(Turns, AreTheBlocksInTheirOrderWhereNothingElseShowsThem) {
  const auto source = [](const std::string& block) {
    return "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
           "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
           "{% for i in range(0, messages | length, 2) %}<u>{{ messages[i].content }}<a>" +
           block + "{% endfor %}";
  };
  const std::string thought = "{% if i == ns.last %}<think>{% endif %}";
  const std::string reply = "{% generation %}" + thought +
                            "{{ messages[i + 1].content }}</s>"
                            "{% endgeneration %}";
  Prepared prepared = prepared_of({"q", "a", "r", "b"});
  prepared.is_limited = true;
  prepared.trained = {1};
  EXPECT_EQ(written_of(source(reply), prepared), (std::vector<std::string>{"a</s>"}));
  prepared.trained = {3};
  EXPECT_EQ(written_of(source(reply), prepared), (std::vector<std::string>{"<think>b</s>"}));
  const std::string two = "{% generation %}" + thought + "{% endgeneration %}" + reply;
  prepared.trained = {1};
  EXPECT_EQ(error_of([&] { written_of(source(two), prepared); }),
            not_found_in(1,
                         "the chat template renders the conversation up to it differently than "
                         "within the whole; make it one {% generation %} block for each of the "
                         "assistant's messages, or train all of them"));
}

TEST(Turns, AreFoundInTemplatesOfManyShapes) {
  const std::string one = "{{ '<|' + m.role + '|>' + m.content + '</s>' }}";
  const std::string prompt = "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}";
  const std::string by_index =
      "{% for i in range(messages|length) %}{% set m = messages[i] %}" + one + "{% endfor %}";
  const std::string loop = "{% for m in messages %}" + one + "{% endfor %}";
  const std::string silent =
      "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'user' %}"
      "{% set ns.n = loop.index0 %}{% endif %}{% endfor %}";
  const std::vector<std::string> templates{
      silent + by_index,                                           // a loop before the printing one
      silent + loop, loop + silent,                                // or after it
      "{% for k in range(1) %}" + silent + loop + "{% endfor %}",  // or around it
      // a list that is built before it is printed
      "{% set ns = namespace(all=[]) %}{% for m in messages %}{% set ns.all = ns.all + "
      "['<|' + m.role + '|>' + m.content + '</s>'] %}{% endfor %}{{ ns.all | join }}",
      "{% set ns = namespace(all=[]) %}{% for m in messages %}{% set ns.all = ns.all + [{'role': "
      "m.role, 'content': m.content}] %}{% endfor %}{% for m in ns.all %}" +
          one + "{% endfor %}",
      // macros, of a message and of a number
      "{% macro say(m) %}" + one + "{% endmacro %}{% for m in messages %}{{ say(m) }}{% endfor %}",
      "{% macro say(i) %}{% set m = messages[i] %}" + one +
          "{% endmacro %}"
          "{% for i in range(messages|length) %}{{ say(i) }}{% endfor %}",
      // two messages in a pass
      "{% for i in range(0, messages|length, 2) %}{{ '<|user|>' + messages[i].content + '</s>' }}"
      "{% if i + 1 < messages|length %}{{ '<|assistant|>' + messages[i + 1].content + '</s>' }}"
      "{% endif %}{% endfor %}",
      "{% for pair in messages | batch(2) %}{% for m in pair %}" + one + "{% endfor %}{% endfor %}",
      "{% for u in messages %}{% if u.role == 'user' %}{{ '<|user|>' + u.content + '</s>' }}"
      "{% if loop.nextitem %}{{ '<|assistant|>' + loop.nextitem.content + '</s>' }}{% endif %}"
      "{% endif %}{% endfor %}"};
  for (const std::string& source : templates)
    for (const std::vector<std::string>& contents :
         {std::vector<std::string>{"q", "a", "r", "b", "s", "c"}, {"", "a", "", "", "a", "a"}}) {
      EXPECT_EQ(written(source + prompt, contents),
                (std::vector<std::string>{contents[1] + "</s>", contents[3] + "</s>",
                                          contents[5] + "</s>"}))
          << source;
    }
}

TEST(Turns, LeaveOutWhatAnotherSaysWithinThem) {
  // A tool's result within the assistant's turn, which goes on.
  const std::string within =
      "{% for m in messages %}{% if m.role == 'user' %}<u>{{ m.content }}</u>"
      "{% elif m.role == 'assistant' %}{% if not loop.previtem or loop.previtem.role == 'user' %}"
      "<a>{% endif %}{{ m.content }}{% for c in m.tool_calls %}[{{ c.name }}]{% endfor %}"
      "{% if loop.nextitem and loop.nextitem.role == 'tool' %}({{ loop.nextitem.content }})"
      "{% endif %}{% endif %}{% endfor %}"
      "{% if add_generation_prompt and messages[-1].role == 'user' %}<a>{% endif %}";
  Json call = message("assistant", "let me");
  call.get_object()["tool_calls"] = JsonArray{JsonObject{{"name", "f"}}};
  const JsonArray messages{message("user", "q"), call, message("tool", "result"),
                           message("assistant", "a")};
  const Prepared prepared = prepare(JsonObject{{"messages", messages}}, {});
  const Turns turns = render_turns(ChatTemplate(within), said(prepared), prepared);
  ASSERT_EQ(turns.text, "<u>q</u><a>let me[f](result)a");
  std::vector<std::string> found;
  for (const Span& s : turns.written) found.push_back(turns.text.substr(s.begin, s.end - s.begin));
  EXPECT_EQ(found, (std::vector<std::string>{"let me[f]", "a"}));
  // A list of tools after the last message.
  Prepared with_tools = prepared_of({"q", "a"});
  with_tools.tools = JsonArray{JsonObject{{"name", "f"}}};
  Conversation conversation = said(with_tools);
  conversation.tools = with_tools.tools;
  const ChatTemplate chat(
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
      "{% for t in tools %}{{ t.name }}{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}");
  EXPECT_TRUE(error_of([&] {
                render_turns(chat, conversation, with_tools);
              }).starts_with("text: the text that the assistant wrote in messages[1] cannot "));
}

TEST(Turns, HoldNoResultOfAToolWhateverItIs) {
  const std::string user = "{% if m.role == 'user' %}<u>{{ m.content }}</u>";
  const std::string call =
      "{% elif m.role == 'assistant' %}<a>{{ m.content }}{% for c in "
      "m.tool_calls %}[{{ c.name }}]{% endfor %}";
  const std::string end = "</a>{% endif %}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}";
  // Within the turn of the call, and behind it.
  const std::string within = "{% for m in messages %}" + user + call +
                             "{% if loop.nextitem and loop.nextitem.role == 'tool' %}"
                             "({{ loop.nextitem.content | tojson }}){% endif %}" +
                             end;
  const std::string behind = "{% for m in messages %}" + user +
                             "{% elif m.role == 'tool' %}({{ m.content | tojson }})" + call + end;
  Json reply = message("assistant", "let me");
  reply.get_object()["tool_calls"] = JsonArray{JsonObject{{"name", "f"}}};
  for (const Json& result :
       {Json("21"), Json(""), Json("  "), Json(JsonObject{{"temp", 21}}), Json(JsonObject()),
        Json(JsonObject{{"at", JsonObject{{"", JsonArray{"x", 1}}}}})}) {
    const JsonObject said_by_tool{{"role", "tool"}, {"content", result}};
    const JsonArray messages{message("user", "q"), reply, said_by_tool, message("assistant", "a")};
    const Prepared prepared = prepare(JsonObject{{"messages", messages}}, {});
    EXPECT_EQ(error_of([&] { written_of(within, prepared); }), not_found_in(1)) << result;
    EXPECT_EQ(written_of(behind, prepared), (std::vector<std::string>{"let me[f]</a>", "a</a>"}))
        << result;
  }
}

TEST(Turns, HoldNoListOfTools) {
  const auto source = [](const std::string& list) {
    return "{% for m in messages %}<{{ m.role }}>{% if tools and loop.index0 == 1 %}{{ " + list +
           " }}{% endif %}{{ m.content }}</s>{% endfor %}"
           "{% if add_generation_prompt %}<assistant>{% endif %}";
  };
  Prepared prepared = prepared_of({"q", "a", "r", "b"});
  EXPECT_EQ(written_of(source("tools | tojson"), prepared),
            (std::vector<std::string>{"a</s>", "b</s>"}));
  const JsonObject schema{
      {"properties", JsonObject{{"name", JsonObject{{"description", "of a city"}}}}}};
  const JsonObject function{{"name", "f"}, {"description", "It looks."}, {"parameters", schema}};
  prepared.tools = JsonArray{JsonObject{{"type", "function"}, {"function", function}}};
  for (const std::string list :
       {"tools | tojson", "tools[0].function.description", "tools[0].function.parameters | tojson"})
    EXPECT_EQ(error_of([&] { written_of(source(list), prepared); }),
              not_found_in(1,
                           "the chat template lists the tools within it; put {% generation %} "
                           "tags around the assistant's text"))
        << list;
}

TEST(Turns, HoldNoHeaderWhereTheirPromptIsAnother) {
  const std::string loop =
      "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>{% endfor %}";
  const std::string prompt = "{% if add_generation_prompt %}<s>assistant\n{% endif %}";
  const std::string counted =
      "{% for m in messages %}<s>{{ m.role }} {{ messages | length }}\n"
      "{{ m.content }}</s>{% endfor %}";
  for (const std::string& source :
       {loop + "{{ '</s>' }}" + prompt, loop + "[the end]" + prompt, loop + "<s><e>" + prompt,
        loop + "(last was {{ messages[-1].content }})" + prompt, loop + "[the end]",
        counted + prompt, counted + "[the end]" + prompt})
    for (const std::vector<std::string>& contents :
         {std::vector<std::string>{"q", "a"}, {"q", "a", "r", "b"}})
      EXPECT_EQ(error_of([&] { written(source, contents); }), not_found_in(1)) << source;
  // A footer that stands only where no prompt does belongs to the reply.
  EXPECT_EQ(written(loop + "{% if not add_generation_prompt %}<e>{% endif %}" + prompt, {"q", "a"}),
            (std::vector<std::string>{"a</s><e>"}));
  EXPECT_EQ(written("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                    "{% if add_generation_prompt %}assistant: <think>{% endif %}",
                    {"q", "a"}),
            std::vector<std::string>{"a\n"});
  // A preamble before a reply that comes first.
  const Prepared first =
      prepare(JsonObject{{"messages", JsonArray{message("assistant", "a")}}}, {});
  const std::string preamble =
      "{% for m in messages %}{% if loop.first %}<b>{% endif %}<s>{{ m.role }}"
      "\n{{ m.content }}</s>{% endfor %}";
  EXPECT_EQ(written_of(preamble + prompt, first), std::vector<std::string>{"a</s>"});
  const std::string thinks = "{% if add_generation_prompt %}<s>assistant\n<think>\n{% endif %}";
  EXPECT_EQ(
      written(loop + "{% if not add_generation_prompt %}<e>{% endif %}" + thinks, {"q", "<tool>"}),
      (std::vector<std::string>{"<tool></s><e>"}));
  EXPECT_EQ(error_of([&] { written_of(preamble + thinks, first); }), not_found_in(0));
}

TEST(Turns, LeaveOutWhatIsWrittenBetweenMessagesAndSearchesWithinThem) {
  // As of Alpaca's, whose turns are kept apart by lines, and of Command R's, which looks for a
  // call.
  EXPECT_EQ(written("{% for m in messages %}{{ m.content }}</s>{% if not loop.last %}{{ '\n\n' }}"
                    "{% endif %}{% endfor %}",
                    {"q", "a", "r", "b"}),
            (std::vector<std::string>{"a</s>", "b</s>"}));
  EXPECT_EQ(
      written("{% for m in messages %}<{{ m.role }}>{% for x in messages %}"
              "{% if x.content == m.content %}{{ loop.index0 }}{% endif %}{% endfor %}:"
              "{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
              {"q", "a", "r", "b"}),
      (std::vector<std::string>{"1:a", "3:b"}));
}

TEST(Turns, BeginWithATokenThatHoldsThePromptsLastSpace) {
  const TinyModel model;
  const Tokenizer tokenizer(model.directory());
  const auto trained = [&](const std::string& prompt, const std::string& reply) {
    const std::string source = "{% for m in messages %}{{ m.role + '" + prompt +
                               "' + m.content }}{% endfor %}"
                               "{% if add_generation_prompt %}{{ 'assistant" +
                               prompt + "' }}{% endif %}";
    const Prepared prepared = prepared_of({"q", reply});
    const Turns turns = render_turns(ChatTemplate(source), said(prepared), prepared);
    const Encoding encoding = tokenizer.encode_with_offsets(turns.text, Offsets::kWhole);
    const auto labels = label_tokens(turns.text, encoding, turns.written, turns.rule);
    require_trained(turns, prepared, encoding, labels);
    std::vector<int64_t> out;
    std::copy_if(labels.begin(), labels.end(), std::back_inserter(out),
                 [](int64_t label) { return label != kIgnored; });
    return tokenizer.decode(out);
  };
  EXPECT_EQ(trained(": ", "a"), " a");
  EXPECT_EQ(trained(": ", "ab"), " ab");
  EXPECT_EQ(trained(":", "a"), "a");
  EXPECT_EQ(trained("\\n", "\n\n"), "\n");
  EXPECT_EQ(error_of([&] { trained("\\n", "\n"); }),
            "text: messages[1] has no trained token: the tokenizer makes one token of it and the "
            "end of the generation prompt; give it a content, take it out, or leave it out of "
            "user_data.key_rounds");
}

TEST(Turns, WithoutATrainedTokenAreRefused) {
  const TinyModel model;
  const Tokenizer tokenizer(model.directory());
  const auto refusal = [&](const std::string& source) {
    const Prepared prepared = prepared_of({"q", "a", "r", ""});
    const Turns turns = render_turns(ChatTemplate(source), said(prepared), prepared);
    const Encoding encoding = tokenizer.encode_with_offsets(turns.text, Offsets::kWhole);
    const auto labels = label_tokens(turns.text, encoding, turns.written, turns.rule);
    return error_of([&] { require_trained(turns, prepared, encoding, labels); });
  };
  const std::string remedy =
      "; give it a content, take it out, or leave it out of user_data.key_rounds";
  EXPECT_EQ(refusal("{% for m in messages %}[{{ m.content }}{% endfor %}"
                    "{% if add_generation_prompt %}[{% endif %}"),
            "text: messages[3] has no trained token: the chat template writes nothing of it after "
            "the generation prompt" +
                remedy);
  EXPECT_EQ(refusal("{% for m in messages %}[{% if m.content.endswith('a') %}{% generation %}"
                    "{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}.{% endif %}"
                    "{% endfor %}"),
            "text: messages[3] has no trained token: the chat template's {% generation %} blocks "
            "leave it out" +
                remedy);
}

TEST(Turns, AreRefusedWhereTheTemplateDoesNotShowThem) {
  const auto work = [] {
    written("{{ messages | length }}{{ messages | map(attribute='content') | join }}",
            {"q", "a", "r", "b"});
  };
  EXPECT_EQ(
      error_of(work),
      "text: the text that the assistant wrote in messages[1] cannot be found: the chat template "
      "renders the conversation up to it differently than within the whole; put {% generation %} "
      "tags around the assistant's text");
}

}  // namespace
}  // namespace twinkle::text
