#include "twinkle/data/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "twinkle/base/error_for_test.h"

namespace twinkle::data {
namespace {

TEST(Packing, BinsHoldEachSampleOnceAndAreFew) {
  std::mt19937 draw(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<int64_t> lengths(draw() % 60), all;
    for (int64_t& length : lengths) length = 1 + draw() % 100;
    int64_t few = 0;
    const auto found = bins(lengths, 100);
    for (const auto& bin : found) {
      int64_t sum = 0;
      for (const int64_t i : bin) sum += lengths[i];
      EXPECT_LE(sum, 100);
      few += 2 * sum <= 100 ? 1 : 0;
      all.insert(all.end(), bin.begin(), bin.end());
    }
    std::ranges::sort(all);
    std::vector<int64_t> each(lengths.size());
    std::iota(each.begin(), each.end(), 0);
    EXPECT_EQ(all, each);
    EXPECT_LE(few, 1) << "two such bins would be one";
    const double total = std::accumulate(lengths.begin(), lengths.end(), 0.0);
    const auto large = std::ranges::count_if(lengths, [](int64_t x) { return x > 50; });
    EXPECT_LE(static_cast<double>(found.size()),
              1.23 * total / 100 + 1 + static_cast<double>(large));
  }
  EXPECT_TRUE(bins({}, 5).empty());
}

TEST(Packing, ASampleGoesWhereTheLeastRoomIsLeft) {
  EXPECT_EQ(bins({5, 7, 3, 2, 3}, 10), (std::vector<std::vector<int64_t>>{{0, 3, 4}, {1, 2}}));
}

Dataset lengths_of(std::string_view json) {
  Table table{.name = "t"};
  const Json parsed = boost::json::parse(json);
  for (const Json& row : parsed.get_array()) table.rows.push_back(row.get_object());
  return Dataset(std::move(table));
}

TEST(Packing, FieldsOfEveryTokenAreJoinedIfAllSamplesHaveThem) {
  const Dataset rows = lengths_of(R"([
    {"input_ids": [1, 2], "labels": [2, -100], "loss_scale": [1, 2], "position_ids": [4, 5]},
    {"input_ids": [3], "labels": [-100], "id": 7},
    {"input_ids": [4, 5], "labels": [5, -100]}])");
  const Dataset out = packed(rows, 3, 2);
  ASSERT_EQ(out.size(), 2);
  EXPECT_EQ(Json(out.row(0)), boost::json::parse(R"({"input_ids": [1, 2, 3],
    "labels": [2, -100, -100], "length": 3, "position_ids": [0, 1, 0]})"));
  EXPECT_EQ(out.where(1), "t row 2") << "rows of another chunk are not joined to these";
}

TEST(Packing, RowsThatCannotBePackedAreNamed) {
  const auto error = [](std::string_view json) {
    return error_of([&] { packed(lengths_of(json), 2, 10); });
  };
  EXPECT_EQ(error(R"([{"i": 1}])"), "data: t row 0 has no input_ids: packing comes after encode");
  EXPECT_EQ(error(R"([{"input_ids": [1]}, {"input_ids": [1, 2, 3]}])"),
            "data: t row 1 has 3 tokens, packed rows have from 1 to 2");
  EXPECT_EQ(error(R"([{"input_ids": []}])"),
            "data: t row 0 has 0 tokens, packed rows have from 1 to 2");
  EXPECT_TRUE(error(R"([{"input_ids": [1], "routed_experts": [[[0]]]}])")
                  .starts_with("data: t row 0 has routed_experts, which packed rows do not carry"));
}

}  // namespace
}  // namespace twinkle::data
