#include "twinkle/engine/weights/shelf.h"

#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"

namespace twinkle::engine {
namespace {

TEST(Shelf, GivesWhatWasPutThereOnceAndOnlyAsWhatItIs) {
  Shelf shelf;
  const auto weights = shelf.put(NewWeights{.adapter = {{"a", {}}, {"b", {}}}});
  const auto reader = shelf.put([](const WeightsView&) {});
  EXPECT_EQ(weights.number(), 1);
  EXPECT_EQ(reader.number(), 2);
  EXPECT_FALSE(shelf.has_base(1) || shelf.has_base(2));
  expect_error("weights of number 1 are neither", [&] { shelf.take_reader(1); });
  EXPECT_EQ(shelf.take_weights(1).adapter.size(), 2U);
  expect_error("weights of number 1 are neither", [&] { shelf.take_weights(1); });
  EXPECT_TRUE(shelf.take_reader(2));
}

TEST(Shelf, IsClearedByThePlaceThatGoes) {
  Shelf shelf;
  {
    const auto place = shelf.put(NewWeights{.base = {{"a", {}}}});
    EXPECT_EQ(place.number(), 1);
    EXPECT_TRUE(shelf.has_base(1));
  }
  EXPECT_FALSE(shelf.has_base(1));
  expect_error("weights of number 1 are neither", [&] { shelf.take_weights(1); });
}

}  // namespace
}  // namespace twinkle::engine
