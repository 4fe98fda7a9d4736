#include "twinkle/serving/log/log.h"

#include "twinkle/base/error_for_test.h"
#include "twinkle/io/atomic.h"
#include "twinkle/serving/core/core_for_test.h"
#include "twinkle/serving/log/fault_point_for_test.h"

namespace twinkle::server::core {
namespace {

namespace fs = std::filesystem;

class LogTest : public CoreTest {
 protected:
  std::string refusal_of(const Opened& opened, bool accept_other_arithmetic = false) {
    opened_ = opened;
    arithmetic_ = opened.arithmetic;
    accept_other_arithmetic_ = accept_other_arithmetic;
    return error_of([this] { start(); });
  }
  static std::string bytes_of(const Domain& domain) {
    State state = domain.state(1, 1);
    state.removing.clear();  // a folder that is gone is not journalled
    ByteWriter writer;
    writer.put(state);
    return writer.take();
  }
};

TEST_F(LogTest, AStartThatWouldChangeWhatClientsWereToldIsRefusedByName) {
  kill();
  fs::remove_all(dir_.path());
  const Opened here{.arithmetic = "{\"torch\":1}", .model = "{\"a\":1}", .weights = "1"};
  EXPECT_EQ(refusal_of(here), "no error");
  const std::string id = make_run();
  result(train(id, 1));
  EXPECT_NE(refusal_of({.arithmetic = here.arithmetic, .model = "b"}).find("is of the model"),
            std::string::npos);
  const Opened other{.arithmetic = "{\"torch\":2}", .model = here.model, .weights = "1"};
  EXPECT_NE(refusal_of(other).find("{\"torch\":2}"), std::string::npos);
  EXPECT_EQ(refusal_of(other, true), "no error");
  result(train(id, 2));
  EXPECT_EQ(done(id).size(), 2U);
  Opened moved = other;
  moved.path = "/copy";
  EXPECT_EQ(refusal_of(moved, true), "no error");
  moved.weights = "2";
  EXPECT_NE(refusal_of(moved, true).find("in /copy has other weights"), std::string::npos);
  // It was computed with two kinds: what is done again is not compared.
  on_batch_ = [] { fail(Code::kInvalid, "null: not this time"); };
  EXPECT_EQ(refusal_of(other), "no error");
  EXPECT_TRUE(until([&] { return core_->num_done_again() == 2; }));
  EXPECT_EQ(core_->domain().run(id)->lost, "");
}

TEST_F(LogTest, ARecordOrAStateOfAnotherFormatIsRefusedWithBothFormats) {
  const fs::path journal = dir_ / "journal";
  kill();
  const auto refused = [&](const std::string& what, const char* ours) {
    const std::string why = "server: " + what + ", this program reads format " + ours +
                            ": serve it by the version that wrote it, or name another --state";
    EXPECT_EQ(refusal_of({.arithmetic = "{}", .model = "null"}), why);
    EXPECT_EQ(error_of([&] { domain_in(journal); }), why);
  };
  uint64_t next = 0;
  {
    store::Journal theirs(journal, {});
    theirs.open([](const store::Record&) {});
    next = theirs.report().next;
    theirs.append(Read::kKind, 1, "", [](uint64_t, const auto&) {});
  }
  refused("record " + std::to_string(next) + " of the journal in " + journal.string() +
              " is of format 1",
          "3");
  const store::Header header =
      store::header_of({.sequence = next, .kind = State::kKind, .version = 2, .payload = {}});
  write_file_atomically(state_file(journal), std::string_view(header.data(), header.size()));
  refused(state_file(journal).string() + " is of format 2", "4");
}

TEST_F(LogTest, AFolderIsReadBesideAServerThatRunsWithAStateAndWithout) {
  EXPECT_EQ(domain_in(dir_ / "nothing").starts().size(), 0U);
  options_.saving.journal_bytes = 1;
  start();
  const std::string id = make_run();
  result(train(id, 1)), train(id, 3);
  EXPECT_EQ(bytes_of(domain_in(dir_ / "journal")), bytes_of(core_->domain()));
  EXPECT_TRUE(until([&] {
    session();
    loop_->pass(std::chrono::seconds(1));
    return core_->num_states() > 2;
  }));
  EXPECT_TRUE(is_there(state_file(dir_ / "journal")));
  EXPECT_EQ(bytes_of(domain_in(dir_ / "journal")), bytes_of(core_->domain()));
}

}  // namespace
}  // namespace twinkle::server::core
