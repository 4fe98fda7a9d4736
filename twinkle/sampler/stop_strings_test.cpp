#include "twinkle/sampler/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

namespace twinkle::sampler {
namespace {

// Token i is the text of vocabulary[i].
Decode decoder(const std::vector<std::string>& vocabulary) {
  return [vocabulary](std::span<const int32_t> ids) {
    std::string text;
    for (const int32_t id : ids) text += vocabulary[static_cast<size_t>(id)];
    return text;
  };
}

TEST(StopStrings, FindsAStringSpreadOverTokensAtTheTokenThatCompletesIt) {
  const Decode decode = decoder({"ab", "c<", "e", "nd>x", "y"});
  const std::vector<std::string> stops = {"<end>"};
  StopStrings finder(stops, decode);
  const std::vector<int32_t> ids = {0, 1, 2, 3, 4};
  for (size_t n = 1; n <= 3; ++n) EXPECT_EQ(finder.find(std::span(ids).first(n)), nullptr);
  EXPECT_EQ(finder.find(std::span(ids).first(4)), &stops[0]);
}

TEST(StopStrings, OfSeveralTheOneThatBeginsFirstWinsThenTheFirstInTheList) {
  const Decode decode = decoder({"xabcd"});
  const std::vector<std::string> stops = {"cd", "bc", "bcd", "zz"};
  StopStrings finder(stops, decode);
  EXPECT_EQ(finder.find(std::vector<int32_t>{0}), &stops[1]);
}

TEST(StopStrings, WithoutStringsNothingIsDecoded) {
  const Decode decode = [](std::span<const int32_t>) -> std::string { throw 1; };
  const std::vector<std::string> stops;
  StopStrings finder(stops, decode);
  EXPECT_EQ(finder.find(std::vector<int32_t>{0}), nullptr);
}

TEST(StopStrings, AgreesWithDecodingEverythingAndDecodesOnlyATail) {
  std::mt19937 random(3);
  const std::vector<std::string> vocabulary = {"a", "b", "ab", "", "ba", "bbb"};
  const std::vector<std::string> stops = {"bbbbabab", "aaaaaaa", "abbabbabb"};
  const Decode whole = decoder(vocabulary);
  size_t found = 0, most = 0;
  const Decode decode = [&](std::span<const int32_t> ids) {
    most = std::max(most, ids.size());
    return whole(ids);
  };
  for (int round = 0; round < 30; ++round) {
    StopStrings finder(stops, decode);
    std::vector<int32_t> ids;
    for (int i = 0; i < 400; ++i) {
      ids.push_back(static_cast<int32_t>(random() % vocabulary.size()));
      const std::string text = whole(ids);
      bool expected = false;
      for (const std::string& stop : stops) expected |= text.find(stop) != std::string::npos;
      const bool got = finder.find(ids) != nullptr;
      ASSERT_EQ(got, expected) << "round " << round << " token " << i;
      if (got) break;
    }
    found += ids.size() < 400;
  }
  EXPECT_GT(found, 10u);  // both outcomes occurred
  EXPECT_LT(most, 150u);
}

}  // namespace
}  // namespace twinkle::sampler
