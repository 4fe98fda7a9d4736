#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "twinkle/cli/chat/conversation.h"
#include "twinkle/cli/chat/ctrl_c.h"
#include "twinkle/cli/chat/lines.h"
#include "twinkle/cli/tiny_chat_for_test.h"
#include "twinkle/text/rust/shared_tokenizer.h"

namespace twinkle::cli {
namespace {

constexpr const char* kNoPositions = "the chat has ";

class ChatTest : public testing::Test {
 protected:
  engine::EngineOptions options() const {
    engine::EngineOptions out;
    out.model.path = tiny_.model();
    out.model.mixed_precision = "no";
    out.sampler.kv_tokens = 512;
    return out;
  }

  // Greedy tokens after this whole chat, by an engine that has seen nothing else.
  std::string answer_to(const JsonArray& messages, int64_t max_tokens = 5) {
    engine::Engine fresh(options());
    fresh.run<engine::Done>(engine::Create{.tenant = "me", .frozen = true});
    const text::Template tmpl(tiny_.model(), {.max_length = 0});
    const auto ids = tmpl.encode(JsonObject{{"messages", messages}}, true).at(0).input_ids;
    const auto result = fresh.run<engine::SampleResult>(
        engine::Sample{.tenant = "me",
                       .prompts = {{ids.begin(), ids.end()}},
                       .params = {{.max_tokens = max_tokens, .temperature = 0}}});
    const auto& tokens = result.completions[0][0].tokens;
    return tmpl.decode(std::vector<int64_t>(tokens.begin(), tokens.end()), true);
  }

