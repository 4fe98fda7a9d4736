#include "twinkle/io/tensor_view.h"

#include <gtest/gtest.h>

namespace twinkle {
namespace {

TEST(TensorView, KnowsEveryDtypeByNameAndSize) {
  const std::vector<std::pair<std::string_view, int64_t>> rows = {
      {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8},
      {"I32", 4}, {"I16", 2}, {"I8", 1},  {"U8", 1},   {"BOOL", 1}};
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto dtype = static_cast<Dtype>(i);
    EXPECT_EQ(name_of(dtype), rows[i].first);
    EXPECT_EQ(size_of(dtype), rows[i].second);
    EXPECT_EQ(dtype_named(rows[i].first), dtype);
  }
  EXPECT_EQ(dtype_named("F8"), std::nullopt);
}

TEST(TensorView, CountsElementsUnlessTheyOverflow) {
  EXPECT_EQ(num_elements(std::vector<int64_t>{}), 1);
  EXPECT_EQ(num_elements(std::vector<int64_t>{3, 0, 5}), 0);
  EXPECT_EQ(num_elements(std::vector<int64_t>{3, 4}), 12);
  EXPECT_EQ(num_elements(std::vector<int64_t>{3, -1}), std::nullopt);
  EXPECT_EQ(num_elements(std::vector<int64_t>{int64_t{1} << 40, int64_t{1} << 40}), std::nullopt);
  EXPECT_EQ(shape_text(std::vector<int64_t>{3, 64}), "[3, 64]");
  EXPECT_EQ(shape_text(std::vector<int64_t>{}), "[]");
}

}  // namespace
}  // namespace twinkle
