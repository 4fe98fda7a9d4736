// OpenAI's routes against the service over a null model, whose samples are 'a's for listeners.
#include "twinkle/server/openai/api.h"

#include "twinkle/server/service_for_test.h"
#include "twinkle/text/tiny_model_test.h"

namespace twinkle::server::openai {
namespace {

class OpenAiApi : public ServiceTest {
 protected:
  OpenAiApi() { backend_->facts.directory = model_.directory().string(); }

  static Json chat(const std::string& more = "", const std::string& model = "null") {
    return parse_json(R"({"messages": [{"role": "user", "content": "?"}], "model": ")" + model +
                          "\"" + more + "}",
                      "the test");
  }
  static std::string error(const Response& response, const char* field) {
    return boost::json::serialize(parse(response).at("error").at(field));
  }
  // All that a stream has told, until its end.
  std::string all(const Response& response) {
    std::string out = response.stream->take();
    EXPECT_TRUE(loop_->run_until([&] {
      out += response.stream->take();
      return response.stream->is_ended() || response.stream->is_cut();
    }));
    return out + response.stream->take();
  }
  // The engine has nothing left.
  bool is_idle() {
    return loop_->run_until([&] { return services_->operations.num_running() == 0; }) &&
           dispatcher_->stats().num_queued == 0;
  }

  text::TinyModel model_;
};

TEST_F(OpenAiApi, AnswersBelowBothBasePaths) {
  for (const std::string base : {"/v1", "/api/v1"}) {
    const Response whole = post(base + "/chat/completions", chat(R"(, "max_tokens": 2)"));
    ASSERT_EQ(whole.status, 200) << whole.body;
    EXPECT_EQ(parse(whole).at("usage").at("completion_tokens"), 3);
    const Response text =
        post(base + "/completions", {{"model", "null"}, {"prompt", "ab"}, {"max_tokens", 1}});
    EXPECT_EQ(parse(text).at("object"), "text_completion") << text.body;
    Request list = request(base + "/models", "", "tml-a");
    list.method = "GET";
    EXPECT_EQ(parse(answer(list)).at("data").at(0).at("id"), "null");
  }
  EXPECT_TRUE(is_idle());
}

TEST_F(OpenAiApi, AStreamTellsEachTokenAndEnds) {
  const Response begun = post("/v1/chat/completions", chat(R"(, "stream": true, "max_tokens": 3)"));
  ASSERT_EQ(begun.status, 200) << begun.body;
  EXPECT_EQ(begun.content_type, "text/event-stream");
  const std::string told = all(begun);
  EXPECT_TRUE(begun.stream->is_ended() && !begun.stream->is_cut());
  size_t num = 0;
  for (size_t at = 0; (at = told.find(R"("content":"a")", at)) != told.npos; ++at) ++num;
  EXPECT_EQ(num, 3U) << told;
  EXPECT_TRUE(told.ends_with("data: [DONE]\n\n"));
}

TEST_F(OpenAiApi, ACheckpointOfTheCallerIsAModelAndAnothersIsNotFound) {
  const std::string id = run();
  const Response saved =
      post("/api/v1/save_weights_for_sampler", {{"model_id", id}, {"seq_id", 1}, {"path", "a"}});
  const std::string path = text(result(saved), "path");
  const std::string twinkle = "twinkle" + path.substr(path.find(':'));
  for (const std::string& model : {path, twinkle})
    EXPECT_EQ(post("/v1/chat/completions", chat(R"(, "max_tokens": 1)", model)).status, 200);
  Request list = request("/v1/models", "", "tml-a");
  list.method = "GET";
  EXPECT_EQ(parse(answer(list)).at("data").at(1).at("id"), path.c_str());
  list.headers["x-api-key"] = "tml-b";
  EXPECT_EQ(parse(answer(list)).at("data").as_array().size(), 1U);
  const Response foreign = post("/v1/chat/completions", chat("", path), "tml-b"),
                 absent = post("/v1/chat/completions", chat("", "no"), "tml-b");
  EXPECT_EQ(foreign.status, 404);
  EXPECT_EQ(error(foreign, "code"), "\"model_not_found\"");
  EXPECT_EQ(error(foreign, "message"),
            "\"openai: model '" + path +
                "' is not served; GET /v1/models lists the names and your checkpoints\"");
  EXPECT_EQ(absent.status, 404);
}

TEST_F(OpenAiApi, ErrorsHaveOpenAIsFormAndStatuses) {
  const Response wrong = post("/v1/chat/completions", chat(R"(, "n": 0)"));
  EXPECT_EQ(wrong.status, 400);
  EXPECT_EQ(parse(wrong).at("error"),
            parse_json(R"({"message": "openai: n is 0, it must be from 1 to 128",
                           "type": "invalid_request_error", "param": "n", "code": null})",
                       ""));
  for (const auto& [more, param] : {std::pair(R"(, "seed": "a")", "\"seed\""),
                                    std::pair(R"(, "response_format": {})", "\"response_format\""),
                                    std::pair(R"(, "nonsense": 1)", "null")}) {
    const Response refused = post("/v1/chat/completions", chat(more));
    EXPECT_EQ(refused.status, 400) << refused.body;
    EXPECT_EQ(error(refused, "param"), param) << refused.body;
  }
  EXPECT_EQ(answer(request("/v1/chat/completions", "{", "tml-a")).status, 400);
  EXPECT_EQ(answer(request("/v1/completions", "[]", "tml-a")).status, 400);
  EXPECT_EQ(post("/v1/embeddings", JsonObject()).status, 404);
  EXPECT_EQ(error(post("/v1/embeddings", JsonObject()), "type"), "\"invalid_request_error\"");
  const std::string longest(64, 'a');
  EXPECT_EQ(error(post("/v1/completions", {{"model", "null"}, {"prompt", longest}}), "message"),
            "\"openai: prompt has 64 tokens, the model's context has 64 with the answer; send "
            "fewer\"");
  const store::KeyFile keys(dir_.path());
  const std::string narrow = keys.create({.tenant = "a", .scopes = {"metrics"}}).text;
  ask_for_keys(keys);
  const Response nobody = post("/v1/chat/completions", chat(), "tml-x");
  EXPECT_EQ(nobody.status, 401);
  EXPECT_EQ(error(nobody, "code"), "\"invalid_api_key\"");
  const Response lacks = post("/v1/chat/completions", chat(), narrow);
  EXPECT_EQ(lacks.status, 403);
  EXPECT_EQ(error(lacks, "type"), "\"invalid_request_error\"");
  EXPECT_EQ(post("/api/v1/create_session", JsonObject(), "tml-x").body.substr(0, 9), "{\"detail\"");
}

