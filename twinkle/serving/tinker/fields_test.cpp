// Fields of requests out of their ranges, and requests that come twice.
#include "twinkle/server/history/number_set.h"
#include "twinkle/serving/api/service_for_test.h"

namespace twinkle::server {
namespace {

class FieldsTest : public ServiceTest {
 protected:
  Response sampler(const std::string& session, int64_t number, const char* of, const char* name) {
    return post("/api/v1/create_sampling_session",
                {{"session_id", session}, {"sampling_session_seq_id", number}, {of, name}});
  }
};

TEST_F(FieldsTest, ANumberBelow0IsRefusedByItsField) {
  const std::string s = session(), id = run();
  const std::string below = " is -1, it must be at least 0";
  Json other = model(s);
  other.as_object()["model_seq_id"] = -1;
  EXPECT_EQ(text(post("/api/v1/create_model", other), "detail"), "server: model_seq_id" + below);
  EXPECT_EQ(text(sampler(s, -1, "base_model", "null"), "detail"),
            "server: sampling_session_seq_id" + below);
  result(post("/api/v1/save_weights", {{"model_id", id}, {"seq_id", 1}, {"path", "a"}}));
  EXPECT_EQ(text(post("/api/v1/load_weights", {{"session_id", s},
                                               {"model_seq_id", -1},
                                               {"path", "tinker://" + id + "/weights/a"}}),
                 "detail"),
            "server: model_seq_id" + below);
  const Json sample = {
      {"sampling_session_id", text(sampler(s, 0, "base_model", "null"), "sampling_session_id")},
      {"seq_id", -1},
      {"prompt", {{"chunks", {{{"tokens", {1, 2, 3}}, {"type", "encoded_text"}}}}}}};
  EXPECT_EQ(text(post("/api/v1/asample", sample), "detail"), "server: seq_id" + below);
}

TEST_F(FieldsTest, APromptThatFillsTheContextIsGivenToTheEngineWhichRefusesIt) {
  const std::string id = text(sampler(session(), 0, "base_model", "null"), "sampling_session_id");
  const JsonArray tokens(static_cast<size_t>(backend_->model().max_positions), Json(1));
  const Response ack =
      post("/api/v1/asample", {{"sampling_session_id", id},
                               {"seq_id", 0},
                               {"prompt", {{"chunks", JsonArray{{{"tokens", tokens}}}}}}});
  EXPECT_TRUE(until([&] { return core_->domain().num_open() == 0; }))
      << "it asks for one token at least";
  EXPECT_EQ(outcome(ack).status, 200);
}

TEST_F(FieldsTest, ASampleThatMayMakeALongerResultThanThereMayBeIsRefusedByWhatMakesItLong) {
  service_.results.max_sample_bytes = 1000;
  const std::string id = text(
      post("/api/v1/create_sampling_session",
           {{"session_id", session()}, {"sampling_session_seq_id", 0}, {"base_model", "null"}}),
      "sampling_session_id");
  const auto sample = [&](int64_t seq_id, int64_t num_samples, int64_t top, JsonObject params) {
    return post("/api/v1/asample",
                {{"sampling_session_id", id},
                 {"seq_id", seq_id},
                 {"num_samples", num_samples},
                 {"topk_sample_logprobs", top},
                 {"prompt", {{"chunks", {{{"tokens", {1, 2}}, {"type", "encoded_text"}}}}}},
                 {"sampling_params", std::move(params)}});
  };
  const std::string end = " bytes, but max_sample_bytes is 1000; ask for less in one request";
  EXPECT_EQ(sample(0, 13, 2, {{"max_tokens", 3}}).status, 200) << "13 x 3 x 8 x (1 + 2)";
  EXPECT_EQ(text(sample(1, 14, 2, {{"max_tokens", 3}}), "detail"),
            "server: num_samples 14, max_tokens 3 and topk_sample_logprobs 2 may make a result of "
            "1008" +
                end);
  EXPECT_EQ(sample(2, 2, 0, {{"max_tokens", 1'000'000}}).status, 200) << "the room is 62";
  EXPECT_EQ(text(sample(3, 3, 0, {}), "detail"),
            "server: num_samples 3, max_tokens 62 and topk_sample_logprobs 0 may make a result of "
            "1488" +
                end);
  service_.results.max_sample_bytes = 1'000'000;
  restart();
  for (const int64_t seq_id : {0, 1, 2, 3})
    EXPECT_EQ(NumberSet(core_->domain().sampler(id)->came).contains(seq_id), seq_id % 2 == 0)
        << seq_id;
}

TEST_F(FieldsTest, AnEmptyPathOfASamplerIsNamed) {
  EXPECT_EQ(text(sampler(session(), 0, "model_path", ""), "detail"),
            "server: model_path is empty; give tinker://RUN/sampler_weights/NAME, or base_model");
}

TEST_F(FieldsTest, APathIsQuotedBeyondAByteOf0) {
  const std::string path("tinker://a\0b", 12);
  const Response told = post("/api/v1/weights_info", {{"tinker_path", path}});
  EXPECT_EQ(told.status, 404);
  EXPECT_EQ(
      text(told, "detail"),
      "server: tinker_path 'tinker://a\\0b' is not known; paths are tinker://RUN/weights/NAME "
      "and tinker://RUN/sampler_weights/NAME");
}

TEST_F(FieldsTest, ASessionIsAFewWords) {
  const Response wrong = post("/api/v1/create_session", {{"user_metadata", {{"a", 1}}}});
  EXPECT_EQ(text(wrong, "detail"),
            "server: user_metadata must be an object of texts, such as {\"name\": \"first\"}");
  const Json many = {{"user_metadata", {{"a", std::string(20'000, 'x')}}}};
  EXPECT_EQ(text(post("/api/v1/create_session", many), "detail"),
            "server: user_metadata has 20008 bytes, the limit is 16384");
}

TEST_F(FieldsTest, ALoadThatComesTwiceIsDoneOnce) {
  const std::string id = run(), s = session();
  result(post("/api/v1/save_weights", {{"model_id", id}, {"seq_id", 1}, {"path", "a"}}));
  const Json body = {
      {"session_id", s}, {"model_seq_id", 0}, {"path", "tinker://" + id + "/weights/a"}};
  const Response first = post("/api/v1/load_weights", body);
  const size_t num_runs = core_->domain().runs().size();
  const int64_t num_promises = core_->domain().num_futures();
  EXPECT_EQ(post("/api/v1/load_weights", body).body, first.body);
  EXPECT_EQ(core_->domain().runs().size(), num_runs);
  EXPECT_EQ(core_->domain().num_futures(), num_promises);
  EXPECT_EQ(text(result(first), "model_id"), s + ":train:0");
}

}  // namespace
}  // namespace twinkle::server
