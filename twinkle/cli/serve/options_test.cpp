#include "twinkle/cli/serve/options.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "twinkle/base/error_for_test.h"
#include "twinkle/io/scratch_dir_for_test.h"
#include "twinkle/model/tiny_model.h"
#include "twinkle/text/tiny_model_test.h"

namespace twinkle::cli {
namespace {

ServeOptions with_root(const std::string& root_path) {
  ServeOptions out;
  out.root_path = root_path;
  return out;
}

TEST(ServeOptions, AModelAnswersToItsIdAndToWhatOthersCallIt) {
  EXPECT_EQ(default_names("smollm2"),
            (std::vector<std::string>{"smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct"}));
  EXPECT_EQ(default_names("hf://a/b"), std::vector<std::string>{"a/b"});
  EXPECT_EQ(default_names("a/b"), std::vector<std::string>{"a/b"});
}

TEST(ServeOptions, NamesAndRootPathsThatCannotBeAreRefused) {
  ServeOptions o;
  check_options(o);
  o.names = {"a", "b:c"};
  EXPECT_EQ(error_of([&] { check_options(o); }),
            "cli: name 'b:c' must be a text without ':', behind which clients cut it off; "
            "give --name");
  o.names = {"a", "a"};
  EXPECT_EQ(error_of([&] { check_options(o); }), "cli: name 'a' is given twice");
  for (const char* root : {"a", "/", "/a/"})
    EXPECT_EQ(error_of([&] { check_options(with_root(root)); }),
              "cli: root_path is '" + std::string(root) +
                  "', it must begin with '/' and not end with it, as /twinkle");
  check_options(with_root("/a/b"));
}

TEST(ServeOptions, AStateThatCannotBeMadeIsRefusedAndNothingIsMade) {
  const ScratchDir dir;
  ServeOptions o;
  o.state = (dir / "a" / "b").string();
  check_options(o);
  EXPECT_FALSE(std::filesystem::exists(dir / "a"));
  write_text(dir / "a", "");
  EXPECT_EQ(error_of([&] { check_options(o); }),
            "cli: state is '" + o.state + "', but '" + (dir / "a").string() + "' is no folder");
}

TEST(ServeOptions, ACheckTellsWhatWouldBeServedAndRefusesWhatWouldNot) {
  const text::TinyModel model;
  const JsonObject config = model::tiny_config();
  model::write_tiny(model.directory(), config, model::tiny_weights(config));
  const ScratchDir dir;
  ServeOptions o{.model = model.directory().string(),
                 .device = "cpu",
                 .state = dir.path().string(),
                 .names = {"a/b", "c"}};
  EXPECT_EQ(check_service(o),
            "llama of 2 layers from " + o.model +
                " on cpu\nnames: a/b, c\naddress: http://127.0.0.1:8000\nstate: " + o.state + "\n");
  o.host = "somewhere";
  EXPECT_NE(error_of([&] { check_service(o); }).find("'somewhere' is no loopback"),
            std::string::npos);
  o.auth = "keys";
  EXPECT_NE(error_of([&] { check_service(o); }).find("somewhere is no IP address"),
            std::string::npos);
  o.host = "127.0.0.1";
  std::filesystem::remove(model.directory() / "tokenizer.json");
  EXPECT_NE(error_of([&] { check_service(o); }).find("tokenizer.json"), std::string::npos);
}

TEST(ServeOptions, APathIsServedWithItsRootAndWithout) {
  EXPECT_EQ(without_root("/p/api/v1/x", "/p"), "/api/v1/x");
  EXPECT_EQ(without_root("/api/v1/x", "/p"), "/api/v1/x");
  EXPECT_EQ(without_root("/pq/x", "/p"), "/pq/x");
  EXPECT_EQ(without_root("/x", ""), "/x");
}

}  // namespace
}  // namespace twinkle::cli
