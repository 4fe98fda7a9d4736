// Numbers of requests whose bodies are not taken: too long, not JSON, or in another's form.
#include "twinkle/server/tinker/address.h"
#include "twinkle/serving/api/service_for_test.h"

namespace twinkle::server {
namespace {

using UsedUpTest = ServiceTest;

// The server keeps this of a body that begins so and is not taken.
std::string found_in(const std::string& beginning, bool is_protobuf) {
  const tinker::Form form = is_protobuf ? tinker::Form::kProtobuf : tinker::Form::kJson;
  const auto finder = tinker::address_finder(form, tinker::Form::kProtobuf);
  finder->read(beginning);
  return finder->found();
}

TEST_F(UsedUpTest, ABodyThatIsNotTakenUsesItsNumberUpThroughAStartToo) {
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
  restart();
  EXPECT_EQ(text(failure(stepped), "error"), error);
  EXPECT_EQ(text(failure(train(id, 1)), "error"), "server: the body is too long");
  const Response next = train(id, 3), ends = step(id, 4);
  refused(bytes(3).substr(0, 80), "tml-a");  // it has come
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
  EXPECT_EQ(text(failure(step(id, 2)), "error"), "server: the body is too long");
}

// As the SDK's load_state does.
TEST_F(UsedUpTest, ALoadIntoARunTakesItsPlaceAndAWrongOneUsesItsNumberUp) {
  const std::string id = run(), theirs = run("tml-b");
  const Json save = {{"model_id", theirs}, {"seq_id", 1}, {"path", "a"}};
  const std::string foreign =
      text(result(post("/api/v1/save_weights", save, "tml-b"), "tml-b"), "path");
  result(train(id, 1));
  result(step(id, 2));
  result(post("/api/v1/save_weights", {{"model_id", id}, {"seq_id", 3}, {"path", "a"}}));
  const std::string path = "tinker://" + id + "/weights/";
  const auto load = [&](int64_t seq_id, const std::string& from, const char* key = "tml-a") {
    return post("/api/v1/load_weights",
                {{"model_id", id}, {"seq_id", seq_id}, {"path", from}, {"optimizer", true}}, key);
  };
  EXPECT_EQ(load(4, path + "a", "tml-b").status, 404) << "another's run";
  result(train(id, 4));
  const Response loaded = load(5, path + "a");
  EXPECT_EQ(load(5, path + "b").body, loaded.body) << "which has come";
  EXPECT_EQ(text(result(loaded), "path"), path + "a");
  EXPECT_EQ(text(result(loaded), "model_id"), id);
  const std::string unknown = text(failure(load(6, path + "b")), "error");
  EXPECT_TRUE(unknown.starts_with("server: path '" + path + "b' is not known")) << unknown;
  EXPECT_NE(text(failure(load(7, foreign)), "error").find("is not known"), std::string::npos);
  const Json external = {{"model_id", id}, {"seq_id", 8}, {"path", "a"}};
  EXPECT_EQ(post("/api/v1/save_weights_external", external, "tml-b").status, 404);
  const Response none = post("/api/v1/save_weights_external", external);
  EXPECT_NE(text(failure(none), "error").find("is not there"), std::string::npos);
  restart();
  EXPECT_EQ(text(failure(load(6, path + "a")), "error"), unknown);
  EXPECT_TRUE(parse(result(step(id, 9))).contains("metrics"));
}

TEST_F(UsedUpTest, ALoadIntoARunWhoseBodyIsLongOrNotTakenUsesItsNumberUpToo) {
  const std::string id = run(), model = R"({"model_id": ")" + id + R"(", "seq_id": )";
  const auto load = [&](const std::string& body, const char* key = "tml-a") {
    return answer(request("/api/v1/load_weights", body, key)).status;
  };
  std::string of_unknown =
      model + R"(1, "path": "tinker://x/weights/a", "x": ")" + std::string(65 << 10, 'x') + "\"}";
  EXPECT_EQ(load(of_unknown, "tml-b"), 404) << "another's run";
  result(train(id, 1));
  of_unknown.replace(model.size(), 1, "2");
  failure(answer(request("/api/v1/load_weights", of_unknown, "tml-a")));
  EXPECT_EQ(load(model + "3, \"path\": \"a"), 422);
  Request protobuf = request("/api/v1/load_weights", forward_backward_bytes(id, 4, "x"), "tml-a");
  protobuf.headers["content-type"] = "application/x-protobuf";
  EXPECT_EQ(answer(protobuf).status, 422);
  Request cut = request("/api/v1/load_weights", found_in(model + "5, ", false), "tml-a");
  cut.refused = refusal(413, "the body is too long");
  EXPECT_EQ(answer(cut).status, 413);
  EXPECT_EQ(load("{\"session_id\": "), 422) << "which names no run";
  EXPECT_TRUE(parse(result(step(id, 6))).contains("metrics")) << "with the gradients of 1";
  restart();
  for (int64_t seq_id = 2; seq_id <= 5; ++seq_id) failure(train(id, seq_id));
}

TEST_F(UsedUpTest, JsonThatCannotBeReadUsesItsNumberUpThroughAStartToo) {
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
  restart();
  for (const int64_t seq_id : {1, 2})
    EXPECT_TRUE(text(failure(step(id, seq_id)), "error").starts_with("json: the body line 1"));
}

TEST_F(UsedUpTest, ABodyInTheFormOfAnotherRouteUsesItsNumberUpThroughAStartToo) {
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
  // A body without a number that can be uses none up.
  for (const char* seq_id : {"\"4\"", "4.5", "1e999", "4294967300", "-4", "null", "[4]"})
    sent("forward_backward", R"({"model_id": ")" + id + R"(", "seq_id": )" + seq_id + "}", "");
  sent("forward_backward", forward_backward_bytes(id, 4, "x"), "application/json");
  sent("optim_step", R"({"model_id": ")" + id + R"(", "seq_id": 4})", "application/x-protobuf");
  restart();
  EXPECT_EQ(text(failure(stepped), "error"), error);
  for (const int64_t seq_id : {1, 3})
    EXPECT_TRUE(text(failure(train(id, seq_id)), "error").starts_with("server: the Content-Type"));
  EXPECT_EQ(result(train(id, 4)).status, 200);
  EXPECT_TRUE(parse(result(saved)).contains("path"));
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
  EXPECT_EQ(text(failure(step(id, 1)), "error"), text(refused, "detail"));
}

TEST_F(UsedUpTest, AFieldOfASaveThatIsWrongUsesItsNumberUp) {
  const std::string id = run();
  int64_t seq_id = 0;
  for (const auto& [field, value] :
       std::vector<std::pair<const char*, Json>>{{"path", 5},
                                                 {"user_metadata", "x"},
                                                 {"ttl_seconds", "1"},
                                                 {"ttl_seconds", -1},
                                                 {"ttl_seconds", INT64_MAX},
                                                 {"overwrite", 1}})
    for (const char* route : {"/api/v1/save_weights", "/api/v1/save_weights_for_sampler"}) {
      JsonObject body{{"model_id", id}, {"seq_id", ++seq_id}, {"path", "a"}};
      body[field] = value;
      const Response told = failure(post(route, body));
      EXPECT_NE(text(told, "error").find(field == std::string("path") ? "path" : field),
                std::string::npos)
          << told.body;
      EXPECT_EQ(text(told, "category"), "user");
    }
  EXPECT_TRUE(parse(result(step(id, seq_id + 1))).contains("metrics"));
}

}  // namespace
}  // namespace twinkle::server
