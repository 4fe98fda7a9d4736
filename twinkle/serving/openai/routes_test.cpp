// OpenAI's routes on the core: whose models they list, and the form of their errors.
#include "twinkle/serving/openai/routes.h"

#include <algorithm>

#include "twinkle/serving/api/service_for_test.h"

namespace twinkle::server {
namespace {

class OpenAiRoutesTest : public ServiceTest {
 protected:
  std::vector<std::string> models(const std::string& key) {
    std::vector<std::string> out;
    const JsonObject listed = parse(get("/v1/models", key));
    for (const Json& model : listed.at("data").as_array())
      out.emplace_back(model.at("id").as_string());
    return out;
  }
  JsonObject error(const Response& response, int status) {
    EXPECT_EQ(response.status, status) << response.body;
    return parse(response).at("error").as_object();
  }
};

TEST_F(OpenAiRoutesTest, TheCallersOwnCheckpointsAreModelsAndThoseThatArePublished) {
  const std::string id = run();
  train(id, 1);
  result(
      post("/api/v1/save_weights_for_sampler", {{"model_id", id}, {"seq_id", 2}, {"path", "a"}}));
  const std::string path = "tinker://" + id + "/sampler_weights/a";
  EXPECT_EQ(models("tml-a"), (std::vector<std::string>{"null", path}));
  EXPECT_EQ(models("tml-b"), (std::vector<std::string>{"null"}));
  post("/api/v1/training_runs/" + id + "/checkpoints/sampler_weights/a/publish", JsonObject{});
  EXPECT_EQ(models("tml-b"), (std::vector<std::string>{"null", path}));
}

TEST_F(OpenAiRoutesTest, ErrorsHaveTheFormThatItsClientsRead) {
  const Json chat{{"model", "none"},
                  {"messages", JsonArray{JsonObject{{"role", "user"}, {"content", "a"}}}}};
  EXPECT_EQ(error(post("/v1/chat/completions", chat), 404).at("code"), "model_not_found");
  EXPECT_NE(error(post("/v1/chat/completions", {{"model", "null"}}), 400).at("message"), "");
  EXPECT_EQ(error(post("/v1/completions", {{"model", "null"}, {"prompt", "a"}, {"n", 0}}), 400)
                .at("param"),
            "n");
}

}  // namespace
}  // namespace twinkle::server
