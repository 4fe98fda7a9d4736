#include "twinkle/server/auth/access.h"

#include <gtest/gtest.h>

#include <future>

#include "twinkle/base/error.h"
#include "twinkle/io/scratch_dir_for_test.h"
#include "twinkle/server/service/loop_for_test.h"

namespace twinkle::server {
namespace {

using namespace std::chrono_literals;

class AccessTest : public testing::Test {
 protected:
  std::string make(const std::string& tenant, std::vector<std::string> scopes = {"train", "sample"},
                   int64_t expires = 0) {
    return file_.create({.tenant = tenant, .scopes = std::move(scopes), .expires = expires}).text;
  }
  void revoke(const std::string& tenant) {
    file_.revoke([&](const store::Key& key) { return key.tenant == tenant; }, now_);
  }
  Access access() {
    return Access(file_, {.now = [this] { return now_; },
                          .warn = [this](const std::string& text) { warnings_.push_back(text); }});
  }
  void watch(Access& access) {
    access.watch({loop_, disk_}, [this] { return mark_; });
  }
  // A look at the file begins after so long, and ends.
  void pass(std::chrono::milliseconds time) {
    loop_.pass(time);
    bool is_over = false;
    disk_.run([] {}, loop_, [&](const auto&) { is_over = true; });
    EXPECT_TRUE(loop_.run_until([&] { return is_over; }));
  }
  // "tenant", or "status text".
  static std::string enter(const Access& access, const std::string& key,
                           Scope scope = Scope::kAny) {
    const auto in = access.enter(key, scope);
    if (const auto* caller = std::get_if<Caller>(&in))
      return caller->owner + (caller->revoked_at ? ", revoked" : "");
    const auto& refused = std::get<Response>(in);
    return std::to_string(refused.status) + " " + refused.body;
  }
  // For the log.
  static std::string reason(const Access& access, const std::string& key,
                            Scope scope = Scope::kAny) {
    return std::get<Response>(access.enter(key, scope)).reason;
  }
  std::string id(const std::string& tenant) const {
    for (const store::Key& key : file_.read())
      if (key.tenant == tenant) return key.id;
    return "none";
  }

  int64_t now_ = 1000, mark_ = 0;
  std::vector<std::string> warnings_;
  const ScratchDir dir_;
  const store::KeyFile file_{dir_.path()};
  LoopForTest loop_;
  Worker disk_;  // ends first
};

TEST_F(AccessTest, AKeyIsItsTenantsAndNoOtherTextIs) {
  const std::string a = make("alice"), b = make("bob");
  Access in = access();
  EXPECT_EQ(enter(in, a), "alice");
  EXPECT_EQ(enter(in, b), "bob");
  EXPECT_EQ(
      enter(in, ""),
      R"(401 {"detail":"server: the key is missing; send one of this server, as x-api-key: KEY or )"
      R"(Authorization: Bearer KEY"})");
  const std::string unknown =
      R"(401 {"detail":"server: the key is not known here; ask the operator for one"})";
  EXPECT_EQ(enter(in, "tml-a"), unknown);
  EXPECT_EQ(enter(in, a.substr(0, 67)), unknown);
  EXPECT_EQ(enter(in, file_.read()[0].sha256), unknown);
  const auto refused = in.enter("", Scope::kAny);
  EXPECT_EQ(std::get<Response>(refused).headers[0].first, "WWW-Authenticate");
  EXPECT_EQ(reason(in, ""), "absent");
  EXPECT_EQ(reason(in, "tml-a"), "unknown");
  EXPECT_EQ(reason(in, a, Scope::kMetrics), "scope");
}

TEST_F(AccessTest, AKeyEndsAtTheSecondOfItsExpiry) {
  const std::string a = make("alice", {"train"}, 1010);
  Access in = access();
  now_ = 1009;
  EXPECT_EQ(enter(in, a), "alice");
  now_ = 1010;
  EXPECT_EQ(enter(in, a), "401 {\"detail\":\"server: the key " + id("alice") +
                              " has expired; ask the operator for another\"}");
  EXPECT_EQ(reason(in, a), "expired");
}

TEST_F(AccessTest, AKeyWithoutTheScopeIs403AndSaysWhichItLacks) {
  const std::string trains = make("a", {"train"}), samples = make("b", {"sample"});
  Access in = access();
  EXPECT_EQ(enter(in, trains, Scope::kTrain), "a");
  EXPECT_EQ(enter(in, samples, Scope::kSample), "b");
  EXPECT_EQ(enter(in, trains, Scope::kSample),
            "403 {\"detail\":\"server: the key " + id("a") +
                " lacks the scope 'sample'; ask the operator for a key that has it\"}");
  EXPECT_EQ(enter(in, samples, Scope::kTrain).substr(0, 3), "403");
  EXPECT_EQ(enter(in, samples, Scope::kAny), "b");
  EXPECT_EQ(enter(in, "", Scope::kPublic), "");
}

