#include "twinkle/data/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include "twinkle/base/error_for_test.h"
#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle::data {
namespace {

std::filesystem::path write(const std::string& name, const std::string& text) {
  const auto file = std::filesystem::path(testing::TempDir()) / ("dataset_test_" + name);
  std::ofstream(file, std::ios::binary) << text;
  return file;
}

Dataset numbers(int64_t n, const std::string& name = "memory") {
  Table table{.name = name};
  for (int64_t i = 0; i < n; ++i) table.rows.push_back({{"i", i}});
  return Dataset(std::move(table));
}

std::vector<int64_t> values(const Dataset& dataset, const char* key = "i") {
  std::vector<int64_t> out;
  for (const Row& row : dataset.rows()) out.push_back(row.at(key).as_int64());
  return out;
}

TEST(Dataset, ReadsByExtensionAndRefusesOthers) {
  EXPECT_EQ(Dataset::read(write("a.jsonl", "{\"i\": 1}\n")).size(), 1);
  EXPECT_EQ(Dataset::read(write("a.json", "[{\"i\": 1}, {\"i\": 2}]")).size(), 2);
  EXPECT_EQ(Dataset::read(write("a.csv", "i\n1\n2\n3\n")).size(), 3);
  EXPECT_EQ(Dataset::read(write("b.JSONL", "{\"i\": 1}\n")).size(), 1);
  EXPECT_EQ(Dataset::read(write("b.Json", "[{\"i\": 1}, {\"i\": 2}]")).size(), 2);
  EXPECT_EQ(Dataset::read(write("b.CSV", "i\n1\n2\n3\n")).size(), 3);
  EXPECT_EQ(Dataset::read(write("b.tsv", "i\n1\n2\n3\n")).size(), 3);
  EXPECT_EQ(Dataset::read(write("b.TXT", "a\nb\n")).row(1), (Row{{"text", "b"}}));
  const auto text = write("a.XLS", "x");
  EXPECT_EQ(error_of([&] { Dataset::read(text); }),
            "data: " + text.string() +
                " has extension '.XLS', it must be .jsonl, .json, .csv, .tsv or .txt");
  EXPECT_EQ(error_of([] { Dataset::read("/nowhere.csv"); }), "data: no file /nowhere.csv");
}

TEST(Dataset, OfAFolderHasTheRowsOfItsFilesInTheOrderOfTheirNames) {
  const ScratchDir dir;
  write_text(dir / "b.jsonl", "{\"i\": 2}\n");
  write_text(dir / "a.csv", "i\n1\n");
  const Dataset rows = Dataset::read(dir.path());
  EXPECT_EQ(values(rows), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(rows.where(1), (dir / "b.jsonl").string() + " line 1");
}

TEST(Dataset, SliceWrapsModuloTheLengthAndRefusesNegativeIndices) {
  EXPECT_EQ(values(numbers(3).slice({0, 2, 3, 7})), (std::vector<int64_t>{0, 2, 0, 1}));
  EXPECT_EQ(error_of([] { numbers(3).slice({-1}); }),
            "data: data_slice has index -1, it must be at least 0");
  EXPECT_EQ(error_of([] { Dataset().slice({0}); }), "data: cannot slice an empty dataset");
}

TEST(Mixture, PutsPartsOneAfterTheOtherOrInTurn) {
  const auto places = [](Mixture::Order order) {
    const Mixture mixture({3, 1, 2}, order);
    std::string out;
    for (int64_t i = 0; i < mixture.size(); ++i)
      out += "abc"[mixture.at(i).part] + std::to_string(mixture.at(i).row) + " ";
    return out;
  };
  EXPECT_EQ(places(Mixture::Order::kOneByOne), "a0 a1 a2 b0 c0 c1 ");
  EXPECT_EQ(places(Mixture::Order::kUntilShortest), "a0 b0 c0 ");
  EXPECT_EQ(places(Mixture::Order::kUntilLongest), "a0 b0 c0 a1 b0 c1 a2 b0 c0 ");
  EXPECT_EQ(Mixture({}, Mixture::Order::kUntilShortest).size(), 0);
  EXPECT_EQ(Mixture({0, 2}, Mixture::Order::kOneByOne).at(0).part, 1);
  EXPECT_EQ(error_of([] { Mixture({2}, Mixture::Order::kOneByOne).at(2); }),
            "data: row 2 is outside the mixture of 2 rows");
  EXPECT_EQ(error_of([] { Mixture({0, 2}, Mixture::Order::kUntilLongest); }),
            "data: a part without rows cannot begin again, until one of 2 rows ends");
}

TEST(Dataset, MapKeepsTheOtherFieldsAndCallsOncePerRow) {
  std::atomic<int> calls = 0;
  const Dataset mapped = numbers(1000).map([&](const Row& row) -> Row {
    ++calls;
    return {{"j", row.at("i").as_int64() * 2}};
  });
  EXPECT_EQ(calls, 1000);
  for (int64_t i = 0; i < 1000; ++i) EXPECT_EQ(mapped.row(i), (Row{{"i", i}, {"j", 2 * i}}));
}

TEST(Dataset, AnErrorInARowCarriesItsFileAndLineEvenAfterSlicing) {
  const auto file = write("bad.jsonl", "{\"i\": 1}\n\n{\"i\": 2}\n{\"i\": 3}\n");
  const auto refuse_two = [](const Row& row) -> Row {
    require(row.at("i").as_int64() != 2, Code::kNotFound, "test: two is bad");
    return {};
  };
  EXPECT_EQ(error_of([&] { Dataset::read(file).slice({2, 1}).map(refuse_two); }),
            "data: " + file.string() + " line 3: two is bad");
  const auto array = write("bad.json", "[{\"i\": 1},\n\n {\"i\": 2}]");
  EXPECT_EQ(error_of([&] {
              Dataset::concat({numbers(1), Dataset::read(array).slice({1})}).map(refuse_two);
            }),
            "data: " + array.string() + " line 3, row 1: two is bad");
}

TEST(Dataset, OfSeveralBadRowsTheFirstIsReported) {
  const auto refuse_late = [](const Row& row) -> Row {
    require(row.at("i").as_int64() < 40, Code::kInvalid, "late");
    return {};
  };
  for (int run = 0; run < 20; ++run) {
    EXPECT_EQ(error_of([&] { numbers(500).map(refuse_late); }), "data: memory row 40: late");
  }
}

TEST(Dataset, FilterAndEncodeDropAndSplitRowsInOrder) {
  const auto odd = [](const Row& row) { return row.at("i").as_int64() % 2 == 1; };
  EXPECT_EQ(values(numbers(6).filter(odd)), (std::vector<int64_t>{1, 3, 5}));
  const Dataset encoded = numbers(3).encode(
      [](const Row& row) { return Rows(static_cast<size_t>(row.at("i").as_int64()), row); });
  EXPECT_EQ(values(encoded), (std::vector<int64_t>{1, 2, 2}));
  EXPECT_EQ(encoded.where(2), "memory row 2");
}

// Work on a row does not end before every core has begun one.
TEST(Dataset, EncodingUsesEveryCoreAtTheSameTime) {
  const size_t cores = std::max(1u, std::thread::hardware_concurrency());
  std::mutex mutex;
  std::condition_variable all_there;
  std::set<std::thread::id> threads;
  numbers(static_cast<int64_t>(16 * cores)).encode([&](const Row& row) {
    std::unique_lock lock(mutex);
    threads.insert(std::this_thread::get_id());
    all_there.notify_all();
    all_there.wait_for(lock, std::chrono::seconds(20), [&] { return threads.size() == cores; });
    return Rows{row};
  });
  EXPECT_EQ(threads.size(), cores);
}

TEST(Dataset, MixingConcatenatesOrInterleavesUntilTheShortestEnds) {
  const std::vector<Dataset> parts = {numbers(3, "a"), numbers(2, "b")};
  EXPECT_EQ(values(Dataset::concat(parts)), (std::vector<int64_t>{0, 1, 2, 0, 1}));
  const Dataset mixed = Dataset::interleave(parts);
  EXPECT_EQ(values(mixed), (std::vector<int64_t>{0, 0, 1, 1}));
  EXPECT_EQ(mixed.where(3), "b row 1");
}

TEST(Dataset, RowsAreAddressedFromBothEnds) {
  EXPECT_EQ(numbers(3).row(-1), (Row{{"i", 2}}));
  EXPECT_EQ(error_of([] { numbers(3).row(3); }), "data: row 3 is outside the dataset of 3 rows");
}

TEST(Dataset, ReplacedRowsKeepTheirPlaces) {
  const Dataset out = numbers(3, "a").replaced({{{"i", 9}}}, {2});
  EXPECT_EQ(out.where(0), "a row 2");
  EXPECT_EQ(error_of([] { numbers(3).replaced({}, {0}); }), "data: 0 rows have 1 origins");
  EXPECT_EQ(error_of([] { numbers(3).replaced({{}}, {3}); }),
            "data: origin 3 is outside the dataset of 3 rows");
}

}  // namespace
}  // namespace twinkle::data
