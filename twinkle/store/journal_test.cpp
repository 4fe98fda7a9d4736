#include "twinkle/store/journal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <random>

#include "twinkle/base/error_for_test.h"
#include "twinkle/io/scratch_dir_for_test.h"
#include "twinkle/store/journal_for_test.h"

namespace twinkle::store {
namespace {

namespace fs = std::filesystem;

TEST(Journal, GivesBackWhatWasAppended) {
  const ScratchDir dir(memory_folder());
  std::mt19937 random(1);
  std::vector<Kept> all;
  for (int round = 0; round < 4; ++round) {
    Calls calls;
    Opened opened(dir / "j", {.segment_bytes = 3000});
    EXPECT_EQ(opened.kept, all);
    EXPECT_EQ(opened.journal->report().next, all.size() + 1);
    const size_t before = all.size();
    for (int i = 0; i < 100; ++i) {
      std::string payload(random() % 4 ? random() % 50 : random() % 5000, '\0');
      for (char& c : payload) c = static_cast<char>(random());
      all.push_back({all.size() + 1, static_cast<int>(random() % 256),
                     static_cast<int>(random() % 65536), payload});
      opened.journal->append(static_cast<uint8_t>(all.back().kind),
                             static_cast<uint16_t>(all.back().version), payload, calls.one());
    }
    const std::vector<std::string> texts = calls.wait(100);
    for (size_t i = 0; i < 100; ++i) EXPECT_EQ(texts[i], std::to_string(before + i + 1));
  }
}

TEST(Journal, CutsATornTailAtEveryByteAndGoesOn) {
  const ScratchDir dir(memory_folder());
  write_records(dir / "j", 5);
  const fs::path file = segment_path(dir / "j", 1);
  const std::string bytes = read_text(file);
  std::vector<size_t> ends = {0};
  for (int i = 1; i <= 5; ++i) ends.push_back(ends.back() + kHeaderBytes + text_of(i).size());
  ASSERT_EQ(ends.back(), bytes.size());
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    write_text(file, bytes.substr(0, cut));
    size_t whole = 0;
    while (whole < 5 && ends[whole + 1] <= cut) ++whole;
    {
      Opened opened(dir / "j");
      ASSERT_EQ(opened.kept.size(), whole) << cut;
      EXPECT_EQ(opened.journal->report().cut_bytes, static_cast<int64_t>(cut - ends[whole]));
      EXPECT_EQ(opened.journal->report().cut_file.empty(), cut == ends[whole]);
      EXPECT_EQ(fs::file_size(file), ends[whole]);
      opened.journal->append(9, 9, "after", [](uint64_t, std::exception_ptr) {});
    }
    Opened again(dir / "j");
    ASSERT_EQ(again.kept.size(), whole + 1);
    EXPECT_EQ(again.kept.back(), (Kept{whole + 1, 9, 9, "after"}));
  }
}

TEST(Journal, NamesADamagedRecordByFileAndByte) {
  const ScratchDir dir(memory_folder());
  write_records(dir / "j", 6, {.segment_bytes = 3 * (19 + 9)});
  const size_t size = kHeaderBytes + text_of(1).size();
  for (const uint64_t first : {1, 4}) {
    const fs::path file = segment_path(dir / "j", first);
    const std::string bytes = read_text(file);
    ASSERT_EQ(bytes.size(), 3 * size);
    for (size_t at = 0; at < bytes.size(); ++at) {
      std::string flipped = bytes;
      flipped[at] = static_cast<char>(flipped[at] ^ 1 << at % 8);
      write_text(file, flipped);
      const std::string error = error_of([&] { Opened opened(dir / "j"); });
      // The last record of all cannot be told from one that was being written.
      if (first == 4 && at / size == 2)
        EXPECT_EQ(error, "no error");
      else
        EXPECT_NE(error.find(file.string() + " is damaged at byte " +
                             std::to_string(at / size * size) + ","),
                  error.npos)
            << error;
    }
    write_text(file, bytes);
  }
  write_text(segment_path(dir / "j", 1), read_text(segment_path(dir / "j", 1)).substr(0, size));
  expect_error("begins with record 4, the segment before it ends before record 2",
               [&] { Opened opened(dir / "j"); });
}

// As a client's body may hold them.
TEST(Journal, WhatLooksLikeRecordsWithinATornTailIsCutOffWithIt) {
  const ScratchDir dir(memory_folder());
  write_records(dir / "j", 2);
  const fs::path file = segment_path(dir / "j", 1);
  const std::string before = read_text(file);
  std::string records;
  for (uint64_t sequence = 1; sequence < 100; ++sequence) {
    const Header header = header_of({sequence, 1, 2, ""});
    records.append(header.data(), header.size());
  }
  const Header header = header_of({3, 1, 2, records});
  const std::string whole = before + std::string(header.data(), header.size()) + records;
  for (size_t cut = before.size() + 1; cut < whole.size(); cut += 7) {
    write_text(file, whole.substr(0, cut));
    Opened opened(dir / "j");
    EXPECT_EQ(opened.kept.size(), 2U);
    EXPECT_EQ(opened.journal->report().cut_bytes, static_cast<int64_t>(cut - before.size()));
  }
  write_text(file, whole);
  EXPECT_EQ(Opened(dir / "j").kept.size(), 3U);
}

TEST(Journal, ForgetsWholeSegmentsAlone) {
  const ScratchDir dir(memory_folder());
  const JournalOptions options{.segment_bytes = 3 * (19 + 9)};
  write_records(dir / "j", 8, options);
  const auto firsts = [&] {
    std::vector<uint64_t> out;
    for (const Segment& segment : segments_in(dir / "j")) out.push_back(segment.first);
    return out;
  };
  EXPECT_EQ(firsts(), (std::vector<uint64_t>{1, 4, 7}));
  {
    Opened opened(dir / "j", options);
    opened.journal->truncate_before(3);
    EXPECT_EQ(firsts().size(), 3U);
    opened.journal->truncate_before(4);
    EXPECT_EQ(firsts(), (std::vector<uint64_t>{4, 7}));
    opened.journal->truncate_before(100);
    EXPECT_EQ(firsts(), (std::vector<uint64_t>{7}));
  }
  Opened opened(dir / "j", options);
  EXPECT_EQ(opened.kept.size(), 2U);
  EXPECT_EQ(opened.journal->report().next, 9U);
}

TEST(Journal, TakesARecordLargerThanASegment) {
  const ScratchDir dir(memory_folder());
  Calls calls;
  {
    Opened opened(dir / "j", {.segment_bytes = 100});
    for (const size_t size : {10, 1000, 10})
      opened.journal->append(1, 1, std::string(size, 'x'), calls.one());
    calls.wait(3);
  }
  EXPECT_EQ(segments_in(dir / "j").size(), 3U);
  EXPECT_EQ(Opened(dir / "j").kept[1].payload, std::string(1000, 'x'));
}

TEST(Journal, TakesAppendsOfManyThreadsInOneOrder) {
  const ScratchDir dir(memory_folder());
  Calls calls;
  {
    Opened opened(dir / "j", {.segment_bytes = 2000});
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < 200; ++i)
          opened.journal->append(static_cast<uint8_t>(t), 1, std::to_string(i), calls.one());
      });
    for (std::thread& thread : threads) thread.join();
    const std::vector<std::string> texts = calls.wait(1600);
    for (size_t i = 0; i < texts.size(); ++i) ASSERT_EQ(texts[i], std::to_string(i + 1));
  }
  std::vector<int> seen(8);
  const Opened opened(dir / "j");
  for (const Kept& kept : opened.kept) EXPECT_EQ(kept.payload, std::to_string(seen[kept.kind]++));
  EXPECT_EQ(opened.kept.size(), 1600U);
}