TEST_F(OpenAiApi, AFailureIsTheAnswerOrTheLastThatAStreamTellsBeforeItIsCut) {
  executor_->failing_steps = 1;
  const Response failed = post("/v1/chat/completions", chat(R"(, "max_tokens": 2)"));
  EXPECT_EQ(failed.status, 500) << failed.body;
  EXPECT_EQ(error(failed, "type"), "\"server_error\"");
  const Response begun = post("/v1/chat/completions", chat(R"(, "top_p": 0, "stream": true)"));
  ASSERT_TRUE(begun.stream) << begun.body;  // the null model refuses what has begun
  const std::string told = all(begun);
  EXPECT_TRUE(begun.stream->is_cut());
  EXPECT_NE(told.find(R"(data: {"error":{"message":"null: refused")"), std::string::npos) << told;
  EXPECT_EQ(told.find("[DONE]"), std::string::npos);
  EXPECT_TRUE(is_idle());
}

TEST_F(OpenAiApi, WhereThereIsNoRoomItIs429AndTheClientComesAgain) {
  open({.max_queued = 2});
  backend_->facts.directory = model_.directory().string();
  const std::string body = boost::json::serialize(chat(R"(, "max_tokens": 4)"));
  const auto ask = [&] { return send(request("/v1/chat/completions", body, "tml-a")); };
  const auto is_told = [](const auto& answer) { return [answer] { return answer->has_value(); }; };
  EXPECT_TRUE(loop_->run_until(is_told(ask())));  // its tenant is made with it
  std::atomic<bool> goes = false;
  executor_->on_step = [&] {
    while (!goes) std::this_thread::yield();
  };
  const auto first = ask(), second = ask();
  EXPECT_TRUE(loop_->run_until([&] { return dispatcher_->stats().num_queued == 2; }));
  const auto full = ask();
  EXPECT_TRUE(loop_->run_until(is_told(full)));
  goes = true;
  EXPECT_EQ((*full)->status, 429) << (*full)->body;
  EXPECT_EQ(error(**full, "code"), "\"rate_limit_exceeded\"");
  EXPECT_EQ((*full)->headers.at(0), std::pair(std::string("Retry-After"), std::string("1")));
  for (const auto& one : {first, second}) {
    EXPECT_TRUE(loop_->run_until(is_told(one)));
    EXPECT_EQ((*one)->status, 200) << (*one)->body;
  }
}

