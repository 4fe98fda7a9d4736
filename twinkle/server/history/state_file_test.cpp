#include "twinkle/server/history/state_file.h"

#include <gtest/gtest.h>

#include <chrono>

#include "twinkle/base/error_for_test.h"
#include "twinkle/base/fields/codec.h"
#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle::server {
namespace {

std::string named(uint64_t n) { return std::string("/").append(std::to_string(n)); }

class CarriedRecordsTest : public testing::Test {
 protected:
  // A segment of the commands 1 to `last`.
  void write_segment(uint64_t last) const {
    std::string bytes;
    for (uint64_t n = 1; n <= last; ++n) {
      ByteWriter writer;
      writer.put(Command{.path = named(n), .body = std::string(n % 7 * 100, 'x')});
      const std::string payload = writer.take();
      const store::Record record{n, Command::kKind, 1, payload};
      const store::Header header = store::header_of(record);
      bytes.append(header.begin(), header.end()) += payload;
    }
    write_text(store::segment_path(dir_.path(), 1), bytes);
  }
  // A state of all records to `sequence`, of which these have not ended.
  void write(uint64_t sequence, const std::vector<uint64_t>& waiting) const {
    State state{.sequence = sequence};
    for (const uint64_t n : waiting)
      state.promises.push_back({.id = std::to_string(n), .sequence = n});
    write_state(dir_.path(), state);
  }
  std::string path_of(uint64_t sequence) {
    const store::StoredRecord record = carried_.read(sequence);
    ByteReader reader(record.payload, "test", store::kMaxPayloadBytes);
    Command out;
    reader.take(out);
    return out.path;
  }

  const ScratchDir dir_;
  CarriedRecords carried_{dir_.path()};
};

TEST_F(CarriedRecordsTest, AreReadInAnyOrderThoughTheLastHasTheStatesOwnSequence) {
  write_segment(20);
  write(20, {3, 9, 14, 20});
  for (const uint64_t n : {14U, 3U, 20U, 9U, 3U}) EXPECT_EQ(path_of(n), named(n));
}

TEST_F(CarriedRecordsTest, AreThoseOfTheNewStateWhenThatHasReplacedTheOld) {
  write_segment(20);
  write(15, {3, 9, 14});
  EXPECT_EQ(path_of(9), "/9");
  write(20, {14, 17});
  EXPECT_EQ(path_of(14), "/14");
  EXPECT_EQ(path_of(17), "/17");
  EXPECT_EQ(error_of([&] { path_of(9); }), "server: record 9 is not in " +
                                               state_file(dir_.path()).string() +
                                               ", and is needed; restore a backup");
}

// A server that ends need not wait for gigabytes.
TEST_F(CarriedRecordsTest, AStateThatIsBeingWrittenIsGivenUpBetweenRecords) {
  write_segment(20);
  write(15, {3, 9, 14});
  State state{.sequence = 20, .promises = {{.id = "14", .sequence = 14}}};
  for (int last = 0; last < 30; ++last) {
    int asked = 0;
    const std::string told =
        error_of([&] { write_state(dir_.path(), state, [&] { return asked++ == last; }); });
    if (last > 0 && told == "no error") break;
    EXPECT_EQ(told, "server: it ends; the state is written when it has grown again");
    EXPECT_EQ(path_of(9), "/9") << "the one before stays";
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_.path()), {}), 2);
  }
  EXPECT_NE(error_of([&] { path_of(9); }), "no error") << "at last it was written";
}

TEST_F(CarriedRecordsTest, ADamagedOneIsRefusedByNameAndOthersAreRead) {
  write_segment(20);
  write(20, {3, 9});
  std::string bytes = read_text(state_file(dir_.path()));
  bytes[bytes.find("/3") + 1] = '4';
  write_text(state_file(dir_.path()), bytes);
  EXPECT_NE(error_of([&] { path_of(3); }).find("has no whole record 3"), std::string::npos);
  EXPECT_EQ(path_of(9), "/9");
}

// Each was looked for from the front, which took a minute.
TEST_F(CarriedRecordsTest, ManyAreReadInLinearTime) {
  constexpr uint64_t kMany = 10000;
  write_segment(kMany);
  std::vector<uint64_t> all;
  for (uint64_t n = 1; n <= kMany; ++n) all.push_back(n);
  write(kMany, all);
  const auto begun = std::chrono::steady_clock::now();
  for (uint64_t n = kMany; n > 0; --n) ASSERT_EQ(path_of(n), named(n));
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(8));
}

}  // namespace
}  // namespace twinkle::server
