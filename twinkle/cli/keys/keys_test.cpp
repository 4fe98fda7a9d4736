// `twinkle keys` as the program runs it: arguments in, printed text and a file out.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "twinkle/cli/command.h"
#include "twinkle/io/scratch_dir_for_test.h"
#include "twinkle/store/folder_lock.h"
#include "twinkle/store/keys/keys.h"
#include "twinkle/store/keys/sha256.h"

namespace twinkle::cli {

void keys(CLI::App& app, Action& action);

namespace {

class KeysCommand : public testing::Test {
 protected:
  // Its standard output. Errors pass.
  std::string run(std::vector<std::string> arguments) {
    CLI::App app("", "twinkle");
    Action action;
    keys(app, action);
    for (const std::string& more : {std::string("--state"), state_}) arguments.push_back(more);
    arguments.insert(arguments.begin(), "keys");
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes a vector
    app.parse(arguments);
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    std::string error;
    try {
      action("twinkle");
    } catch (const Error& e) {
      error = e.what();
    }
    std::fflush(stdout);
    std::string out = testing::internal::GetCapturedStdout();
    told_ = testing::internal::GetCapturedStderr();
    require(error.empty(), Code::kInvalid, error);
    return out;
  }
  std::vector<store::Key> read() const { return store::KeyFile(state_).read(); }