// However far it has come, the engine does not go on with it.
TEST_F(OpenAiApi, AClientThatHangsUpEndsItsSample) {
  std::atomic<int64_t> num_steps = 0;
  executor_->on_step = [&] {
    ++num_steps, std::this_thread::sleep_for(std::chrono::microseconds(100));
  };
  backend_->facts.max_positions = 2'000'000;
  for (const char* more : {"", R"(, "stream": true)"}) {
    Request r = request(
        "/v1/chat/completions",
        boost::json::serialize(chat(R"(, "max_tokens": 1000000)" + std::string(more))), "tml-a");
    std::function<void()> hang_up;
    r.when_gone = [&](std::function<void()> run) { hang_up = std::move(run); };
    num_steps = 0;
    const auto told = send(r);
    ASSERT_TRUE(hang_up);
    while (num_steps < 4) loop_->run();
    EXPECT_EQ(told->has_value(), *more != 0) << "a stream alone has begun";
    if (told->has_value())
      (*told)->stream->hang_up();
    else
      hang_up();
    EXPECT_TRUE(is_idle());
  }
}

TEST_F(OpenAiApi, OneThatHangsUpBeforeItsPromptIsReadAsksTheEngineForNothing) {
  Request r = request("/v1/completions", R"({"model": "null", "prompt": "a"})", "tml-a");
  std::function<void()> hang_up;
  r.when_gone = [&](std::function<void()> run) { hang_up = std::move(run); };
  const auto told = send(r);
  hang_up();
  bool is_read = false;
  services_->texts.run([] {}, *loop_, [&](const auto&) { is_read = true; }, "tml-a");
  EXPECT_TRUE(loop_->run_until([&] { return is_read; }));
  EXPECT_EQ(executor_->num_steps, 0);
  EXPECT_FALSE(told->has_value());
}

TEST_F(OpenAiApi, AStreamIsCutByTheEndOfTheService) {
  executor_->on_step = [] { std::this_thread::sleep_for(std::chrono::microseconds(100)); };
  backend_->facts.max_positions = 2'000'000;
  const Response begun =
      post("/v1/chat/completions", chat(R"(, "stream": true, "max_tokens": 1000000)"));
  ASSERT_TRUE(begun.stream);
  close();
  loop_.reset();  // with what the engine has posted
  EXPECT_TRUE(begun.stream->is_cut());
  EXPECT_EQ(begun.stream->take().find("[DONE]"), std::string::npos);
}

TEST_F(OpenAiApi, WhatAChatTakesIsItsTenantsUsageAndNothingIsJournalled) {
  go_on();
  const uint64_t before = services_->history.sequence();
  post("/v1/chat/completions", chat(R"(, "max_tokens": 2)"));
  EXPECT_EQ(services_->history.sequence(), before);
  const auto lines = services_->usage.lines();
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].run, "openai");
  EXPECT_EQ(lines[0].used.generated, 3);
  EXPECT_GT(lines[0].used.prompt, 0);
}

}  // namespace
}  // namespace twinkle::server::openai