TEST(Journal, RefusesASecondOneByName) {
  const ScratchDir dir(memory_folder());
  const Opened opened(dir / "j");
  expect_error("store: the folder " + (dir / "j").string() + " is open in process " +
                   std::to_string(::getpid()),
               [&] { Opened second(dir / "j"); });
}

TEST(Journal, RefusesAFolderThatIsNone) {
  const ScratchDir dir(memory_folder());
  write_text(dir / "file", "x");
  expect_error("store: cannot make the folder", [&] { Opened opened(dir / "file"); });
  fs::create_directories(dir / "j" / "lock");
  expect_error("store: cannot open " + (dir / "j" / "lock").string(),
               [&] { Opened opened(dir / "j"); });
}

TEST(Journal, ReadsAnyRecordBackInAnyOrder) {
  const ScratchDir dir(memory_folder());
  const auto payload = [](uint64_t i) {
    return std::string(i % 7 == 0 ? 70000 : i * 37 % 900, static_cast<char>(i));
  };
  for (const bool again : {false, true}) {
    Calls calls;
    Opened opened(dir / "j", {.segment_bytes = 200000});
    for (uint64_t i = 1; !again && i <= 200; ++i)
      opened.journal->append(static_cast<uint8_t>(i), 2, payload(i), calls.one());
    calls.wait(again ? 0 : 200);
    for (uint64_t i = 200; i > 0; --i) {
      const StoredRecord read = opened.journal->read(i);
      EXPECT_EQ(read.kind, i);
      EXPECT_EQ(read.version, 2);
      EXPECT_EQ(read.payload, payload(i)) << i;
    }
    EXPECT_NE(error_of([&] { opened.journal->read(201); }).find("no whole record 201"),
              std::string::npos);
  }
}

