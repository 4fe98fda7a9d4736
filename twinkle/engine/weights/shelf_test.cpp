#include "twinkle/engine/weights/shelf.h"

#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"

namespace twinkle::engine {
namespace {

TEST(Shelf, GivesWhatWasPutThereOnceAndOnlyAsWhatItIs) {
  Shelf shelf;
  const auto weights = shelf.put(std::vector<Weight>{{"a", {}}, {"b", {}}});
  const auto reader = shelf.put([](const WeightsView&) {});
  EXPECT_EQ(weights.number(), 1);
  EXPECT_EQ(reader.number(), 2);
  expect_error("weights of number 1 are neither", [&] { shelf.take_reader(1); });
  EXPECT_EQ(shelf.take_weights(1).size(), 2U);
  expect_error("weights of number 1 are neither", [&] { shelf.take_weights(1); });
  EXPECT_TRUE(shelf.take_reader(2));
}

TEST(Shelf, IsClearedByThePlaceThatGoes) {
  Shelf shelf;
  {
    const auto place = shelf.put(std::vector<Weight>(1));
    EXPECT_EQ(place.number(), 1);
  }
  expect_error("weights of number 1 are neither", [&] { shelf.take_weights(1); });
}

}  // namespace
}  // namespace twinkle::engine