  const ScratchDir dir_;
  const std::string state_ = (dir_ / "state").string();
  std::string told_;
};

TEST_F(KeysCommand, CreatePrintsTheKeyAloneAndTellsItsIdOnTheSide) {
  const std::string out = run({"create", "--tenant", "alice", "--expires", "2d"});
  const store::Key key = read().at(0);
  EXPECT_EQ(key.sha256, store::sha256(out.substr(0, 68)));
  EXPECT_EQ(out.substr(68), "\n");
  EXPECT_EQ(told_.find("key " + key.id + " of tenant alice for train,sample, until "), 0u) << told_;
  EXPECT_EQ(key.expires - key.created, 2 * 86400);
  EXPECT_EQ(key.scopes, (std::vector<std::string>{"train", "sample"}));
}

TEST_F(KeysCommand, CreateTellsOfAServerThatMayNotAskForIt) {
  run({"create", "--tenant", "alice"});
  EXPECT_EQ(told_.find("a server runs"), std::string::npos) << told_;
  run({"revoke", "--tenant", "alice"});
  const std::filesystem::path journal = std::filesystem::path(state_) / "journal";
  std::filesystem::create_directories(journal);
  const FileHandle server = store::lock_folder(journal);
  run({"create", "--tenant", "bob"});
  const std::string process = std::to_string(::getpid());
  EXPECT_NE(told_.find("\na server runs there, process " + process +
                       ": if it was started with auth open, it asks for no key until it is started "
                       "again, without auth open\n"),
            std::string::npos)
      << told_;
  run({"create", "--tenant", "bob"});
  EXPECT_EQ(told_.find("a server runs"), std::string::npos) << "bob's first key asks for both";
}

TEST_F(KeysCommand, AStateThatIsMadeIsItsUsersAlone) {
  run({"create", "--tenant", "a"});
  EXPECT_EQ(std::filesystem::status(state_).permissions(), std::filesystem::perms::owner_all);
}

TEST_F(KeysCommand, ScopesAndEndsAreAsAsked) {
  run({"create", "--tenant", "a", "--scope", "sample", "--expires", "2999-12-31"});
  run({"create", "--tenant", "a", "--expires", "12h"});
  run({"create", "--tenant", "a", "--expires", "30m"});
  run({"create", "--tenant", "a"});
  const auto keys = read();
  EXPECT_EQ(keys[0].scopes, std::vector<std::string>{"sample"});
  EXPECT_EQ(keys[0].expires, 32503593600);  // as `date -d 2999-12-31T00:00Z +%s` says
  EXPECT_EQ(keys[1].expires - keys[1].created, 12 * 3600);
  EXPECT_EQ(keys[2].expires - keys[2].created, 30 * 60);
  EXPECT_EQ(keys[3].expires, 0);
}

TEST_F(KeysCommand, ListShowsWhatKeysAreForAndTheirStateButNoKey) {
  const std::string text = run({"create", "--tenant", "alice", "--expires", "2999-12-31"});
  run({"create", "--tenant", "bob", "--scope", "train"});
  const auto keys = read();
  run({"revoke", keys[1].id});
  std::istringstream lines(run({"list"}));
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line,
            "id        tenant                  scopes        created            weight      "
            "priority     status");
  std::getline(lines, line);
  EXPECT_EQ(line.find(keys[0].id + "  alice                   train,sample  "), 0u) << line;
  EXPECT_NE(line.find("Z  -           -            valid until 2999-12-31T00:00Z"),
            std::string::npos)
      << line;
  std::getline(lines, line);
  EXPECT_EQ(line.find(keys[1].id + "  bob                     train         "), 0u) << line;
  EXPECT_NE(line.find("Z  -           -            revoked "), std::string::npos) << line;
  const std::string bobs = run({"list", "--tenant", "bob"});
  EXPECT_EQ(bobs.find("alice"), std::string::npos);
  EXPECT_EQ(run({"list"}).find(text.substr(4, 20)), std::string::npos);
}

TEST_F(KeysCommand, AWeightAndAPriorityAreOfTheKeyThatIsMadeAndListShowsThem) {
  run({"create", "--tenant", "alice", "--weight", "2.5", "--priority", "-3"});
  run({"create", "--tenant", "alice", "--priority", "-2147483648", "--max-runs", "4"});
  const store::KeyTable table = store::KeyFile(state_).read_table();
  EXPECT_EQ(table.weights, (std::map<std::string, double>{{table.keys[0].id, 2.5}}));
  EXPECT_EQ(table.priorities, (std::map<std::string, int32_t>{{table.keys[0].id, -3},
                                                              {table.keys[1].id, -2147483648}}));
  EXPECT_EQ(table.tenants, (std::vector<store::Quota>{{.tenant = "alice", .max_runs = 4}}));
  const std::string listed = run({"list"});
  EXPECT_NE(listed.find("Z  2.5         -3           valid\n"), std::string::npos) << listed;
  EXPECT_NE(listed.find("Z  -           -2147483648  valid\n"), std::string::npos) << listed;
  const auto refused = [&](const char* option, const char* value) -> std::string {
    try {
      run({"create", "--tenant", "bob", option, value});
    } catch (const CLI::ParseError& e) {
      return e.what();
    }
    return "taken";
  };
  EXPECT_EQ(refused("--weight", "0"),
            "--weight: '0' must be a number of at least 0.001, at most 1000");
  EXPECT_EQ(refused("--weight", "x"),
            "--weight: 'x' must be a number of at least 0.001, at most 1000");
  EXPECT_EQ(refused("--priority", "1.5"),
            "--priority: '1.5' must be an integer of at least -2147483648, at most 2147483647");
  EXPECT_EQ(refused("--max-runs", "-1"), "--max-runs: '-1' must be an integer of at least 0");
  EXPECT_EQ(read().size(), 2u);
}

TEST_F(KeysCommand, LimitChangesWhatIsNamedOfATenantAndListShowsIt) {
  run({"create", "--tenant", "alice", "--max-runs", "4"});
  run({"limit", "--tenant", "alice", "--weight", "2.5"});
  run({"create", "--tenant", "bob"});
  const std::string head =
      "tenant                  weight      priority     tokens/min  compute-s/min  runs   "
      "adapters  disk-bytes\n";
  EXPECT_EQ(
      run({"limit", "--tenant", "alice", "--tokens-per-minute", "60000", "--priority", "-1",
           "--max-disk", "10GiB"}),
      head +
          "alice                   2.5         -1           60000       -              4      -"
          "         10737418240\n");
  EXPECT_NE(run({"list"}).find("\n\n" + head + "alice   "), std::string::npos);
  EXPECT_EQ(run({"list", "--tenant", "bob"}).find("tokens/min"), std::string::npos);
  run({"limit", "--tenant", "alice", "--max-runs", "0", "--compute-seconds-per-minute", "30"});
  EXPECT_NE(run({"list"}).find("60000       30             -      "), std::string::npos);
  EXPECT_EQ(error_of([&] { run({"limit", "--tenant", "alice"}); }),
            "cli: name what is to be limited, such as --tokens-per-minute 60000; 'twinkle keys "
            "limit --help' has all");
  EXPECT_NE(error_of([&] {
              run({"limit", "--tenant", "nobody", "--max-runs", "1"});
            }).find("the tenant 'nobody' has no key"),
            std::string::npos);
}

TEST_F(KeysCommand, ListKeepsLargeNumbersWholeAndApart) {
  run({"create", "--tenant", "a-tenant-of-25-characters", "--scope", "train", "--scope", "sample",
       "--scope", "metrics", "--weight", "1.2345678"});
  const std::string most = "9223372036854775807";
  const std::string limits =
      run({"limit", "--tenant", "a-tenant-of-25-characters", "--tokens-per-minute", most,
           "--compute-seconds-per-minute", "1e300", "--max-runs", most, "--max-adapters", most,
           "--max-disk", most});
  std::istringstream row(limits.substr(limits.find('\n')));
  std::vector<std::string> cells(8);
  for (std::string& cell : cells) row >> cell;
  EXPECT_EQ(cells, (std::vector<std::string>{"a-tenant-of-25-characters", "1", "0", most, "1e+300",
                                             most, most, most}))
      << limits;
  EXPECT_NE(run({"list"}).find(" train,sample,metrics 2"), std::string::npos) << run({"list"});
  EXPECT_NE(run({"list"}).find("Z  1.2345678 "), std::string::npos) << run({"list"});
  EXPECT_NE(error_of([&] {
              run({"limit", "--tenant", "a-tenant-of-25-characters", "--compute-seconds-per-minute",
                   "1e-300"});
            }).find("compute_seconds_per_minute is 1e-300, it must be at least 0.001, or 0"),
            std::string::npos);
}

TEST_F(KeysCommand, TheAuditLogTellsWhatAKeyIsForAndWhatChangedToWhat) {
  run({"create", "--tenant", "a", "--scope", "train", "--weight", "2", "--max-runs", "4"});
  run({"create", "--tenant", "a", "--priority", "-1"});
  run({"limit", "--tenant", "a", "--max-runs", "5", "--weight", "1", "--max-disk", "1KiB"});
  const auto keys = read();
  std::istringstream lines(read_text(dir_ / "state" / "audit.jsonl"));
  const auto next = [&] {
    std::string line;
    std::getline(lines, line);
    return line.substr(line.find(R"("action")"));
  };
  EXPECT_EQ(next(), R"("action":"keys create","tenant":"a","key":")" + keys[0].id +
                        R"(","scopes":["train"],"weight":2E0,"changed":{"max_runs":{"from":0,)" +
                        R"("to":4}}})");
  EXPECT_EQ(next(), R"("action":"keys create","tenant":"a","key":")" + keys[1].id +
                        R"(","scopes":["train","sample"],"priority":-1})");
  EXPECT_EQ(next(), R"("action":"keys limit","tenant":"a","changed":{"max_runs":{"from":4,"to":5},)"
                    R"("max_disk":{"from":0,"to":1024}}})");
}