TEST_F(AccessTest, ChangesCountWithinASecondAndNobodyWaitsForThem) {
  const std::string a = make("alice");
  Access in = access();
  watch(in);
  const std::string b = make("bob");
  pass(499ms);
  EXPECT_EQ(enter(in, b).substr(0, 3), "401");
  pass(1ms);
  EXPECT_EQ(enter(in, b), "bob");
  revoke("alice");
  std::promise<void> slow;
  disk_.run([&] { slow.get_future().wait(); });
  loop_.pass(1s);
  EXPECT_EQ(enter(in, a), "alice") << "at once, while the disk is slow";
  slow.set_value();
  pass(0ms);
  EXPECT_EQ(enter(in, a), "alice, revoked");
  EXPECT_EQ(enter(in, b), "bob");
}

TEST_F(AccessTest, ARevokedKeyKeepsTheMarkOfItsEndAndIs401AfterARestart) {
  const std::string a = make("alice");
  Access in = access();
  watch(in);
  revoke("alice");
  for (const int64_t mark : {7, 9}) {
    mark_ = mark;
    pass(500ms);
    const auto caller = in.enter(a, Scope::kAny);
    EXPECT_EQ(std::get<Caller>(caller).revoked_at, 7);
    make("bob");  // a change, after which the file is read again
  }
  Access later = access();
  EXPECT_EQ(enter(later, a), "401 {\"detail\":\"server: the key " + id("alice") +
                                 " is revoked; ask the operator for another\"}");
  EXPECT_EQ(reason(later, a), "revoked");
}

TEST_F(AccessTest, WhileTheFileCannotBeReadNobodyComesInAndTheOperatorIsToldOnce) {
  const std::string a = make("alice");
  const std::string good = read_text(file_.path());
  Access in = access();
  watch(in);
  const auto busy = [&] {
    try {
      return enter(in, a);
    } catch (const Error& e) {
      return std::string(e.code == Code::kBusy ? "busy: " : "") + e.what();
    }
  };
  for (const char* const broken : {"{", "{\"keys\":3}"}) {
    write_text(file_.path(), broken);
    for (int i = 0; i < 2; ++i) {
      pass(500ms);
      EXPECT_EQ(busy(),
                "busy: server: the keys of this server cannot be read at present; its "
                "operator was told");
    }
    EXPECT_EQ(warnings_.size(), 1u);
    EXPECT_NE(warnings_[0].find("keys.json"), std::string::npos) << warnings_[0];
    EXPECT_TRUE(warnings_[0].ends_with(
        "; until it is mended nobody comes in: requests are answered 503, polls 429"))
        << warnings_[0];
    write_text(file_.path(), good);
    pass(500ms);
    EXPECT_EQ(busy(), "alice");
    ASSERT_EQ(warnings_.size(), 2u);
    EXPECT_EQ(warnings_[1],
              "server: " + file_.path().string() + " can be read again: keys are let in");
    warnings_.clear();
  }
  std::filesystem::remove(file_.path());
  pass(500ms);
  EXPECT_EQ(busy().substr(0, 5), "busy:");
  EXPECT_EQ(error_of([&] { access(); }),
            "store: " + file_.path().string() + " does not exist; 'twinkle keys create' makes it");
}

TEST_F(AccessTest, AQuotaHasTheWeightAndPriorityOfAKeyThatHasItsOwnAndKeepsThemWhenItIsRevoked) {
  const store::Key wanted = {.tenant = "alice", .scopes = {"train"}};
  const std::string own = file_.create(wanted, {}, {.priority = -1}).key.id;
  make("alice");
  const std::string other = file_.read()[1].id;
  file_.limit("alice", [](store::Quota& q) { q.weight = 4, q.priority = 2, q.max_runs = 3; });
  Access in = access();
  watch(in);
  const auto quota = [&](const std::string& key_id) { return in.quota("alice", key_id); };
  const store::Quota tenants = {.tenant = "alice", .weight = 4, .priority = 2, .max_runs = 3};
  store::Quota keys = tenants;
  keys.priority = -1;
  EXPECT_EQ(quota(own), keys);
  EXPECT_EQ(quota(other), tenants);
  EXPECT_EQ(quota(""), tenants);
  revoke("alice");
  pass(500ms);
  EXPECT_EQ(quota(own), keys);
}

TEST_F(AccessTest, OpenEverybodyComesInAndOwnersAreNotTheKeysThemselves) {
  Access open;
  EXPECT_EQ(enter(open, "tml-a", Scope::kTrain), enter(open, "tml-a", Scope::kSample));
  EXPECT_NE(enter(open, "tml-a"), enter(open, "tml-b"));
  EXPECT_EQ(enter(open, "tml-a").find("tml-a"), std::string::npos);
}

}  // namespace
}  // namespace twinkle::server
