#include "twinkle/serving/log/state_file.h"

#include <gtest/gtest.h>

#include <memory>
#include <mutex>

#include "twinkle/base/error_for_test.h"
#include "twinkle/base/fault/fault.h"
#include "twinkle/base/fields/codec.h"
#include "twinkle/io/scratch_dir_for_test.h"
#include "twinkle/serving/log/fault_point_for_test.h"

namespace {
using AtFaultPoint = std::function<void(std::string_view name)>;
std::mutex mutex;
std::shared_ptr<AtFaultPoint> at_fault_point;
}  // namespace

void twinkle::reach_fault_point(std::string_view name) {
  std::shared_ptr<AtFaultPoint> now;
  {
    const std::lock_guard lock(mutex);
    now = at_fault_point;
  }
  if (now && *now) (*now)(name);  // may wait, while other threads come to other points
}

void twinkle::server::core::set_fault_point(std::function<void(std::string_view)> then) {
  const auto made = std::make_shared<AtFaultPoint>(std::move(then));
  const std::lock_guard lock(mutex);
  at_fault_point = made;
}

namespace twinkle::server::core {
namespace {

std::string named(uint64_t n) { return std::string("/").append(std::to_string(n)); }

class CarriedRecordsTest : public testing::Test {
 protected:
  ~CarriedRecordsTest() override { set_fault_point({}); }
  // A segment of the records 1 to `last`.
  void write_segment(uint64_t last) const {
    std::string bytes;
    for (uint64_t n = 1; n <= last; ++n) {
      ByteWriter writer;
      writer.put(Lost{.run = named(n), .why = std::string(n % 7 * 100, 'x')});
      const std::string payload = writer.take();
      const store::Record record{n, Lost::kKind, 1, payload};
      const store::Header header = store::header_of(record);
      bytes.append(header.begin(), header.end()) += payload;
    }
    write_text(store::segment_path(dir_.path(), 1), bytes);
  }
  static State state_of(uint64_t sequence, const std::vector<uint64_t>& waiting) {
    State state{.sequence = sequence};
    for (const uint64_t n : waiting)
      state.futures.push_back({.id = std::to_string(n), .sequence = n});
    return state;
  }
  // A state of all records to `sequence`, of which these have not ended.
  void write(uint64_t sequence, const std::vector<uint64_t>& waiting) const {
    write_state(dir_.path(), state_of(sequence, waiting));
  }
  std::string name_of(uint64_t sequence) {
    const store::StoredRecord record = carried_.read(sequence);
    ByteReader reader(record.payload, "test", store::kMaxPayloadBytes);
    Lost out;
    reader.take(out);
    return out.run;
  }

  const ScratchDir dir_;
  CarriedRecords carried_{dir_.path()};
};

TEST_F(CarriedRecordsTest, AreReadInAnyOrderThoughTheLastHasTheStatesOwnSequence) {
  write_segment(20);
  write(20, {3, 9, 14, 20});
  for (const uint64_t n : {14U, 3U, 20U, 9U, 3U}) EXPECT_EQ(name_of(n), named(n));
}

TEST_F(CarriedRecordsTest, AreThoseOfTheNewStateWhenThatHasReplacedTheOld) {
  write_segment(20);
  write(15, {3, 9, 14});
  EXPECT_EQ(name_of(9), "/9");
  write(20, {14, 17});
  EXPECT_EQ(name_of(14), "/14");
  EXPECT_EQ(name_of(17), "/17");
  EXPECT_EQ(error_of([&] { name_of(9); }), "server: record 9 is not in " +
                                               state_file(dir_.path()).string() +
                                               ", and is needed; restore a backup");
}

// For futures that have ended the record of the end, of those that have not that of the request,
// and of what a start does again that, too.
TEST_F(CarriedRecordsTest, AreWhatAStartAndAPollNeedAndNoOthers) {
  write_segment(20);
  State state = state_of(20, {3});
  state.futures.push_back({.id = "ended", .sequence = 4, .ended = 9, .is_ended = true});
  state.futures.push_back({.id = "failed", .sequence = 5, .is_ended = true, .error = "no"});
  state.runs.push_back({.id = "run", .work = {{1, {.sequence = 7}}, {2, {.why = "no"}}}});
  write_state(dir_.path(), state);
  StateReader reader(dir_.path());
  std::vector<uint64_t> carried;
  while (const auto record = reader.next()) carried.push_back(record->sequence);
  EXPECT_EQ(carried, (std::vector<uint64_t>{3, 7, 9}));
}

// A server that ends need not wait for gigabytes.
TEST_F(CarriedRecordsTest, AStateThatIsBeingWrittenIsGivenUpBetweenRecords) {
  write_segment(20);
  write(15, {3, 9, 14});
  const State state = state_of(20, {14});
  for (int last = 0; last < 30; ++last) {
    int asked = 0;
    const std::string told =
        error_of([&] { write_state(dir_.path(), state, [&] { return asked++ == last; }); });
    if (last > 0 && told == "no error") break;
    EXPECT_EQ(told, "server: it ends; the state is written when it has grown again");
    EXPECT_EQ(name_of(9), "/9") << "the one before stays";
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_.path()), {}), 2);
  }
  EXPECT_NE(error_of([&] { name_of(9); }), "no error") << "at last it was written";
}

// It ends between two syncs, of which none has more to write.
TEST_F(CarriedRecordsTest, ALongStateIsSyncedInPartsAndGivenUpBetweenThem) {
  State state;
  state.sessions.push_back({.id = std::string(150 << 10, 'x')});
  int num_syncs = 0, most = 3;
  set_fault_point([&](std::string_view name) { num_syncs += name == "before a state's sync"; });
  const auto write = [&] {
    write_state(dir_.path(), state, [&] { return num_syncs == most; }, 64 << 10);
  };
  write();
  EXPECT_EQ(num_syncs, 2);
  EXPECT_EQ(StateReader(dir_.path()).state().sessions.at(0).id, state.sessions[0].id);
  std::filesystem::remove(state_file(dir_.path()));
  num_syncs = 0, most = 1;
  EXPECT_THROW(write(), Error);
  EXPECT_EQ(num_syncs, 1);
  EXPECT_FALSE(is_there(state_file(dir_.path())));
}

TEST_F(CarriedRecordsTest, ADamagedOneIsRefusedByNameAndOthersAreRead) {
  write_segment(20);
  write(20, {3, 9});
  std::string bytes = read_text(state_file(dir_.path()));
  bytes[bytes.find("/3") + 1] = '4';
  write_text(state_file(dir_.path()), bytes);
  EXPECT_NE(error_of([&] { name_of(3); }).find("has no whole record 3"), std::string::npos);
  EXPECT_EQ(name_of(9), "/9");
}

// From the front each would read 50 million headers.
TEST_F(CarriedRecordsTest, ManyAreRead) {
  constexpr uint64_t kMany = 10000;
  write_segment(kMany);
  std::vector<uint64_t> all;
  for (uint64_t n = 1; n <= kMany; ++n) all.push_back(n);
  write(kMany, all);
  for (uint64_t n = kMany; n > 0; --n) ASSERT_EQ(name_of(n), named(n));
}

}  // namespace
}  // namespace twinkle::server::core