TEST_F(KeysCommand, RevokeEndsOneKeyOrATenantsAndSaysWhich) {
  for (const char* tenant : {"a", "a", "b"}) run({"create", "--tenant", tenant});
  const auto made = read();
  EXPECT_EQ(run({"revoke", made[0].id}), "revoked " + made[0].id + " of tenant a\n");
  const std::string none = " in " + state_ + "/keys.json; 'twinkle keys list' has the ids";
  EXPECT_EQ(error_of([&] { run({"revoke", made[2].id, "--tenant", "a"}); }),
            "cli: there is no key " + made[2].id + " of tenant a" + none);
  EXPECT_EQ(error_of([&] { run({"revoke", "1f3a5c7e"}); }), "cli: there is no key 1f3a5c7e" + none);
  EXPECT_EQ(error_of([&] { run({"revoke", "--tenant", "c"}); }),
            "cli: there is no key of tenant c" + none);
  EXPECT_EQ(run({"revoke", "--tenant", "a"}), "revoked " + made[1].id + " of tenant a\n");
  const auto expect_revoked = [&](const std::string& which, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "revoke");
    const std::string error = error_of([&] { run(arguments); });
    EXPECT_TRUE(error.starts_with("cli: " + which + " is revoked already, since 20")) << error;
  };
  expect_revoked("the key " + made[0].id, {made[0].id});
  expect_revoked("the key " + made[0].id + " of tenant a", {made[0].id, "--tenant", "a"});
  expect_revoked("every key of tenant a", {"--tenant", "a"});
  const std::string audit = read_text(dir_ / "state" / "audit.jsonl");
  for (const auto& key : {made[0], made[1]})
    EXPECT_NE(audit.find("\"action\":\"keys revoke\",\"tenant\":\"" + key.tenant + "\",\"key\":\"" +
                         key.id + "\"}\n"),
              std::string::npos)
        << audit;
  const auto keys = read();
  EXPECT_TRUE(keys[0].revoked != 0 && keys[1].revoked != 0 && keys[2].revoked == 0);
}

TEST_F(KeysCommand, MistakesAreNamed) {
  const auto expires = [&](const char* text) {
    return error_of([&] { run({"create", "--tenant", "a", "--expires", text}); });
  };
  for (const char* text : {"30", "d", "0d", "-1d", "30s", "36501d", "30days", "tomorrow"})
    EXPECT_EQ(expires(text),
              std::string("cli: --expires ") + text +
                  " must be 1 to 36500 days (30d), hours (12h) or minutes (30m), or a day "
                  "(2027-01-31)");
  EXPECT_EQ(expires("2999-02-30"), "cli: --expires 2999-02-30 is no day of the calendar");
  EXPECT_EQ(expires("2001-01-31"), "cli: --expires 2001-01-31 is past; choose a later day");
  EXPECT_FALSE(std::filesystem::exists(state_));
  EXPECT_EQ(error_of([&] { run({"revoke"}); }),
            "cli: name the id of a key, or --tenant for all of its keys; 'twinkle keys list' has "
            "the ids");
  try {
    run({"create", "--tenant", "a", "--max-disk", "100XB"});
    ADD_FAILURE() << "100XB is taken";
  } catch (const CLI::ParseError& e) {
    EXPECT_STREQ(e.what(),
                 "--max-disk: '100XB' must be bytes: an integer, or with a unit, as 100GB or "
                 "100GiB");
  }
  EXPECT_THROW(run({"create"}), CLI::ParseError);
  EXPECT_THROW(run({}), CLI::ParseError);
}

}  // namespace
}  // namespace twinkle::cli
