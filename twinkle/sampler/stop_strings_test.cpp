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

TEST(StopStrings, TokensAreSettledOnceNoStopStringCanBeginInThem) {
  const Decode decode = decoder({"ab", "c<", "e", "x", "nd>"});
  const std::vector<std::string> stops = {"<end>", "bx"};
  StopStrings finder(stops, decode);
  std::vector<int32_t> ids;
  const auto settled = [&](int32_t id) {
    ids.push_back(id);
    EXPECT_EQ(finder.find(ids), nullptr);
    return finder.num_settled(ids);
  };
  EXPECT_EQ(settled(2), 1u);  // e
  EXPECT_EQ(settled(0), 1u);  // ab may become abx
  EXPECT_EQ(settled(2), 3u);  // abe may not
  EXPECT_EQ(settled(1), 3u);
  EXPECT_EQ(settled(2), 3u);
  EXPECT_EQ(settled(2), 6u);  // c<ee
  EXPECT_EQ(settled(1), 6u);
  EXPECT_EQ(settled(1), 7u);  // c<c<
  ids.push_back(2);
  ids.push_back(4);
  EXPECT_EQ(finder.find(ids), &stops[0]);
}

TEST(StopStrings, AnUnfinishedCharacterIsNotSettled) {
  // One byte a token; unfinished characters decode to one replacement character a byte.
  const std::string cent = "\xC2\xA2", replacement = "\xEF\xBF\xBD";
  const Decode decode = [&](std::span<const int32_t> ids) {
    std::string text;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] == 0xC2 && i + 1 < ids.size() && ids[i + 1] == 0xA2) {
        text += cent;
        ++i;
      } else {
        text += ids[i] < 128 ? std::string(1, static_cast<char>(ids[i])) : replacement;
      }
    }
    return text;
  };
  const std::vector<std::string> stops = {"a" + cent + "b"};
  StopStrings finder(stops, decode);
  std::vector<int32_t> ids;
  const auto settled = [&](int32_t id) {
    ids.push_back(id);
    EXPECT_EQ(finder.find(ids), nullptr);
    return finder.num_settled(ids);
  };
  EXPECT_EQ(settled('x'), 1u);
  EXPECT_EQ(settled(0xC2), 1u);
  EXPECT_EQ(settled(0xA2), 3u);
  EXPECT_EQ(settled('a'), 3u);
  EXPECT_EQ(settled(0xC2), 3u);
  EXPECT_EQ(settled(0xA2), 3u);
  EXPECT_EQ(settled('c'), 7u);
}

TEST(StopStrings, WhatIsSettledNeverHoldsAByteOfAStopStringAndTheRestMight) {
  std::mt19937 random(4);
  const std::vector<std::string> vocabulary = {"a", "b", "ab", "", "ba", "bbb"};
  const std::vector<std::string> stops = {"bbbbabab", "aaaaaaa", "abbabbabb"};
  const Decode decode = decoder(vocabulary);
  // By its definition: where the first stop string would begin that the text's end begins.
  const auto open = [&](const std::string& text) {
    for (size_t at = 0; at < text.size(); ++at) {
      for (const std::string& stop : stops) {
        if (stop.starts_with(text.substr(at))) return at;
      }
    }
    return text.size();
  };
  for (int round = 0; round < 30; ++round) {
    StopStrings finder(stops, decode);
    std::vector<int32_t> ids;
    for (int i = 0; i < 300; ++i) {
      ids.push_back(static_cast<int32_t>(random() % vocabulary.size()));
      if (finder.find(ids)) break;
      const size_t settled = finder.num_settled(ids), limit = open(decode(ids));
      ASSERT_LE(decode(std::span(ids).first(settled)).size(), limit);
      if (settled < ids.size()) {
        ASSERT_GT(decode(std::span(ids).first(settled + 1)).size(), limit);
      }
    }
  }
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