  const TinyChat tiny_;
};

TEST_F(ChatTest, AnAnswerFollowsAllThatWasSaidBeforeAndComesInPieces) {
  engine::Engine engine(options(), text::decoder_of);
  engine.run<engine::Done>(engine::Create{.tenant = "base", .frozen = true});
  const text::Template tmpl(tiny_.model(), {.max_length = 0});
  Conversation chat(engine, tmpl, {.max_tokens = 5, .temperature = 0}, 512);
  chat.use("base");
  std::string shown;
  const Listener listener{.show = [&](std::string_view piece) { shown += piece; }};
  const Answer first = chat.ask("a", listener);
  EXPECT_EQ(shown, first.text);
  JsonArray messages{JsonObject{{"role", "user"}, {"content", "a"}}};
  EXPECT_EQ(first.text, answer_to(messages));
  chat.ask("b");
  messages.push_back(JsonObject{{"role", "assistant"}, {"content", first.text}});
  messages.push_back(JsonObject{{"role", "user"}, {"content", "b"}});
  EXPECT_EQ(get<std::string>(chat.messages().at(3), "content"), answer_to(messages));
  chat.reset();
  EXPECT_EQ(chat.ask("a").text, first.text);
  EXPECT_EQ(chat.messages().size(), 2U);
}

TEST_F(ChatTest, AStoppedAnswerKeepsWhatHasComeAndTheChatGoesOn) {
  engine::Engine engine(options(), text::decoder_of);
  engine.run<engine::Done>(engine::Create{.tenant = "base", .frozen = true});
  const text::Template tmpl(tiny_.model(), {.max_length = 0});
  Conversation chat(engine, tmpl, {.max_tokens = 200, .temperature = 0}, 512);
  chat.use("base");
  size_t seen = 0;
  const Listener listener{.show = [&](std::string_view piece) { seen += piece.size(); },
                          .stopped = [] { return true; }};
  const Answer answer = chat.ask("a", listener);
  EXPECT_EQ(answer.text.size(), seen);
  EXPECT_EQ(chat.messages().size(), answer.text.empty() ? 0U : 2U);
  chat.reset();
  EXPECT_EQ(chat.ask("a").text.substr(0, seen), answer.text);
}

TEST_F(ChatTest, AChatBeyondTheContextIsRefusedAndStaysAsItWas) {
  engine::Engine engine(options(), text::decoder_of);
  engine.run<engine::Done>(engine::Create{.tenant = "base", .frozen = true});
  const text::Template tmpl(tiny_.model(), {.max_length = 0});
  Conversation chat(engine, tmpl, {.max_tokens = 5, .temperature = 0}, 512);
  chat.use("base");
  chat.ask("a");
  const std::string error = invalid_of([&] { chat.ask(std::string(300, 'b')); });
  EXPECT_TRUE(error.starts_with(std::string("cli: ") + kNoPositions)) << error;
  EXPECT_TRUE(error.ends_with(" tokens, the model's context is 256; /reset begins a new chat"))
      << error;
  EXPECT_EQ(chat.messages().size(), 2U);
  Conversation small(engine, tmpl, {.max_tokens = 5, .temperature = 0}, 8);
  small.use("base");
  expect_error(
      " tokens, --kv-tokens is 8; /reset begins a new chat, or start with more --kv-tokens",
      [&] { small.ask("a"); });
}

TEST_F(ChatTest, APipesLinesAreQuestionsAndCommandsOfAdapters) {
  const std::string one = tiny_.adapter("one", {"q_proj", "down_proj"}, 1),
                    two = tiny_.adapter("two", {"v_proj"}, 2);
  const std::vector<std::string> chat{"chat", tiny_.model(),       "--max-tokens",
                                      "4",    "--mixed-precision", "no"};
  const auto with = [&](std::vector<std::string> more, const std::string& input) {
    more.insert(more.begin(), chat.begin(), chat.end());
    const Ran got = ran(more, input);
    EXPECT_EQ(got.status, 0) << got.error;
    return got.out;
  };
  const std::string base = with({}, "a\n"), by_one = with({"--adapter", one}, "a\n"),
                    by_two = with({"--adapter", two}, "a\n");
  EXPECT_NE(base, by_one);
  EXPECT_NE(by_one, by_two);
  EXPECT_EQ(
      with({"--adapter", one, "x=" + two}, "a\n/reset\n/adapter x\n\na\n/reset\n/adapter base\na"),
      by_one + by_two + base);
  EXPECT_EQ(with({}, "a\n/exit\na\n"), base);
}

TEST_F(ChatTest, AnErrorEndsAPipesChatWith1) {
  const auto error = [&](const std::string& input, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"chat", tiny_.model(), "--max-tokens", "2"});
    const Ran got = ran(more, input);
    EXPECT_EQ(got.status, 1);
    EXPECT_EQ(got.out, "");
    return got.error.substr(got.error.rfind("twinkle: "));
  };
  EXPECT_EQ(error("/adapter x\n"),
            "twinkle: cli: there is no adapter 'x'; there are base (answers)\n");
  EXPECT_EQ(error("/rest\n"),
            "twinkle: cli: there is no command '/rest'; did you mean '/reset'?; /help lists them, "
            "and a question may begin with a blank and then a slash\n");
  EXPECT_EQ(error("", {"--adapter", tiny_.path("none")}),
            "twinkle: cli: --adapter " + tiny_.path("none") +
                " does not exist; name a directory that 'twinkle train' or peft saved an adapter "
                "to\n");
  const std::string one = tiny_.adapter("one", {"q_proj"});
  EXPECT_EQ(error("", {"--adapter", one, one + "/"}),
            "twinkle: cli: --adapter " + one +
                "/: the name 'one' is that of another adapter; give "
                "it as NAME=" +
                one + "/\n");
}

TEST(ChatLines, EndAtTheirEndAndWhereTheyAreWoken) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string text = "a\r\n\nb";
  ASSERT_EQ(::write(ends[1], text.data(), text.size()), std::ssize(text));
  Lines lines(ends[0]);
  EXPECT_EQ(lines.next(), "a");
  EXPECT_EQ(lines.next(), "");
  ::close(ends[1]);
  EXPECT_EQ(lines.next(), "b");
  EXPECT_EQ(lines.next(), std::nullopt);
  ::close(ends[0]);
}

TEST(ChatCtrlC, EndsAWaitAndNotTheProcess) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  {
    CtrlC ctrl_c;
    EXPECT_FALSE(ctrl_c.pressed());
    Lines lines(ends[0], ctrl_c.descriptor());
    std::raise(SIGINT);
    EXPECT_EQ(lines.next(), "");
    EXPECT_TRUE(ctrl_c.pressed());
    EXPECT_TRUE(ctrl_c.pressed()) << "until it is forgotten";
    ctrl_c.forget();
    EXPECT_FALSE(ctrl_c.pressed());
  }
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace twinkle::cli
