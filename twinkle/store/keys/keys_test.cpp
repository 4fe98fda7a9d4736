#include "twinkle/store/keys/keys.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "twinkle/io/scratch_dir_for_test.h"
#include "twinkle/store/keys/sha256.h"

namespace twinkle::store {
namespace {

class Keys : public testing::Test {
 protected:
  static Key wanted(const std::string& tenant) {
    return {.tenant = tenant, .scopes = {"train", "sample"}, .created = 1000, .expires = 2000};
  }

  const ScratchDir dir_;
  const KeyFile file_{dir_ / "state"};
};

TEST_F(Keys, AKeyIsReadAsItWasMadeAndItsTextIsInNoFile) {
  const auto [text, key] = file_.create(wanted("alice"));
  EXPECT_EQ(text.size(), 68u);
  EXPECT_TRUE(text.starts_with("tml-"));
  EXPECT_EQ(text.find_first_not_of("0123456789abcdef", 4), std::string::npos);
  const std::vector<Key> keys = file_.read();
  ASSERT_EQ(keys.size(), 1u);
  EXPECT_EQ(keys[0].id, key.id);
  EXPECT_EQ(keys[0].tenant, "alice");
  EXPECT_EQ(keys[0].sha256, sha256(text));
  EXPECT_EQ(keys[0].scopes, (std::vector<std::string>{"train", "sample"}));
  EXPECT_EQ(keys[0].created, 1000);
  EXPECT_EQ(keys[0].expires, 2000);
  EXPECT_EQ(keys[0].revoked, 0);
  for (const auto& entry : std::filesystem::directory_iterator(dir_ / "state"))
    EXPECT_EQ(read_text(entry.path()).find(text.substr(4)), std::string::npos) << entry.path();
}

TEST_F(Keys, NobodyButTheOwnerReadsTheFile) {
  for (int i = 0; i < 2; ++i) {
    file_.create(wanted("alice"));
    EXPECT_EQ(std::filesystem::status(file_.path()).permissions(),
              std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    std::filesystem::permissions(file_.path(), std::filesystem::perms::all);  // as of an older one
  }
}

TEST_F(Keys, RevokingMarksThoseThatAreMeantOnceAndKeepsThem) {
  const std::string a = file_.create(wanted("a")).key.id, b = file_.create(wanted("b")).key.id;
  const auto is_a = [&](const Key& key) { return key.id == a; };
  ASSERT_EQ(file_.revoke(is_a, 1500).size(), 1u);
  EXPECT_TRUE(file_.revoke(is_a, 1600).empty());
  const std::vector<Key> keys = file_.read();
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].revoked, 1500);
  EXPECT_EQ(keys[1].id, b);
  EXPECT_EQ(keys[1].revoked, 0);
}

TEST_F(Keys, ThoseWhoMakeKeysAtTheSameTimeLoseNone) {
  {
    std::vector<std::jthread> makers;
    for (int i = 0; i < 4; ++i)
      makers.emplace_back([&] {
        for (int n = 0; n < 5; ++n) file_.create(wanted("a"));
      });
  }
  std::set<std::string> ids, hashes;
  for (const Key& key : file_.read()) ids.insert(key.id), hashes.insert(key.sha256);
  EXPECT_EQ(ids.size(), 20u);
  EXPECT_EQ(hashes.size(), 20u);
}

TEST_F(Keys, ATenantsQuotaIsMadeWithAKeyOrChangedLaterAndOnlyWhatIsNamed) {
  file_.create(wanted("a"), [](Quota& q) { q.max_runs = 3, q.weight = 2; });
  file_.create(wanted("a"));
  file_.create(wanted("b"));
  const Quota changed = file_.limit("a", [](Quota& q) { q.tokens_per_minute = 600; });
  EXPECT_EQ(changed, (Quota{.tenant = "a", .weight = 2, .tokens_per_minute = 600, .max_runs = 3}));
  file_.revoke([](const Key&) { return true; }, 1500);
  EXPECT_EQ(file_.read_table().tenants, std::vector<Quota>{changed});
}

TEST_F(Keys, AFileOfBeforeThereWereQuotasIsRead) {
  std::filesystem::create_directory(dir_ / "state");
  write_text(file_.path(), R"({"keys":[{"id":"a","tenant":"t","scopes":["train"]}]})");
  EXPECT_EQ(file_.read().size(), 1u);
  EXPECT_TRUE(file_.read_table().tenants.empty());
  file_.limit("t", [](Quota& q) { q.priority = 1; });
  EXPECT_EQ(file_.read_table().tenants.at(0).priority, 1);
}

TEST_F(Keys, AKeyHasAWeightAndAPriorityOfItsOwnOrNone) {
  const std::string both = file_.create(wanted("a"), {}, {.weight = 0.5, .priority = 0}).key.id;
  const std::string one = file_.create(wanted("a"), {}, {.priority = -2}).key.id;
  file_.create(wanted("a"));
  const KeyTable table = file_.read_table();
  EXPECT_EQ(table.weights, (std::map<std::string, double>{{both, 0.5}}));
  EXPECT_EQ(table.priorities, (std::map<std::string, int32_t>{{both, 0}, {one, -2}}));
  EXPECT_TRUE(table.tenants.empty());
}

TEST_F(Keys, MistakesInAQuotaAreNamedAndChangeNothing) {
  file_.create(wanted("a"));
  const auto error = [&](const ChangeQuota& change) {
    return error_of([&] { file_.limit("a", change); });
  };
  EXPECT_EQ(error([](Quota& q) { q.weight = 0; }),
            "store: the weight is 0, it must be from 0.001 to 1000");
  EXPECT_EQ(error([](Quota& q) { q.max_runs = -1; }),
            "store: max_runs is -1, it must be at least 0, which is without a limit");
  EXPECT_EQ(error([](Quota& q) { q.compute_seconds_per_minute = -0.5; }),
            "store: compute_seconds_per_minute is -0.5, it must be at least 0.001, or 0, which is "
            "without a limit");
  EXPECT_EQ(
      error([](Quota& q) { q.compute_seconds_per_minute = 1e-300; }),
      "store: compute_seconds_per_minute is 1e-300, it must be at least 0.001, or 0, which is "
      "without a limit");
  EXPECT_EQ(error_of([&] { file_.limit("b", [](Quota&) {}); }),
            "store: the tenant 'b' has no key in " + file_.path().string() +
                "; 'twinkle keys create' makes one");
  EXPECT_TRUE(file_.read_table().tenants.empty());
}

TEST_F(Keys, MistakesAreNamedAndMakeNoFile) {
  const auto error = [&](Key key) { return invalid_of([&] { file_.create(std::move(key)); }); };
  EXPECT_EQ(error(wanted("a/b")),
            "store: the tenant 'a/b' must be 1 to 64 letters, digits, '.', '_' and '-'");
  EXPECT_NE(error(wanted("")).find("the tenant ''"), std::string::npos);
  Key key = wanted("a");
  key.scopes = {"train", "admin"};
  EXPECT_EQ(
      error(key),
      "store: scope 'admin' is not known, there are train, sample and metrics; give --scope once "
      "for each");
  key.scopes = {};
  EXPECT_EQ(error(key), "store: the key has no scope; give train, sample, metrics or several");
  key = wanted("a");
  key.expires = 999;
  EXPECT_EQ(error(key), "store: the key would expire before it is made; choose a later time");
  EXPECT_EQ(error_of([&] { file_.create(wanted("a"), {}, {.weight = 1001}); }),
            "store: the weight is 1001, it must be from 0.001 to 1000");
  EXPECT_FALSE(std::filesystem::exists(dir_ / "state"));
}

TEST_F(Keys, AFileThatIsNotThereOrBrokenIsNamedWithItsPlace) {
  const std::string path = file_.path().string();
  const auto expect = [&](const std::string& error) {
    EXPECT_EQ(error_of([&] { file_.read(); }), error);
    EXPECT_EQ(error_of([&] { file_.revoke([](const Key&) { return true; }, 1); }), error);
  };
  expect("store: the folder " + (dir_ / "state").string() +
         " does not exist; name the server's with --state, or, of a new one, make it by 'twinkle "
         "keys create'");
  const std::string whole = (std::filesystem::current_path() / "no/such").string();
  EXPECT_NE(error_of([] { KeyFile("no/such").read(); }).find("the folder " + whole + " does not"),
            std::string::npos);
  std::filesystem::create_directory(dir_ / "state");
  expect("store: " + path + " does not exist; 'twinkle keys create' makes it");
  write_text(file_.path(), R"({"keys":[{"id":"a","scopes":["train"],"expires":"soon"}]})");
  EXPECT_NE(error_of([&] { file_.read(); }).find(path + ".keys[0].expires is \"soon\""),
            std::string::npos);
  write_text(file_.path(), "{");
  EXPECT_NE(error_of([&] { file_.create(wanted("a")); }).find("keys.json"), std::string::npos);
  EXPECT_EQ(read_text(file_.path()), "{");
}

}  // namespace
}  // namespace twinkle::store
