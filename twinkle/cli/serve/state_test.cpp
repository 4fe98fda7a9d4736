#include "twinkle/cli/serve/state.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "twinkle/base/error_for_test.h"
#include "twinkle/base/fields/codec.h"
#include "twinkle/base/json.h"
#include "twinkle/engine/execute/model_info.h"
#include "twinkle/io/checkpoint.h"
#include "twinkle/io/safetensors.h"
#include "twinkle/io/scratch_dir_for_test.h"
#include "twinkle/server/history/records.h"
#include "twinkle/store/folder_lock.h"
#include "twinkle/store/journal.h"
#include "twinkle/store/keys/keys.h"

namespace twinkle::cli {
namespace {

namespace fs = std::filesystem;

// A state that a server of the model "llama" with the config "{}" has left.
class StateTest : public testing::Test {
 protected:
  StateTest() {
    o_.state = dir_.path().string();
    o_.engine.model.device = "cpu";
  }
  template <class Record>
  void write(const std::vector<Record>& records) {
    store::Journal out(journal_);
    out.open([](const store::Record&) {});
    for (const Record& record : records) {
      ByteWriter writer;
      writer.put(record);
      out.append(Record::kKind, server::kRecordFormat, writer.take(), [](uint64_t, const auto&) {});
    }
  }
  void write_start(const std::string& arithmetic, const std::string& model,
                   const std::string& weights = "", const std::string& path = "") {
    write(std::vector(2, server::Opened{arithmetic, model, weights, path}));
  }
  // A model of so many bytes in each of two files, one of them another where that is asked for.
  Checkpoint weights(const std::string& folder, size_t bytes, size_t other = std::string::npos) {
    fs::create_directory(dir_ / folder);
    JsonObject map;
    for (const char* name : {"a", "b"}) {
      std::vector<std::byte> all(bytes, std::byte{1});
      if (*name == 'b' && other < bytes) all[other] = std::byte{2};
      const std::string file = std::string(name) + ".safetensors";
      const TensorView view{
          .name = name, .dtype = Dtype::kU8, .shape = {std::ssize(all)}, .bytes = all};
      write_safetensors(dir_ / folder / file, std::span(&view, 1));
      map[name] = file;
    }
    write_text(dir_ / folder / "model.safetensors.index.json",
               boost::json::serialize(JsonObject{{"weight_map", map}}));
    return Checkpoint::open(dir_ / folder);
  }
  static std::string here() {
    return boost::json::serialize(engine::arithmetic_of(at::kBFloat16, at::kCPU, true));
  }
  std::string check(const Checkpoint* checkpoint = nullptr) {
    return check_state(o_, "llama", "{}", checkpoint);
  }
  std::string error() {
    return error_of([&] { check(); });
  }

