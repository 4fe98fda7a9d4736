#include "twinkle/text/template.h"

#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "twinkle/text/tiny_model_test.h"

namespace twinkle::text {
namespace {

using Ids = std::vector<int64_t>;
constexpr int64_t kNo = -100;

Json row(const std::string& question, const std::string& answer) {
  const JsonObject user{{"role", "user"}, {"content", question}};
  const JsonObject assistant{{"role", "assistant"}, {"content", answer}};
  return JsonObject{{"messages", JsonArray{user, assistant}}};
}

Ids bytes(const std::string& text) { return {text.begin(), text.end()}; }

Ids joined(std::initializer_list<Ids> parts) {
  Ids out;
  for (const Ids& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

// "<s>user\nq</s>\n<s>assistant\n", the prompt of row("q", ..): 20 tokens.
Ids prompt() { return joined({{258}, bytes("user\nq"), {259, '\n', 258}, bytes("assistant\n")}); }

TEST(Template, OfOneFileIsWhatLiesBesideIt) {
  const TinyModel model;
  std::ofstream(model.directory() / "model.gguf") << "weights";
  EXPECT_EQ(Template(model.directory() / "model.gguf").encode(row("q", "ab"))[0].input_ids,
            Template(model.directory()).encode(row("q", "ab"))[0].input_ids);
}

TEST(Template, LabelsTheAnswerOnePositionEarly) {
  const TinyModel model;
  const auto features = Template(model.directory()).encode(row("q", "ab"));
  ASSERT_EQ(features.size(), 1u);
  const Ids answer = {'a', 'b', 259, '\n'};
  EXPECT_EQ(features[0].input_ids, joined({prompt(), answer}));
  EXPECT_EQ(features[0].labels, joined({Ids(prompt().size() - 1, kNo), answer, {kNo}}));
  EXPECT_EQ(features[0].length(), 24);
}

TEST(Template, RolesOfOtherFormsOfChatsAreNotTrainedAndNotTakenInSilence) {
  const TinyModel model;
  const Template tmpl(model.directory());
  const auto chat = [](const char* asks, const char* replies) {
    Json out = row("q", "a");
    JsonArray& messages = out.at("messages").as_array();
    messages.push_back(JsonObject{{"role", asks}, {"content", "p"}});
    messages.push_back(JsonObject{{"role", replies}, {"content", "b"}});
    return out;
  };
  for (const char* role : {"model", "gpt", "bot", "Assistant"})
    EXPECT_EQ(
        error_of([&] { tmpl.encode(chat("user", role)); }),
        "text: field 'messages[3].role' is '" + std::string(role) +
            "', which this chat template does not read as 'assistant'; ShareGPTProcessor renames "
            "it, dataset.map('ShareGPTProcessor') or twinkle train --preprocessor "
            "ShareGPTProcessor");
  EXPECT_TRUE(error_of([&] {
                tmpl.encode(chat("human", "assistant"));
              }).starts_with("text: field 'messages[2].role' is 'human'"));
  EXPECT_EQ(tmpl.render(chat("user", "model")).find("<s>model"), 47u);  // as transformers has it
  const TinyModel gemma(
      "{% for m in messages %}{% set role = 'model' if m.role == 'assistant' else m.role %}"
      "{{ '<s>' + role + '\n' + m.content + '</s>\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<s>model\n' }}{% endif %}");
  const Template maps(gemma.directory());
  EXPECT_EQ(maps.encode(chat("user", "model"))[0].labels,
            maps.encode(chat("user", "assistant"))[0].labels);
}

TEST(Template, AWeightOfAUsersMessageIsRefusedOnlyWhereItWouldBeTrained) {
  const TinyModel model;
  const Template tmpl(model.directory());
  const auto chat = [](const Json& value, const char* name = "train") {
    Json out = row("q", "a");
    out.at("messages").at(0).as_object()[name] = value;
    return out;
  };
  EXPECT_EQ(error_of([&] { tmpl.encode(chat(true)); }),
            "text: field 'messages[0].train' is true, but only the assistant's messages are "
            "trained; make it 0, or take it out");
  EXPECT_NE(error_of([&] { tmpl.encode(chat(0.5, "weight")); }), "no error");
  EXPECT_EQ(tmpl.encode(chat(1, "weight")).size(), 1u);
  EXPECT_EQ(tmpl.encode(chat(false)).size(), 1u);
  EXPECT_EQ(tmpl.encode(chat(true), true).size(), 1u);
}

TEST(Template, EndsWithTheGenerationPromptAndNoLabelsOnRequest) {
  const TinyModel model;
  const Json question = parse_json(R"({"messages": [{"role": "user", "content": "q"}]})", "row");
  const auto features = Template(model.directory()).encode(question, true);
  EXPECT_EQ(features.at(0).input_ids, prompt());
  EXPECT_EQ(features.at(0).labels, Ids(prompt().size(), kNo));
}

TEST(Template, PassesThinkingAndSpecialTokensOn) {
  const TinyModel model("{{ bos_token }}{{ eos_token }}{{ enable_thinking }}");
  EXPECT_EQ(Template(model.directory()).render(row("q", "a")), "<s></s>True");
  EXPECT_EQ(Template(model.directory(), {.enable_thinking = false}).render(row("q", "a")),
            "<s></s>False");
}

TEST(Template, TruncatesAsAsked) {
  const TinyModel model;
  const Template whole(model.directory());
  const InputFeature full = whole.encode(row("q", "ab"))[0];
  const auto encode = [&](const char* strategy) {
    return Template(model.directory(), {.max_length = 10, .truncation = truncation_of(strategy)})
        .encode(row("q", "ab"));
  };
  const auto ids = [&](size_t from, size_t to) {
    return Ids(full.input_ids.begin() + static_cast<ptrdiff_t>(from),
               full.input_ids.begin() + static_cast<ptrdiff_t>(to));
  };
  EXPECT_EQ(encode("left").at(0).input_ids, ids(14, 24));
  EXPECT_EQ(encode("left").at(0).labels, joined({Ids(5, kNo), {'a', 'b', 259, '\n', kNo}}));
  EXPECT_EQ(encode("right").at(0).input_ids, ids(0, 10));
  EXPECT_EQ(encode("right").at(0).labels, Ids(10, kNo));
  EXPECT_TRUE(encode("delete").empty());
  const auto pieces = encode("split");
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[1].input_ids, ids(10, 20));
  EXPECT_EQ(pieces[1].labels, Ids(10, kNo));
  EXPECT_EQ(pieces[2].input_ids, ids(20, 24));
  EXPECT_EQ(pieces[2].labels, (Ids{'b', 259, '\n', kNo}));
  EXPECT_EQ(error_of([&] { encode("raise"); }),
            "text: the row has 24 tokens, max_length is 10; shorten it, raise max_length, or set "
            "truncation_strategy");
  EXPECT_EQ(
      error_of([&] { encode("middle"); }),
      "text: truncation_strategy is 'middle', it must be raise, left, right, split or delete");
}

TEST(Template, TrainsPlainTextWhole) {
  const TinyModel model("");
  const Template plain(model.directory(), {.use_chat_template = false});
  const Json one = parse_json(R"({"messages": [{"role": "user", "content": "x a"}]})", "row");
  EXPECT_EQ(plain.encode(one).at(0).input_ids, (Ids{'x', 257}));
  EXPECT_EQ(plain.encode(one).at(0).labels, (Ids{257, kNo}));
  const std::string error =
      "text: with use_chat_template=false a row is one user message, this one has ";
  EXPECT_EQ(error_of([&] { plain.encode(row("q", "a")); }), error + "2 messages");
  EXPECT_EQ(
      error_of([&] {
        plain.encode(parse_json(R"({"messages": [{"role": "tool", "content": "x"}]})", "row"));
      }),
      error + "1 of another role");
  EXPECT_EQ(
      error_of([&] { plain.encode(parse_json(R"({"messages": [{"role": "user"}]})", "row")); }),
      "text: field 'messages[0].content' is missing");
  EXPECT_EQ(error_of([&] { plain.render(one); }),
            "text: use_chat_template is false, nothing to render");
}

TEST(Template, EncodesABatchInOrderAndNamesABadRow) {
  const TinyModel model;
  const Template chat(model.directory());
  std::vector<Json> rows;
  for (int i = 0; i < 200; ++i) rows.push_back(row(std::to_string(i), "a"));
  const auto features = chat.batch_encode(rows);
  ASSERT_EQ(features.size(), rows.size());
  for (size_t i = 0; i < rows.size(); ++i)
    EXPECT_EQ(features[i].at(0).input_ids, chat.encode(rows[i]).at(0).input_ids);
  rows[150] = rows[120] = JsonObject{{"note", "no messages"}};
  EXPECT_EQ(error_of([&] { chat.batch_encode(rows); }),
            "text: row 120: field 'messages' is missing; the row has note: make messages of it, "
            R"([{"role": "user", "content": ...}, ...])");
}

TEST(Template, AppendsSampledTokensAsTrainedOnes) {
  const TinyModel model;
  const Template chat(model.directory(), {.max_length = 25});
  const InputFeature first = chat.encode(row("q", "a")).at(0);
  const InputFeature longer = chat.concat_input_feature(first, Ids{'x', 259});
  EXPECT_EQ(longer.input_ids, joined({first.input_ids, {'x', 259}}));
  EXPECT_EQ(longer.labels,
            joined({Ids(first.labels.begin(), first.labels.end() - 1), {'x', 259, kNo}}));
  const InputFeature empty = chat.concat_input_feature({}, Ids{'x'});
  EXPECT_EQ(empty.labels, (Ids{kNo}));
  EXPECT_EQ(error_of([&] { chat.concat_input_feature(first, Ids(3, 'x')); }),
            "text: the row has 26 tokens, max_length is 25; shorten it, raise max_length, or set "
            "truncation_strategy");
  const Template split(model.directory(), {.max_length = 25, .truncation = Truncation::kSplit});
  EXPECT_EQ(error_of([&] { split.concat_input_feature(first, Ids(3, 'x')); }),
            "text: the prompt and its reply have 26 tokens, more than max_length, 25; 'split' and "
            "'delete' cannot keep them in one sample");
  EXPECT_EQ(error_of([&] { chat.concat_input_feature(first, Ids{-1}); }),
            "text: token id -1 is negative");
  EXPECT_EQ(error_of([&] { chat.concat_input_feature({{1, 2}, {1}}, Ids{1}); }),
            "text: a feature of 2 input_ids has 1 labels");
}

TEST(Template, ChecksARowWithoutThrowing) {
  const TinyModel model;
  const Template chat(model.directory(), {.max_length = 23, .truncation = Truncation::kDelete});
  EXPECT_EQ(chat.check(row("q", "a")), std::nullopt);
  EXPECT_EQ(chat.check(row("q", "ab")), "text: the row is longer than max_length, 23, or empty");
  EXPECT_EQ(chat.check(JsonObject{}), "text: field 'messages' is missing");
}

TEST(Template, RefusesModelsWithoutWhatItNeedsAndTemplatesThatRaise) {
  const TinyModel silent("");
  EXPECT_EQ(error_of([&] {
              Template chat(silent.directory());
            }).find("text: " + silent.directory().string() + " has no chat template"),
            0u);
  const TinyModel model("{{ raise_exception('no ' + messages[0].role) }}");
  EXPECT_EQ(error_of([&] { Template(model.directory()).encode(row("q", "a")); }),
            "text: the chat template failed: no user (line 1 of the template)");
  EXPECT_EQ(error_of([&] { Template chat(model.directory(), {.max_length = -1}); }),
            "text: max_length is -1, it must be at least 1, or 0 for no limit");
  model.remove("tokenizer.json");
  EXPECT_EQ(error_of([&] { Template chat(model.directory()); }),
            "text: cannot open " + (model.directory() / "tokenizer.json").string() +
                ", a model directory holds a tokenizer.json");
}

TEST(Template, RefusesAConversationOfWhichTheChatTemplateRendersNothing) {
  const TinyModel model("{% for m in messages if m.role == 'tool' %}{{ m.content }}{% endfor %}");
  const Template chat(model.directory());
  const std::string error =
      "text: the chat template renders nothing that is a token, 0 bytes of 2 messages; a sample "
      "needs at least 1: mend the template, or drop such rows with check()";
  EXPECT_EQ(error_of([&] { chat.encode(row("q", "a")); }), error);
  EXPECT_EQ(error_of([&] { chat.encode(row("q", "a"), true); }), error);
  EXPECT_EQ(chat.check(row("q", "a")), error);
  const Json tool = parse_json(R"({"messages": [{"role": "tool", "content": "x"}]})", "row");
  EXPECT_EQ(chat.encode(tool).at(0).input_ids, (Ids{'x'}));
}

TEST(Template, DecodesWithAndWithoutSpecialTokens) {
  const TinyModel model;
  const Template chat(model.directory());
  const Ids ids{258, 'h', 'i', 259};
  EXPECT_EQ(chat.decode(ids), "<s>hi</s>");
  EXPECT_EQ(chat.batch_decode(std::vector<Ids>{ids, {'x'}}, true),
            (std::vector<std::string>{"hi", "x"}));
}

}  // namespace
}  // namespace twinkle::text
