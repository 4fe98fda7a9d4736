// Names of checkpoints, samplers and samples over Tinker's wire, on a null model.
#include "twinkle/serving/api/service_for_test.h"

namespace twinkle::server {
namespace {

using SavesTest = ServiceTest;

TEST_F(SavesTest, ARetriedUnnamedSaveIsTheFirstThoughItDrawsAnotherNumberOfItsSampler) {
  const std::string id = run();
  const auto save = [&](int64_t number) {
    return post("/api/v1/save_weights_for_sampler",
                {{"model_id", id}, {"seq_id", 1}, {"sampling_session_seq_id", number}});
  };
  const Response first = save(0);
  EXPECT_EQ(save(1).body, first.body);
  const std::string sampler = text(result(first), "sampling_session_id");
  EXPECT_EQ(text(result(save(2)), "sampling_session_id"), sampler);
  EXPECT_EQ(core_->domain().samplers().size(), 1U);
  EXPECT_EQ(core_->domain().run(id)->num_published, 1);
}

TEST_F(SavesTest, APromptWithoutTokensAndParametersThatAreNoObjectAreNamed) {
  const std::string s = session();
  const std::string id =
      text(post("/api/v1/create_sampling_session",
                {{"session_id", s}, {"sampling_session_seq_id", 0}, {"base_model", "null"}}),
           "sampling_session_id");
  EXPECT_EQ(text(post("/api/v1/asample", {{"sampling_session_id", id},
                                          {"seq_id", 0},
                                          {"prompt", {{"chunks", {{{"type", "encoded_text"}}}}}}}),
                 "detail"),
            "server: prompt has a chunk whose tokens are missing; give an array");
  for (const Json& params : {Json(JsonArray{}), Json(5)})
    EXPECT_EQ(text(post("/api/v1/asample", {{"sampling_session_id", id},
                                            {"seq_id", 0},
                                            {"prompt", {{"chunks", {{{"tokens", {1, 2}}}}}}},
                                            {"sampling_params", params}}),
                   "detail"),
              "server: sampling_params must be an object, such as {\"max_tokens\": 16}");
}

TEST_F(SavesTest, NamesOfCheckpointsLeaveRoomForWhatIsAddedToThem) {
  const std::string id = run();
  const auto save = [&](int64_t seq_id, size_t length) {
    return post("/api/v1/save_weights",
                {{"model_id", id}, {"seq_id", seq_id}, {"path", std::string(length, 'a')}});
  };
  EXPECT_EQ(save(1, 200).status, 200);
  const std::string error = text(failure(save(2, 201)), "error");
  EXPECT_NE(error.find("must be 1 to 200 letters"), std::string::npos) << error;
}

TEST_F(SavesTest, ANameMustNotBeginWithADotWhichUsesItsNumberUpThroughAStartToo) {
  const std::string id = run(), name = ".x.partial-0123456789ab";
  const Json body = {{"model_id", id}, {"seq_id", 1}, {"path", name}};
  const Response wrong = post("/api/v1/save_weights", body);
  const std::string why =
      "server: the name '" + name + "' of a checkpoint must not begin with '.'; choose another";
  EXPECT_EQ(text(failure(wrong), "error"), why);
  restart();
  EXPECT_EQ(post("/api/v1/save_weights", body).body, wrong.body) << "its number is used up";
  EXPECT_EQ(text(failure(wrong), "error"), why);
  EXPECT_TRUE(parse(result(step(id, 2))).contains("metrics"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "checkpoints" / id / "weights" / name));
}

TEST_F(SavesTest, ANameIsTakenFromTheMomentThatItsSaveIsAcceptedUntilThatFails) {
  std::atomic<bool> go = false, fails = true;
  executor_->on_write = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (fails) fail(Code::kInternal, "null: the disk is full");
  };
  const std::string id = run();
  const auto save = [&](int64_t seq_id, const std::string& kind = "save_weights") {
    return post("/api/v1/" + kind, {{"model_id", id}, {"seq_id", seq_id}, {"path", "a"}});
  };
  const Response first = save(1);
  EXPECT_EQ(text(failure(save(2)), "error"),
            "server: the checkpoint 'tinker://" + id +
                "/weights/a' exists, or is being saved; choose another name, or give "
                "overwrite=True");
  const Response other = save(3, "save_weights_for_sampler");
  EXPECT_EQ(save(3, "save_weights_for_sampler").body, other.body) << "it is the same request";
  EXPECT_EQ(text(failure(save(4, "save_weights_for_sampler")), "error"),
            "server: the checkpoint 'tinker://" + id +
                "/sampler_weights/a' exists, or is being saved; choose another name");
  go = true;
  EXPECT_EQ(text(failure(first), "error"), "null: the disk is full");
  failure(other);
  fails = false;
  EXPECT_TRUE(parse(result(save(5))).contains("path"));
  failure(save(6));
}

TEST_F(SavesTest, ADiskThatRefusesASaveIsTheServersFailure) {
  executor_->on_write = [] { fail(Code::kInternal, "null: the disk is full"); };
  const std::string id = run();
  const Response told =
      failure(post("/api/v1/save_weights", {{"model_id", id}, {"seq_id", 1}, {"path", "a"}}));
  EXPECT_EQ(text(told, "error"), "null: the disk is full");
  EXPECT_EQ(text(told, "category"), "server");
}

TEST_F(SavesTest, ASamplerOfTheBaseModelAnswersAndARetryIsTheSameRequest) {
  const std::string s = session();
  const std::string id =
      text(post("/api/v1/create_sampling_session",
                {{"session_id", s}, {"sampling_session_seq_id", 0}, {"base_model", "null"}}),
           "sampling_session_id");
  Json body = {{"sampling_session_id", id},
               {"seq_id", 0},
               {"num_samples", 2},
               {"prompt", {{"chunks", {{{"tokens", {1, 2, 3}}, {"type", "encoded_text"}}}}}},
               {"sampling_params", {{"max_tokens", 3}}}};
  const Response ack = post("/api/v1/asample", body);
  EXPECT_EQ(post("/api/v1/asample", body).body, ack.body);
  EXPECT_EQ(result(ack).content_type, "application/x-protobuf");
  EXPECT_EQ(parse(ack).at("sample_sequence_ids").as_array().size(), 2U);
  body.as_object()["num_samples"] = 3;
  EXPECT_EQ(post("/api/v1/asample", body).body, ack.body) << "the first's ids";
}

TEST_F(SavesTest, ASamplerThatIsMadeTwiceIsOne) {
  const std::string s = session();
  const auto make = [&](int64_t number, const char* name) {
    return post("/api/v1/create_sampling_session",
                {{"session_id", s}, {"sampling_session_seq_id", number}, {"base_model", name}});
  };
  const Response first = make(0, "null");
  EXPECT_EQ(first.status, 200) << first.body;
  EXPECT_EQ(make(0, "null").body, first.body);
  EXPECT_EQ(make(0, "another").body, first.body) << "whatever the retry says";
  EXPECT_NE(make(1, "null").body, first.body);
  EXPECT_EQ(core_->domain().samplers().size(), 2U);
}

TEST_F(SavesTest, ASampleForWhichTheEngineHasNoRoomIs429) {
  open({.max_queued = 2});
  go_on();
  std::atomic<bool> go = false;
  executor_->on_step = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const std::string id = text(
      post("/api/v1/create_sampling_session",
           {{"session_id", session()}, {"sampling_session_seq_id", 0}, {"base_model", "null"}}),
      "sampling_session_id");
  const auto sample = [&](int64_t seq) {
    return post("/api/v1/asample",
                {{"sampling_session_id", id},
                 {"seq_id", seq},
                 {"prompt", {{"chunks", {{{"tokens", {1, 2}}, {"type", "encoded_text"}}}}}},
                 {"sampling_params", {{"max_tokens", 2}}}});
  };
  std::vector<Response> acks;
  Response last;
  for (int64_t seq = 0; seq < 5 && (last = sample(seq)).status == 200; ++seq) acks.push_back(last);
  EXPECT_EQ(last.status, 429) << last.body;
  go = true;
  for (const Response& ack : acks) EXPECT_EQ(result(ack).status, 200);
  EXPECT_EQ(result(sample(std::ssize(acks))).status, 200) << "its number is not used up";
}

}  // namespace
}  // namespace twinkle::server