  const ScratchDir dir_;
  const fs::path journal_ = dir_ / "journal";
  const std::string model_ = identity_of("llama", 7, "{}");
  ServeOptions o_;
};

TEST_F(StateTest, OfTheSameModelAndArithmeticIsWellAndSoIsNone) {
  EXPECT_EQ(check(), "");
  EXPECT_TRUE(fs::is_empty(dir_.path())) << "a question makes nothing";
  write_start(here(), model_);
  EXPECT_EQ(check(), "");
}

TEST_F(StateTest, OfAnotherModelOrOtherArithmeticIsToldAsAStartTellsIt) {
  write_start("{\"torch\":\"1\"}", model_);
  const std::string text = error();
  EXPECT_TRUE(text.starts_with("server: the state in " + o_.state +
                               " was computed with {\"torch\":\"1\"}, and this is " + here()))
      << text;
  o_.accept_other_arithmetic = true;
  EXPECT_EQ(check(), "");
  const std::string other =
      error_of([&] { check_state(o_, "llama", "{\"num_hidden_layers\":3}", nullptr); });
  EXPECT_TRUE(other.starts_with("server: the state in " + o_.state +
                                " is of the model {\"family\":\"llama\",\"config_crc32c\":"))
      << other;
  EXPECT_NE(error_of([&] {
              check_state(o_, "qwen2", "{}", nullptr);
            }).find("and this is {\"family\":\"qwen2\""),
            std::string::npos);
}

TEST_F(StateTest, OtherWeightsOfTheSameConfigAreRefusedAndACopyIsTaken) {
  const size_t bytes = 300 << 10;
  const Checkpoint ours = weights("ours", bytes), copy = weights("copy", bytes);
  write_start(here(), model_, crc_of_weights(ours), ours.path().string());
  EXPECT_EQ(check(&ours), "");
  EXPECT_EQ(check(&copy), "");
  EXPECT_EQ(check(), "") << "the weights are not here";
  for (const size_t at : {size_t{0}, bytes / 2, bytes - 1}) {
    const Checkpoint theirs = weights("theirs", bytes, at);
    EXPECT_EQ(error_of([&] { check(&theirs); }),
              "server: the state in " + o_.state + " is of the model in " + ours.path().string() +
                  ", and the one in " + theirs.path().string() +
                  " has other weights with the same config: serve the weights that it is of, or "
                  "name another --state")
        << at;
  }
  const Checkpoint longer = weights("theirs", bytes + 1);
  EXPECT_NE(crc_of_weights(longer), crc_of_weights(ours));
}

TEST_F(StateTest, TheSameTensorsInOtherFilesAreTheSameWeights) {
  std::vector<std::byte> bytes(30'001);
  const auto view = [&](const char* name, size_t count) {
    return TensorView{.name = name,
                      .dtype = Dtype::kU8,
                      .shape = {static_cast<int64_t>(count)},
                      .bytes = std::span(bytes).first(count)};
  };
  const auto crc = [&](const std::vector<TensorView>& views) {
    write_safetensors(dir_ / "model.safetensors", views);
    return crc_of_weights(Checkpoint::open(dir_.path()));
  };
  const std::string both = crc({view("a", 30'001), view("b", 0)});
  EXPECT_EQ(crc({view("b", 0), view("a", 30'001)}), both) << "in another order";
  EXPECT_NE(crc({view("a", 30'001)}), both);
  EXPECT_NE(crc({view("a", 30'001), view("c", 0)}), both);
  EXPECT_NE(crc({view("a", 30'000), view("b", 0)}), both);
  bytes[15'000] = std::byte{1};
  EXPECT_NE(crc({view("a", 30'001), view("b", 0)}), both);
}

TEST_F(StateTest, ADamagedJournalIsToldWithItsFile) {
  write_start(here(), model_);
  const fs::path file = journal_ / "00000000000000000001.journal";
  std::string bytes = read_text(file);
  bytes[25] ^= 1;
  write_text(file, bytes);
  EXPECT_TRUE(error().starts_with("store: " + file.string() + " is damaged at byte 0")) << error();
  EXPECT_EQ(read_text(file), bytes);
}

TEST_F(StateTest, RunsWithoutAJournalAndAMissingSnapshotAreToldAsAStartTellsThem) {
  fs::create_directories(dir_ / "snapshots/4e5f:train:0/7");
  EXPECT_TRUE(error().starts_with("server: " + (dir_ / "snapshots").string() +
                                  " has runs, but the journal in " + journal_.string() +
                                  " holds nothing: put the journal back"))
      << error();
  write_start(here(), model_);
  EXPECT_EQ(check(), "");
  write(std::vector{
      server::Snapshotted{.run = "4e5f:train:0", .folder = "4e5f:train:0/8", .seq_id = 8}});
  EXPECT_TRUE(
      error().starts_with("server: the snapshot of the run '4e5f:train:0' in " +
                          (dir_ / "snapshots/4e5f:train:0/8").string() +
                          " cannot be read: No such file or directory; put the folder back"))
      << error();
}

TEST_F(StateTest, AServerThatHasItOpenIsNamed) {
  write_start(here(), model_);
  const FileHandle lock = store::lock_folder(journal_);
  EXPECT_EQ(check(), "open in process " + std::to_string(::getpid()) +
                         ", which must end before this one starts");
}

TEST_F(StateTest, KeysThatAreAskedForAndNotThereAreMissed) {
  o_.auth = "keys";
  EXPECT_NE(error().find("keys.json does not exist; 'twinkle keys create' makes it"),
            std::string::npos);
  o_.state = (dir_ / "wrong").string();
  EXPECT_TRUE(error().starts_with("store: the folder " + o_.state + " does not exist; "))
      << error();
}

TEST_F(StateTest, KeysThatNobodyIsAskedForAreToldOfWhileTheyAreValid) {
  const std::string path = (dir_ / "keys.json").string();
  const store::KeyFile file(o_.state);
  const auto create = [&](int64_t expires) {
    file.create({.tenant = "a", .scopes = {"train"}, .created = 1, .expires = expires});
  };
  EXPECT_EQ(open_although_keys(o_), "");
  create(2);
  EXPECT_EQ(open_although_keys(o_), "") << "it has expired";
  create(0);
  EXPECT_EQ(open_although_keys(o_),
            "auth is open although " + path + " has 1 key: nobody is asked for one");
  create(0);
  EXPECT_EQ(open_although_keys(o_),
            "auth is open although " + path + " has 2 keys: nobody is asked for one");
  o_.auth = "keys";
  EXPECT_EQ(open_although_keys(o_), "");
  o_.auth = "open";
  file.revoke([](const auto&) { return true; }, 3);
  EXPECT_EQ(open_although_keys(o_), "");
  write_text(path, "{");
  EXPECT_NE(open_although_keys(o_).find(" is there, and cannot be read (json: "), std::string::npos)
      << open_although_keys(o_);
}

TEST_F(StateTest, AParkDirectoryThatIsNoFolderOrCannotBeMadeIsRefused) {
  const std::string park = (dir_ / "a/b").string();
  check_park_directory(park);
  EXPECT_TRUE(fs::is_empty(dir_.path()));
  write_text(dir_ / "a", "");
  EXPECT_EQ(
      error_of([&] { check_park_directory(park); }),
      "cli: park_directory is '" + park + "', but '" + (dir_ / "a").string() + "' is no folder");
  const std::string text = error_of([] { check_park_directory("/proc/nope"); });
  EXPECT_TRUE(text.starts_with("cli: park_directory is '/proc/nope', but ")) << text;
  EXPECT_TRUE(text.ends_with(": choose another")) << text;
}

TEST_F(StateTest, AJournalThatIsNoFolderIsRefused) {
  check_folder(o_.state);
  EXPECT_EQ(error_of([] { check_folder(""); }),
            "cli: state is '', it must be the path of a folder");
  EXPECT_EQ(error_of([] { check_folder("~/x"); }),
            "cli: state is '~/x', and '~' is a shell's alone; write the folder's whole path");
  write_text(journal_, "x");
  EXPECT_EQ(error_of([&] { check_folder(o_.state); }),
            "cli: state is '" + o_.state + "', but '" + journal_.string() + "' is no folder");
}

}  // namespace
}  // namespace twinkle::cli
