#include "twinkle/cli/serve/options.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <set>

#include "twinkle/base/error_for_test.h"
#include "twinkle/cli/options/yaml.h"
#include "twinkle/io/scratch_dir_for_test.h"
#include "twinkle/model/tiny_model.h"
#include "twinkle/store/keys/keys.h"
#include "twinkle/text/tiny_model_test.h"

namespace twinkle::cli {
namespace {

ServeOptions with_root(const std::string& root_path) {
  ServeOptions out;
  out.root_path = root_path;
  return out;
}

TEST(ServeOptions, AModelAnswersToItsIdAndToWhatOthersCallIt) {
  EXPECT_EQ(default_names("smollm2"), (std::vector<std::string>{"smollm2", "smollm2-q4_1"}));
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
  o.names = {"a", ""};
  EXPECT_EQ(
      error_of([&] { check_options(o); }),
      "cli: name is '', it must be a text that clients ask for; leave it out for the model's");
  o.names = {"a", "a"};
  EXPECT_EQ(error_of([&] { check_options(o); }), "cli: name 'a' is given twice");
  for (const char* root : {"a", "/", "/a/"})
    EXPECT_EQ(error_of([&] { check_options(with_root(root)); }),
              "cli: root_path is '" + std::string(root) +
                  "', it must begin with '/' and not end with it, as /twinkle");
  for (const auto& [root, has] :
       {std::pair("/a%20b", "'%'"), std::pair("/a?", "'?'"), std::pair("/a#b", "'#'"),
        std::pair("/a b", "' '"), std::pair("/a\n", "'\n'")})
    EXPECT_EQ(error_of([&] { check_options(with_root(root)); }),
              "cli: root_path is '" + std::string(root) + "', and has " + has +
                  "; it may have letters, digits, '/', '-', '.', '_' and '~'");
  for (const auto& [root, part] : {std::pair("/a/../b", ".."), std::pair("/./b", "."),
                                   std::pair("/..", ".."), std::pair("/a//b", "")})
    EXPECT_EQ(error_of([&] { check_options(with_root(root)); }),
              "cli: root_path is '" + std::string(root) + "', and has the part '" + part +
                  "'; a part must be a name, as of /team/twinkle");
  check_options(with_root("/a/b"));
  check_options(with_root("/~team/a..b-1_2"));
}

TEST(ServeOptions, AnEmptyModelAndAParkDirectoryThatCannotBeAreRefusedByName) {
  ServeOptions o;
  o.engine.model.path = "";
  o.names = {""};
  EXPECT_EQ(error_of([&] { check_options(o); }),
            "cli: model is '', it must be a folder, a file or an id, as smollm2");
  const ScratchDir dir;
  write_text(dir / "a", "");
  o = {};
  o.engine.parking.directory = (dir / "a").string();
  EXPECT_EQ(error_of([&] { check_options(o); }), "cli: park_directory is '" +
                                                     o.engine.parking.directory + "', but '" +
                                                     o.engine.parking.directory + "' is no folder");
}

// A new option, and another default, is a decision: it is made here, too.
TEST(ServeOptions, AreTheseWithTheseDefaults) {
  const std::vector<std::string> want{
      "name=[]",
      "state=twinkle-state",
      "auth=open",
      "host=127.0.0.1",
      "port=8000",
      "unix_socket=",
      "max_header_bytes=65536",
      "max_connections=10000",
      "max_sending_bytes=1073741824",
      "patience_seconds=30",
      "body_seconds=60",
      "keep_alive_seconds=75",
      "root_path=",
      "compress=false",
      "log_level=info",
      "accept_other_arithmetic=false",
      "max_body_bytes_total=2147483648",
      "max_body_bytes=67108864",
      "small_body_bytes=65536",
      "body_patience_seconds=20",
      "snapshot_seconds=60",
      "hold_seconds=30",
      "keep_read_seconds=600",
      "max_open=32768",
      "max_open_bytes=4294967296",
      "max_result_bytes=268435456",
      "max_sample_bytes=67108864",
      "max_forward_backward_bytes=67108864",
      "durability=process",
      "segment_bytes=67108864",
      "sync_seconds=0.005",
      "retry_seconds=1",
      "journal_bytes=268435456",
      "max_given=1000",
      "max_given_bytes=67108864",
      "max_given_bytes_total=1073741824",
      "give_again_seconds=0.05",
      "park_seconds=300",
      "max_sessions=1000000",
      "max_samplers=1000000",
      "stable_reinforce=refused",
      "model=smollm2",
      "mixed_precision=bf16",
      "device=",
      "value_head=false",
      "activation_bytes=8589934592",
      "deterministic=true",
      "train_graphs=true",
      "memory_share=1",
      "gathered_bytes=0",
      "token_budget=4096",
      "max_queued=1024",
      "max_queued_total=16384",
      "max_queued_bytes=4294967296",
      "max_queued_bytes_total=8589934592",
      "sampling_share=0.5",
      "gather_ms=1",
      "kv_tokens=32768",
      "max_sequences=64",
      "prefill_tokens=512",
      "prefix_cache=true",
      "share_prefixes=false",
      "decode_graphs=true",
      "resident_bytes=-1",
      "park_directory=",
  };
  const ServeOptions o;
  std::vector<std::string> all;
  std::set<std::string_view> names;
  for (const AnyOption& one : options_of(o)) {
    all.push_back(std::string(one.name).append("=").append(told(one.get())));
    EXPECT_TRUE(names.insert(one.name).second) << one.name << " is there twice";
    EXPECT_FALSE(one.help.empty()) << one.name;
  }
  EXPECT_EQ(all, want);
}

TEST(ServeOptions, AnOptionOfAnyPartOutsideItsLimitsIsRefused) {
  ServeOptions o;
  o.engine.sampler.kv_tokens = 0;
  EXPECT_EQ(error_of([&] { check_options(o); }),
            "cli: kv_tokens is 0, it must be an integer of at least 1, at most 2147483647");
  o = {};
  o.service.snapshots.every = std::chrono::hours(25);
  EXPECT_EQ(error_of([&] { check_options(o); }),
            "cli: snapshot_seconds is 90000, it must be a number of at least 0, at most 86400");
}

TEST(ServeOptions, ThoseThatCannotBeTogetherAreRefusedByName) {
  const auto error = [](const auto& change) {
    ServeOptions o;
    change(o);
    return error_of([&] { check_options(o); });
  };
  const auto must = [](const std::string& name, const std::string& value, const std::string& most,
                       const std::string& is) {
    return "cli: " + name + " is " + value + ", it must be at most " + most + ", " + is +
           ": lower " + name + ", or raise " + most;
  };
  EXPECT_EQ(error([](ServeOptions& o) { o.engine.scheduling.max_queued = 500; }),
            must("max_given", "1000 (its default)", "max_queued", "500"));
  EXPECT_EQ(error([](ServeOptions& o) { o.service.lines.max_given = 2000; }),
            must("max_given", "2000", "max_queued", "1024 (its default)"));
  EXPECT_EQ(error([](ServeOptions& o) { o.service.lines.max_bytes_total = 1; }),
            must("max_given_bytes", "67108864 (its default)", "max_given_bytes_total", "1"));
  EXPECT_EQ(error([](ServeOptions& o) { o.engine.scheduling.max_queued_total = 1023; }),
            must("max_queued", "1024 (its default)", "max_queued_total", "1023"));
  EXPECT_EQ(error([](ServeOptions& o) { o.engine.scheduling.max_queued_bytes_total = 7; }),
            must("max_queued_bytes", "4294967296 (its default)", "max_queued_bytes_total", "7"));
  EXPECT_EQ(error([](ServeOptions& o) { o.bodies.max_bytes = 1 << 20; }),
            must("max_body_bytes", "67108864 (its default)", "max_body_bytes_total", "1048576"));
  EXPECT_NE(error([](ServeOptions& o) {
              o.engine.model.value_head = true;
            }).find("cli: value_head is true, and a service has adapters"),
            std::string::npos);
  EXPECT_EQ(error([](ServeOptions& o) {
              o.service.lines.max_given = o.engine.scheduling.max_queued = 1;
              o.engine.scheduling.max_queued_total = 1;
            }),
            "no error");
}

TEST(ServeOptions, HelpHasThemInGroupsWithoutThoseThatNoServiceTakes) {
  CLI::App app("", "twinkle");
  ServeOptions o;
  add_serve_options(app, o);
  const auto group = [&](const char* option) { return app.get_option(option)->get_group(); };
  EXPECT_EQ(group("--state"), "Service");
  EXPECT_EQ(group("--port"), "Connections");
  EXPECT_EQ(group("--max-body-bytes"), "Connections");
  EXPECT_EQ(group("--max-given"), "Tenants");
  EXPECT_EQ(group("--model"), "Model");
  EXPECT_EQ(group("--kv-tokens"), "Sampler");
  const std::string help = app.help();
  for (const AnyOption& one : options_of(o)) {
    std::string flag = "\n  --" + std::string(one.name);
    std::ranges::replace(flag, '_', '-');
    EXPECT_EQ(help.find(flag) != help.npos, is_served(one.name)) << one.name;
  }
  EXPECT_EQ(as_yaml(app, {}).find("value_head"), std::string::npos);
  const ScratchDir dir;
  write_text(dir / "serve.yaml", "elephant: 1\n");
  const std::string there = error_of([&] { read_yaml(app, dir / "serve.yaml"); });
  EXPECT_NE(there.find("there are name, state, "), std::string::npos) << there;
  for (const char* name : {"value_head", "gathered_bytes"})
    EXPECT_EQ(there.find(name), std::string::npos) << there;
  app.parse("--value-head --gathered-bytes 1");
  EXPECT_NE(error_of([&] { check_options(o); }).find("cli: value_head is true"), std::string::npos);
  o.engine.model.value_head = false;
  EXPECT_EQ(error_of([&] { check_options(o); }),
            "cli: gathered_bytes is 1, and a service has its base in one process, whole: leave it "
            "out");
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
  ServeOptions o{.state = dir.path().string(),
                 .names = {"a/b", "c"},
                 .engine = {.model = {.path = model.directory().string(), .device = "cpu"}}};
  EXPECT_EQ(check_service(o), "llama of 2 layers from " + o.engine.model.path +
                                  " on cpu\nnames: a/b, c\naddress: http://127.0.0.1:8000\n"
                                  "auth: open, nobody is asked for a key\nstate: " +
                                  o.state + "\n");
  o.http.address = "somewhere";
  for (const char* auth : {"open", "keys"}) {
    o.auth = auth;
    EXPECT_EQ(error_of([&] { check_service(o); }),
              "cli: host is 'somewhere', it must be an IP address, as 127.0.0.1 for this machine "
              "alone, 0.0.0.0 for every network");
  }
  o.auth = "open";
  o.http.address = "none";
  EXPECT_EQ(error_of([&] { check_service(o); }),
            "cli: host is 'none', and unix_socket is '': give one of them to listen on");
  o.http.unix_socket = (dir / "it.sock").string();
  const std::string alone = "\naddress: unix:" + o.http.unix_socket + "\n";
  EXPECT_NE(check_service(o).find(alone), std::string::npos) << "for whoever reaches it";
  EXPECT_FALSE(std::filesystem::exists(o.http.unix_socket));
  o.http.unix_socket = "";
  o.http.address = "0.0.0.0";
  const auto ends = [&](const std::string& end) {
    const std::string text = error_of([&] { check_service(o); });
    EXPECT_TRUE(text.ends_with("'0.0.0.0' is no loopback address; " + end)) << text;
  };
  ends("make keys (twinkle keys create --state " + o.state +
       " --tenant NAME) and leave auth out, or listen on 127.0.0.1");
  const store::KeyFile keys(o.state);
  keys.create({.tenant = "a", .scopes = {"train"}});
  ends("the state has keys: leave auth out, or listen on 127.0.0.1");
  o.auth = "keys";
  o.http.address = "127.0.0.1";
  const auto auth = [&] {
    const std::string told = check_service(o);
    const size_t at = told.find("\nauth: ");
    return told.substr(at + 7, told.find('\n', at + 1) - at - 7);
  };
  EXPECT_EQ(auth(), "keys, of which 1 is valid");
  keys.create({.tenant = "b", .scopes = {"train"}});
  EXPECT_EQ(auth(), "keys, of which 2 are valid");
  keys.revoke([](const auto&) { return true; }, 3);
  EXPECT_EQ(auth(), "keys, of which none is valid: 'twinkle keys create' makes one");
  std::filesystem::remove(model.directory() / "tokenizer.json");
  EXPECT_NE(error_of([&] { check_service(o); }).find("tokenizer.json"), std::string::npos);
}

TEST(ServeOptions, ClientsSendABatchInPiecesThatAreTakenWhole) {
  ServeOptions o;
  EXPECT_EQ(client_flags(o), (JsonObject{{"fwdbwd_max_chunk_bytes_count", 5'000'000},
                                         {"create_model_via_load_weights", true}}));
  o.bodies.max_body_bytes = 1 << 20;
  o.compress = true;
  EXPECT_EQ(client_flags(o), (JsonObject{{"fwdbwd_max_chunk_bytes_count", 1 << 19},
                                         {"create_model_via_load_weights", true},
                                         {"proto_compress_fwdbwd", true}}));
}

TEST(ServeOptions, APathIsServedWithItsRootAndWithout) {
  EXPECT_EQ(without_root("/p/api/v1/x", "/p"), "/api/v1/x");
  EXPECT_EQ(without_root("/api/v1/x", "/p"), "/api/v1/x");
  EXPECT_EQ(without_root("/pq/x", "/p"), "/pq/x");
  EXPECT_EQ(without_root("/x", ""), "/x");
}

}  // namespace
}  // namespace twinkle::cli
