// Numbers of requests whose bodies are not taken: too long, not JSON, or in another's form.
#include "twinkle/server/service_for_test.h"
#include "twinkle/server/tinker/address.h"
#include "twinkle/server/tinker/forward_backward_request.h"

namespace twinkle::server {
namespace {

using UsedUpTest = ServiceTest;

// What the server asks with of a body that begins so and is not taken.
std::string found_in(const std::string& beginning, bool is_protobuf) {
  const tinker::Form form = is_protobuf ? tinker::Form::kProtobuf : tinker::Form::kJson;
  const auto finder = tinker::address_finder(form, form);
  finder->read(beginning);
  return finder->found();
}

TEST_F(UsedUpTest, ABodyThatIsNotTakenUsesItsNumberUpThroughAStartToo) {
  go_on();
  const std::string id = run();
  const auto refused = [&](const std::string& beginning, const std::string& key) {
    Request r = request("/api/v1/forward_backward", found_in(beginning, true), key);
    r.headers["content-type"] = "application/x-protobuf";
    r.refused = refusal(413, "the body is too long");
    const Response told = answer(r);
    EXPECT_EQ(told.status, 413) << told.body;
    EXPECT_EQ(text(told, "detail"), "the body is too long");
  };
  const auto bytes = [&](int64_t seq_id) {
    return forward_backward_bytes(id, seq_id, "cross_entropy");
  };
  refused(bytes(1).substr(0, 80), "tml-b");  // another's
  refused("", "tml-a");
  const Response stepped = step(id, 2);
  refused(bytes(1).substr(0, 80), "tml-a");
  refused(bytes(1).substr(0, 80), "tml-a");
  const std::string error = text(failure(stepped), "error");
  EXPECT_NE(error.find("the body is too long"), std::string::npos) << error;
  EXPECT_EQ(done(id).size(), 0U);
  close();
  open();
  go_on();
  EXPECT_EQ(text(failure(stepped), "error"), error);
  EXPECT_NE(text(train(id, 1), "detail").find("seq_id 1 of"), std::string::npos) << "was refused";
  const Response next = train(id, 3), ends = step(id, 4);
  refused(bytes(3).substr(0, 80), "tml-a");  // which has come
  EXPECT_EQ(result(next).status, 200);
  EXPECT_TRUE(parse(result(ends)).contains("metrics"));
}

TEST_F(UsedUpTest, LongJsonThatIsNotTakenUsesItsNumberUp) {
  const std::string id = run();
  const auto refused = [&](const char* route, const std::string& beginning) {
    Request r = request(route, found_in(beginning, false), "tml-a");
    r.refused = refusal(413, "the body is too long");
    EXPECT_EQ(text(answer(r), "detail"), "the body is too long");
  };
  const std::string model = R"("model_id": ")" + id + R"(")";
  const char* const step_route = "/api/v1/optim_step";
  // Not of the object itself, not whole, or nobody's.
  refused(step_route, R"({"x": {"seq_id": 2, )" + model + R"(, "y": 1}, "z": "a)");
  refused(step_route, R"({"x": "\"}, ", )" + model + R"(, "seq_id": 2)");
  refused(step_route, R"({"model_id": "another", "seq_id": 2, "x)");
  refused(step_route, R"([{"seq_id": 2}, 1)");
  EXPECT_EQ(train(id, 1).status, 200);
  const Response next = step(id, 5);
  refused(step_route, R"({"x": "a\", {[", )" + model + R"(, "seq_id": 2, "adam_params": {"x": [)");
  refused("/api/v1/save_weights", "{" + model + R"(, "seq_id": 3, "path": "a)");
  refused("/api/v1/save_weights_for_sampler", R"({"seq_id": 4, )" + model + ",");
  EXPECT_TRUE(parse(result(next)).contains("metrics")) << "with the gradients of 1";
  EXPECT_EQ(text(step(id, 2), "detail"), "server: seq_id 2 of '" + id + "' was refused");
}

// As the SDK's load_state does: it names a run that its route does not touch.
TEST_F(UsedUpTest, ALoadIntoARunIsRefusedAndUsesItsNumberUp) {
  go_on();
  const std::string id = run(), of = session();
  result(post("/api/v1/save_weights", {{"model_id", id}, {"seq_id", 1}, {"path", "a"}}));
  const std::string path = "tinker://" + id + "/weights/";
  const auto load = [&](int64_t seq_id, const std::string& name, const char* key = "tml-a") {
    return post("/api/v1/load_weights",
                {{"session_id", of}, {"model_id", id}, {"seq_id", seq_id}, {"path", path + name}},
                key)
        .status;
  };
  EXPECT_EQ(load(2, "a", "tml-b"), 404) << "another's run";
  result(train(id, 2));
  EXPECT_EQ(load(3, "b"), 404) << "no such path";
  EXPECT_EQ(load(4, "a"), 422) << "it is not a new run";
  const Json external = {{"model_id", id}, {"seq_id", 5}, {"path", "a"}};
  EXPECT_EQ(post("/api/v1/save_weights_external", external, "tml-b").status, 404);
  EXPECT_NE(text(post("/api/v1/save_weights_external", external), "detail").find("is not there"),
            std::string::npos);
  const Response stepped = step(id, 6);
  EXPECT_TRUE(parse(result(stepped)).contains("metrics"));
  EXPECT_EQ(load(6, "b"), 404) << "which has come";
  close();
  open();
  go_on();
  result(train(id, 7));
  for (int64_t seq_id = 3; seq_id <= 5; ++seq_id)
    EXPECT_EQ(text(train(id, seq_id), "detail"),
              "server: seq_id " + std::to_string(seq_id) + " of '" + id + "' was refused");
}

TEST_F(UsedUpTest, ALoadIntoARunWhoseBodyIsLongOrNotTakenUsesItsNumberUpToo) {
  go_on();
  const std::string id = run(), model = R"({"model_id": ")" + id + R"(", "seq_id": )";
  const auto load = [&](const std::string& body, const char* key = "tml-a") {
    return answer(request("/api/v1/load_weights", body, key)).status;
  };
  const std::string of_unknown =
      model + R"(1, "path": "tinker://x/weights/a", "x": ")" + std::string(65 << 10, 'x') + "\"}";
  EXPECT_EQ(load(of_unknown, "tml-b"), 404) << "another's run";
  result(train(id, 1));
  EXPECT_EQ(load(of_unknown), 404) << "which has come";
  std::string next = of_unknown;
  next.replace(model.size(), 1, "2");
  EXPECT_EQ(load(next), 404);
  EXPECT_EQ(load(model + "3, \"path\": \"a"), 422);
  Request protobuf = request("/api/v1/load_weights", forward_backward_bytes(id, 4, "x"), "tml-a");
  protobuf.headers["content-type"] = "application/x-protobuf";
  EXPECT_EQ(answer(protobuf).status, 422);
  Request cut = request("/api/v1/load_weights", found_in(model + "5, ", false), "tml-a");
  cut.refused = refusal(413, "the body is too long");
  EXPECT_EQ(answer(cut).status, 413);
  EXPECT_EQ(load("{\"session_id\": "), 422) << "which names no run";
  EXPECT_TRUE(parse(result(step(id, 6))).contains("metrics")) << "with the gradients of 1";
  close();
  open();
  go_on();
  for (int64_t seq_id = 2; seq_id <= 5; ++seq_id)
    EXPECT_EQ(text(train(id, seq_id), "detail"),
              "server: seq_id " + std::to_string(seq_id) + " of '" + id + "' was refused");
}

TEST_F(UsedUpTest, JsonThatCannotBeReadUsesItsNumberUpThroughAStartToo) {
  go_on();
  const std::string id = run(), model = R"({"model_id": ")" + id + R"(", "seq_id": )";
  const auto post_text = [&](const char* route, const std::string& body) {
    return answer(request(route, body, "tml-a"));
  };
  const char* const step_route = "/api/v1/optim_step";
  for (const std::string& nobodys : {"{\"x\": NaN, " + model.substr(1) + "1}", std::string("[1"),
                                     std::string(R"({"model_id": "another", "seq_id": 1, )")}) {
    const Response told = post_text(step_route, nobodys);
    EXPECT_EQ(told.status, 422) << told.body;
    EXPECT_NE(text(told, "detail").find("json: the body line 1"), std::string::npos);
  }
  const Response next = step(id, 3);
  EXPECT_EQ(post_text(step_route, model + "1, \"adam_params\": {\"learning_rate\": NaN}}").status,
            422);
  const Response told = post_text("/api/v1/save_weights", model + "2, \"path\": \"a");
  EXPECT_EQ(told.status, 422);
  EXPECT_NE(text(told, "detail").find("json: the body line 1"), std::string::npos);
  EXPECT_TRUE(parse(result(next)).contains("metrics"));
  close();
  open();
  go_on();
  EXPECT_EQ(text(step(id, 1), "detail"), "server: seq_id 1 of '" + id + "' was refused");
  EXPECT_EQ(text(step(id, 2), "detail"), "server: seq_id 2 of '" + id + "' was refused");
}

TEST_F(UsedUpTest, TheReasonOfANumberThatWasUsedUpIsTheOneThatWasTold) {
  const std::string id = run(), model = R"({"model_id": ")" + id + R"(", )";
  int64_t seq_id = 2;  // behind one that does not come: until then reasons are kept
  for (const char* route : {"optim_step", "save_weights", "save_weights_for_sampler"}) {
    Request r =
        request(std::string("/api/v1/") + route,
                found_in(model + R"("seq_id": )" + std::to_string(seq_id) + ",", false), "tml-a");
    r.refused = refusal(413, "the body is too long");
    EXPECT_EQ(answer(r).status, 413);
    EXPECT_EQ(services_->runs.find(id)->refused.at(seq_id++).why, "server: the body is too long");
  }
}

TEST_F(UsedUpTest, ABodyInTheFormOfAnotherRouteUsesItsNumberUpThroughAStartToo) {
  go_on();
  const std::string id = run();
  const auto sent = [&](const char* route, const std::string& body, const std::string& type) {
    Request r = request(std::string("/api/v1/") + route, body, "tml-a");
    r.headers["content-type"] = type;
    const Response told = answer(r);
    EXPECT_EQ(told.status, 422) << told.body;
    return text(told, "detail");
  };
  // As the SDK sent it before 0.25, its number behind a datum that has one, too.
  const std::string json =
      R"({"forward_backward_input": {"data": [{"model_id": "x", "seq_id": 3}],)"
      R"("loss_fn": "cross_entropy"}, "model_id": ")" +
      id + R"(", "seq_id": 1})";
  const Response stepped = step(id, 2);
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(sent("forward_backward", json, "application/json"),
              "server: the Content-Type of the body is 'application/json', "
              "/api/v1/forward_backward takes application/x-protobuf alone");
  const std::string error = text(failure(stepped), "error");
  EXPECT_NE(error.find("a request of its window failed"), std::string::npos) << error;
  EXPECT_NE(error.find("seq_id 1: server: the Content-Type"), std::string::npos) << error;
  const Response saved =
      post("/api/v1/save_weights", {{"model_id", id}, {"seq_id", 5}, {"path", "a"}});
  EXPECT_EQ(sent("optim_step", forward_backward_bytes(id, 3, "x"), "application/x-protobuf"),
            "server: the Content-Type of the body is 'application/x-protobuf', "
            "/api/v1/optim_step takes application/json alone");
  // What tells no number that can be: it uses none up.
  for (const char* seq_id : {"\"4\"", "4.5", "1e999", "4294967300", "-4", "null", "[4]"})
    sent("forward_backward", R"({"model_id": ")" + id + R"(", "seq_id": )" + seq_id + "}", "");
  sent("forward_backward", forward_backward_bytes(id, 4, "x"), "application/json");
  sent("optim_step", R"({"model_id": ")" + id + R"(", "seq_id": 4})", "application/x-protobuf");
  close();
  open();
  go_on();
  EXPECT_EQ(text(failure(stepped), "error"), error);
  for (const int64_t seq_id : {1, 3})
    EXPECT_EQ(text(train(id, seq_id), "detail"),
              "server: seq_id " + std::to_string(seq_id) + " of '" + id + "' was refused");
  EXPECT_EQ(result(train(id, 4)).status, 200);
  EXPECT_TRUE(parse(result(saved)).contains("path"));
}

TEST_F(UsedUpTest, SuchABodyThatAnEarlierBuildWroteDownUsesNoneUp) {
  const std::string id = run();
  replay(0,
         {.method = "POST",
          .path = "/api/v1/forward_backward",
          .content_type = "application/json",
          .owner = services_->runs.find(id)->owner,
          .body = R"({"model_id": ")" + id + R"(", "seq_id": 1})"},
         *services_);
  EXPECT_EQ(result(train(id, 1)).status, 200) << "as then";
}

TEST_F(UsedUpTest, ABodyOfMoreValuesThanAPromptMayHaveIsRefusedByThatAndUsesItsNumberUp) {
  const std::string id = run();
  const int64_t most = 4 * backend_->model().max_positions + 65536;
  const auto stepped = [&](int64_t seq_id, int64_t num_values) {
    JsonArray others(static_cast<size_t>(num_values - 6), Json(1));  // and what is next to them
    return post("/api/v1/optim_step", {{"model_id", id},
                                       {"seq_id", seq_id},
                                       {"adam_params", {{"learning_rate", 0.1}}},
                                       {"x", std::move(others)}});
  };
  const Response refused = stepped(1, most + 1);
  EXPECT_EQ(refused.status, 422);
  EXPECT_EQ(
      text(refused, "detail"),
      "server: the body has more than 65792 values of JSON, four for each token that a prompt "
      "may have and 65536 more; send fewer");
  EXPECT_TRUE(parse(result(stepped(2, most))).contains("metrics"));
  EXPECT_EQ(text(step(id, 1), "detail"), "server: seq_id 1 of '" + id + "' was refused");
}

// The SDK goes on with the next number after five minutes of 503.
class PutOffTest : public ServiceTest {
 protected:
  PutOffTest() {
    options_.promises.max_open = 4;
    open();
    go_on();
  }
  // Of those that wait for a number there are as many as may be, until the session ends.
  std::string full() {
    const std::string s = session();
    const std::string id = text(result(post("/api/v1/create_model", model(s))), "model_id");
    for (int64_t seq_id = 2; seq_id <= 5; ++seq_id) EXPECT_EQ(step(id, seq_id).status, 200);
    return s;
  }
  void finish(const std::string& s) {
    EXPECT_EQ(post("/api/v1/sessions/" + s + "/finish", JsonObject{}).status, 200);
  }
  int64_t missing(const std::string& id) { return services_->runs.find(id)->first_missing; }
};

TEST_F(PutOffTest, ANumberThatDoesNotComeAgainAfter503IsUsedUpThroughAStartToo) {
  const std::string id = run(), quiet = run(), s = full();
  EXPECT_EQ(train(id, 1).status, 503);
  loop_->pass(std::chrono::minutes(5));
  EXPECT_EQ(train(id, 1).status, 503);
  finish(s);
  const Response second = train(id, 2), third = step(id, 3), never = step(quiet, 2);
  loop_->pass(PutOff::kGivenUpAfter - std::chrono::seconds(1));
  EXPECT_EQ(missing(id), 1) << "it is told again";
  loop_->pass(std::chrono::seconds(2));
  EXPECT_EQ(result(second).status, 200);
  const std::string error = text(failure(third), "error");
  EXPECT_NE(
      error.find("seq_id 1: server: it was answered 503 and did not come again for 6 minutes"),
      std::string::npos)
      << error;
  EXPECT_EQ(missing(quiet), 1) << "it was not told to come again";
  EXPECT_EQ(never.status, 200);
  close();
  open();
  go_on();
  EXPECT_EQ(text(failure(third), "error"), error);
  EXPECT_EQ(text(train(id, 1), "detail"), "server: seq_id 1 of '" + id + "' was refused");
  result(train(id, 4));
  EXPECT_TRUE(parse(result(step(id, 5))).contains("metrics"));
}

TEST_F(PutOffTest, ANumberThatIsMissingAfterAStartIsUsedUpUnlessItComes) {
  const std::string id = run(), other = run(), last = run(), s = full();
  EXPECT_EQ(train(id, 1).status, 503);
  EXPECT_EQ(train(other, 1).status, 503);
  EXPECT_EQ(train(last, 1).status, 503);
  finish(s);
  const Response second = train(id, 2), third = step(id, 3), behind = step(other, 2);
  close();
  open();
  go_on();
  put_off_missing(*services_);
  loop_->pass(PutOff::kGivenUpAfter - std::chrono::seconds(1));
  EXPECT_EQ(missing(id), 1) << "its client may be there";
  EXPECT_EQ(result(train(other, 1)).status, 200);
  EXPECT_TRUE(parse(result(behind)).contains("metrics"));
  loop_->pass(std::chrono::seconds(2));
  EXPECT_EQ(result(second).status, 200);
  const std::string error = text(failure(third), "error");
  EXPECT_NE(error.find("seq_id 1: server: it did not come, after a start of the server, for 6 "
                       "minutes"),
            std::string::npos)
      << error;
  result(train(id, 4));
  EXPECT_TRUE(parse(result(step(id, 5))).contains("metrics"));
  EXPECT_EQ(missing(last), 1) << "nothing waits for it";
}

TEST_F(PutOffTest, ANumberThatComesAgainOrHasNothingBehindItIsNotUsedUp) {
  const std::string id = run(), last = run(), s = full();
  EXPECT_EQ(train(id, 1).status, 503);
  EXPECT_EQ(step(last, 1).status, 503);
  finish(s);
  const Response first = train(id, 1), second = step(id, 2);
  EXPECT_EQ(result(first).status, 200);
  EXPECT_TRUE(parse(result(second)).contains("metrics"));
  loop_->pass(2 * PutOff::kGivenUpAfter);
  EXPECT_EQ(missing(last), 1);
  const Response behind = train(last, 2);
  loop_->pass(PutOff::kAgain);
  EXPECT_EQ(result(behind).status, 200);
}

TEST_F(PutOffTest, ANumberForWhichOthersWaitIsTakenThoughTheyAreAsManyAsMayBe) {
  const std::string id = run();
  std::vector<Response> acks;
  for (const int64_t seq_id : {3, 4, 6, 7}) acks.push_back(step(id, seq_id));
  EXPECT_EQ(step(id, 8).status, 503);
  EXPECT_EQ(train(id, 2).status, 503) << "nothing waits for it alone";
  for (const int64_t seq_id : {1, 2, 5}) acks.push_back(train(id, seq_id));
  for (const Response& ack : acks) EXPECT_EQ(result(ack).status, 200);
}

TEST_F(PutOffTest, ANumberBehindWhichRefusedOnesAloneWaitHasNoMoreRoomThanOthers) {
  const std::string id = run(), s = full();
  EXPECT_EQ(post("/api/v1/optim_step", {{"model_id", id}, {"seq_id", 2}}).status, 422);
  EXPECT_EQ(train(id, 1).status, 503) << "nobody waits for it";
  finish(s);
  const Response first = train(id, 1), third = step(id, 3);
  EXPECT_EQ(result(first).status, 200);
  EXPECT_TRUE(parse(result(third)).contains("metrics"));
}

TEST_F(PutOffTest, AForwardLeavesItsWindowWhole) {
  const std::string id = run(), s = full();
  Request forward =
      request("/api/v1/forward_backward",
              tinker::bytes_of({.model_id = id, .seq_id = 1, .forward_only = true}), "tml-a");
  forward.headers["content-type"] = "application/x-protobuf";
  forward.body += forward_backward_bytes(id, 1, "cross_entropy");
  EXPECT_EQ(answer(forward).status, 503);
  finish(s);
  const Response second = step(id, 2);
  loop_->pass(PutOff::kGivenUpAfter);
  EXPECT_TRUE(parse(result(second)).contains("metrics"));
}

}  // namespace
}  // namespace twinkle::server