TEST(Journal, DoesNotReadBackWhatWasRemovedOrDamaged) {
  const ScratchDir dir(memory_folder());
  write_records(dir / "j", 50, {.segment_bytes = 300});
  Opened opened(dir / "j", {.segment_bytes = 300});
  EXPECT_EQ(opened.journal->read(1).payload, text_of(1));
  opened.journal->truncate_before(30);
  EXPECT_EQ(error_of([&] { opened.journal->read(1); }).find("store: record 1 is not in"), 0U);
  EXPECT_EQ(opened.journal->read(30).payload, text_of(30));
  const fs::path last = segments_in(dir / "j").back().path;
  std::string bytes = read_file(last);
  bytes.back() ^= 1;
  write_text(last, bytes);
  EXPECT_NE(error_of([&] { opened.journal->read(50); }).find("no whole record 50"),
            std::string::npos);
}

TEST(Journal, KeepsWhatItAcknowledgedWhenItsProcessIsKilled) {
  const ScratchDir dir(memory_folder());
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    Opened opened(dir / "j", {.segment_bytes = 5000});
    while (true)
      opened.journal->append(1, 1, std::string(500, 'x'), [&](uint64_t s, std::exception_ptr) {
        std::ignore = ::write(ends[1], &s, sizeof s);  // the parent reads the first hundred
      });
  }
  uint64_t acknowledged = 0;
  for (int i = 0; i < 100; ++i) ASSERT_EQ(::read(ends[0], &acknowledged, 8), 8);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ends[1]);
  while (::read(ends[0], &acknowledged, 8) == 8) {
  }
  ::close(ends[0]);
  EXPECT_GE(Opened(dir / "j").kept.size(), acknowledged);
}

TEST(Journal, TakesNothingWhileItsFolderIsNotWhereItWas) {
  const ScratchDir dir(memory_folder());
  Calls calls;
  {
    Opened opened(dir / "j", {.segment_bytes = 1, .retry_seconds = 0.02});
    opened.journal->append(1, 1, "a", calls.one());
    calls.wait(1);
    fs::rename(dir / "j", dir / "away");
    fs::create_directory(dir / "j");  // a second record would begin a segment in this one
    opened.journal->append(1, 1, "b", calls.one());
    EXPECT_EQ(calls.wait(2).back(),
              "store: " + (dir / "j").string() +
                  " was moved, or another folder is in its place, while the server runs; move it "
                  "back, or end the server");
    EXPECT_TRUE(fs::is_empty(dir / "j"));
    fs::remove(dir / "j");
    fs::rename(dir / "away", dir / "j");
    wait_until_healthy(*opened.journal);
    opened.journal->append(1, 1, "c", calls.one());
    EXPECT_EQ(calls.wait(3).back(), "2");
  }
  EXPECT_EQ(Opened(dir / "j").kept.size(), 2U);
}

}  // namespace
}  // namespace twinkle::store
