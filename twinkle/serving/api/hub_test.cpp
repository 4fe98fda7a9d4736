// The hub's read paths, as huggingface_hub asks for them. tests/service has the real client.
#include <fstream>

#include "twinkle/serving/api/service_for_test.h"

namespace twinkle::server {
namespace {

class HubTest : public ServiceTest {
 protected:
  HubTest() {
    backend_->facts.directory = folder_.path();
    backend_->facts.names = {"made/up", "a/b/variant", "plain"};
    write("tokenizer.json", "{}");
    write("config.json", R"({"a": 1})");
    write("model.safetensors", "weights");
    write("notes.txt", "private");
  }

  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
  }
  static std::string header(const Response& response, const std::string& name) {
    for (const auto& [key, value] : response.headers)
      if (key == name) return value;
    return "";
  }

  const ScratchDir folder_;
};

TEST_F(HubTest, GivesTokenizerFilesUnderEveryNameOfTheModel) {
  for (const char* id : {"made/up", "a/b", "plain"}) {
    const Response file = get("/hf/" + std::string(id) + "/resolve/main/config.json");
    EXPECT_EQ(file.status, 200) << id << file.body;
    EXPECT_EQ(file.body, R"({"a": 1})");
    EXPECT_EQ(header(file, "X-Repo-Commit").size(), 40);
    EXPECT_NE(header(file, "ETag"), "");
  }
}

TEST_F(HubTest, AFileIsReadOnceAndAllWhoAskAreSentTheSameBytes) {
  const Response one = get("/hf/made/up/resolve/main/tokenizer.json");
  const Response other = get("/hf/plain/resolve/v2/tokenizer.json");
  ASSERT_TRUE(one.shared);
  EXPECT_EQ(one.shared, other.shared);
  EXPECT_NE(one.shared, get("/hf/plain/resolve/main/config.json").shared);
}

TEST_F(HubTest, ListsTheSameFilesAndNoOthers) {
  const Response info = get("/hf/api/models/made/up");
  EXPECT_EQ(boost::json::serialize(parse(info).at("siblings")),
            R"([{"rfilename":"config.json"},{"rfilename":"tokenizer.json"}])");
  EXPECT_EQ(get("/hf/api/models/made/up/revision/v1").body, info.body);
  const Json tree = parse_json(get("/hf/api/models/made/up/tree/main").body, "the tree");
  ASSERT_EQ(tree.as_array().size(), 2);
  EXPECT_EQ(tree.at(1).at("path"), "tokenizer.json");
  EXPECT_EQ(tree.at(1).at("size"), 2);
}

TEST_F(HubTest, AChangedFileHasAnotherTagAndCommit) {
  const Response before = get("/hf/plain/resolve/main/config.json");
  write("config.json", R"({"a": 2})");  // the length stays
  std::filesystem::last_write_time(
      folder_ / "config.json",
      std::filesystem::last_write_time(folder_ / "tokenizer.json") + std::chrono::seconds(1));
  const Response after = get("/hf/plain/resolve/main/config.json");
  EXPECT_NE(header(before, "ETag"), header(after, "ETag"));
  EXPECT_NE(header(before, "X-Repo-Commit"), header(after, "X-Repo-Commit"));
  EXPECT_EQ(after.body, R"({"a": 2})");
}

TEST_F(HubTest, WeightsOtherFilesAndPathsAreNotThere) {
  for (const char* file : {"model.safetensors", "notes.txt", "..", "../notes.txt", "%2e%2e/x", "",
                           "merges.txt", "folder/config.json"}) {
    const Response none = get("/hf/made/up/resolve/main/" + std::string(file));
    EXPECT_EQ(none.status, 404) << file;
    EXPECT_EQ(header(none, "X-Error-Code"), "EntryNotFound") << file;
  }
  const Response templates = get("/hf/api/models/made/up/tree/main/additional_chat_templates");
  EXPECT_EQ(header(templates, "X-Error-Code"), "EntryNotFound");
}

TEST_F(HubTest, ALinkThatLeavesTheFolderIsNotFollowedButOneOfAHubsCacheIs) {
  namespace fs = std::filesystem;
  write("notes.txt", "private");
  fs::create_symlink(folder_ / "config.json", folder_ / "vocab.json");
  const ScratchDir other;
  std::ofstream(other / "secret") << "private";
  fs::create_symlink(other / "secret", folder_ / "merges.txt");
  EXPECT_EQ(get("/hf/plain/resolve/main/vocab.json").body, R"({"a": 1})");
  EXPECT_EQ(get("/hf/plain/resolve/main/merges.txt").status, 404);
  EXPECT_EQ(get("/hf/api/models/plain").body.find("merges.txt"), std::string::npos);

  const fs::path cache = other / "models--a--b", commit = cache / "snapshots" / "c0ffee";
  fs::create_directories(commit);
  fs::create_directories(cache / "blobs");
  std::ofstream(cache / "blobs" / "1f") << "{}";
  fs::create_symlink("../../blobs/1f", commit / "config.json");
  fs::create_symlink("../../../secret", commit / "merges.txt");
  backend_->facts.directory = commit.string();
  EXPECT_EQ(get("/hf/plain/resolve/main/config.json").body, "{}");
  EXPECT_EQ(get("/hf/plain/resolve/main/merges.txt").status, 404);
}

TEST_F(HubTest, ANameThatIsNotServedIsNoRepository) {
  for (const char* path : {"/hf/other/model/resolve/main/config.json", "/hf/api/models/made",
                           "/hf/made/resolve/main/config.json", "/hf/", "/hf/a/b/variant"}) {
    const Response none = get(path);
    EXPECT_EQ(none.status, 404) << path;
    EXPECT_EQ(header(none, "X-Error-Code"),
              path == std::string("/hf/a/b/variant") ? "EntryNotFound" : "RepoNotFound")
        << path;
  }
}

TEST_F(HubTest, OfAGgufFileThoseNextToItAreGiven) {
  write("model.gguf", "weights");
  backend_->facts.directory = (folder_ / "model.gguf").string();
  EXPECT_EQ(get("/hf/plain/resolve/main/tokenizer.json").status, 200);
  const Response none = get("/hf/plain/resolve/main/model.gguf");
  EXPECT_EQ(none.status, 404);
  EXPECT_NE(none.body.find("it is a .gguf file"), std::string::npos) << none.body;
}

}  // namespace
}  // namespace twinkle::server
