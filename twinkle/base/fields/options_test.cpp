#include "twinkle/base/fields/options.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "twinkle/base/error_for_test.h"

namespace twinkle {
namespace {

enum class Color { kRed, kBlue };

struct InnerOptions {
  int64_t size = 4;
  double share = 0.5;
  static constexpr auto fields() {
    return std::tuple{option("size", &InnerOptions::size, between(1, 9), "things"),
                      option("share", &InnerOptions::share, strictly_between(0, 1), "of the time")};
  }
};

struct OuterOptions {
  InnerOptions inner;
  std::chrono::milliseconds wait{1500};
  Color color = Color::kBlue;
  std::string word = "a";
  std::vector<std::string> names;
  bool loud = true;
  uint16_t port = 80;
  uint64_t seed = 42;
  double norm = 1;
  static constexpr auto fields() {
    return std::tuple{
        group("inner", &OuterOptions::inner),
        option("wait_seconds", &OuterOptions::wait, at_least(0), "for them"),
        option("color", &OuterOptions::color, one_of("red", "blue"), "of it"),
        option("word", &OuterOptions::word, any(), "to say"),
        option("name", &OuterOptions::names, any(), "of it"),
        option("loud", &OuterOptions::loud, any(), "how"),
        option("port", &OuterOptions::port, between(0, 65535), "where"),
        option("seed", &OuterOptions::seed, between(0, kAnyBits), "of it"),
        option("norm", &OuterOptions::norm, {.least = 0, .one_of = {"inf"}}, "at most")};
  }
};

const AnyOption& named(const std::vector<AnyOption>& all, std::string_view name) {
  return *std::ranges::find_if(all, [&](const AnyOption& o) { return o.name == name; });
}

TEST(Options, ThoseOfAllGroupsAreToldByTheirNamesWithDefaults) {
  OuterOptions o;
  std::string all;
  for (const AnyOption& one : options_of(o))
    all += std::string(one.name) + "=" + told(one.get()) + " ";
  EXPECT_EQ(all,
            "size=4 share=0.5 wait_seconds=1.5 color=blue word=a name=[] loud=true port=80 seed=42 "
            "norm=1 ");
}

void set(const AnyOption& option, const std::string& text) {
  set_option(option, value_of(option, text), "test: ", text);
}

TEST(Options, AreSetFromTextsAndFromJson) {
  OuterOptions o;
  const auto all = options_of(o);
  set(named(all, "size"), "9");
  set(named(all, "share"), "2.5e-1");
  set(named(all, "wait_seconds"), "0.25");
  set(named(all, "color"), "red");
  set(named(all, "loud"), "false");
  set(named(all, "word"), "7");
  set_option(named(all, "name"), JsonArray{"a", "b"}, "", "");
  set_option(named(all, "port"), Json(65535), "", "");
  EXPECT_EQ(o.inner.size, 9);
  EXPECT_EQ(o.inner.share, 0.25);
  EXPECT_EQ(o.wait, std::chrono::milliseconds(250));
  EXPECT_EQ(o.color, Color::kRed);
  EXPECT_FALSE(o.loud);
  EXPECT_EQ(o.word, "7");
  EXPECT_EQ(o.names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(o.port, 65535);
}

TEST(Options, AValueOfAnotherKindOrOutsideItsLimitsIsRefusedAndNothingIsSet) {
  OuterOptions o;
  const auto error = [&, all = options_of(o)](const char* name, const std::string& text) {
    return error_of([&] { set(named(all, name), text); });
  };
  const std::string size = ", it must be an integer of at least 1, at most 9";
  for (const std::string text : {"0", "10", "1.5", "x", "", "99999999999999999999", "3 "})
    EXPECT_EQ(error("size", text), "test: size is " + text + size);
  for (const std::string text : {"0", "1", "nan", "inf", "half"})
    EXPECT_EQ(error("share", text),
              "test: share is " + text + ", it must be a number above 0, below 1");
  EXPECT_EQ(error("wait_seconds", "-1"),
            "test: wait_seconds is -1, it must be a number of at least 0");
  EXPECT_EQ(error("wait_seconds", "inf"),
            "test: wait_seconds is inf, it must be a number of at least 0");
  EXPECT_EQ(error("color", "green"), "test: color is green, it must be 'red' or 'blue'");
  EXPECT_EQ(error("color", ""), "test: color is , it must be 'red' or 'blue'");
  EXPECT_EQ(error("loud", "1"), "test: loud is 1, it must be true or false");
  EXPECT_EQ(error_of([&] { set_option(named(options_of(o), "name"), Json("a"), "", "'a'"); }),
            "name is 'a', it must be a list of texts");
  EXPECT_EQ(o.inner.size, 4);
  EXPECT_EQ(o.color, Color::kBlue);
}

TEST(Options, ANumberIsInfiniteWhereThatIsAllowed) {
  OuterOptions o;
  const auto error = [&, all = options_of(o)](const std::string& text) {
    return error_of([&] { set(named(all, "norm"), text); });
  };
  EXPECT_EQ(error("inf"), "no error");
  EXPECT_TRUE(std::isinf(o.norm));
  for (const std::string text : {"-inf", "nan", "-1"})
    EXPECT_EQ(error(text),
              "test: norm is " + text + ", it must be a number of at least 0 or 'inf'");
}

TEST(Options, ThoseOfBytesAreAlsoSetByATextWithAUnit) {
  for (const auto& [text, bytes] :
       std::initializer_list<std::pair<const char*, int64_t>>{{"7", 7},
                                                              {"3KiB", 3 << 10},
                                                              {"64MiB", 64 << 20},
                                                              {"2 GiB", int64_t{2} << 30},
                                                              {"1TiB", int64_t{1} << 40},
                                                              {"3KB", 3'000},
                                                              {"100MB", 100'000'000},
                                                              {"100GB", 100'000'000'000},
                                                              {"1 TB", 1'000'000'000'000},
                                                              {"-1KB", -1'000}})
    EXPECT_EQ(bytes_of(text), bytes) << text;
  for (const char* text : {"", "KB", "1.5GiB", "1  KB", "1kb", "1K", "1KBs", "9999999TiB", "x"})
    EXPECT_EQ(bytes_of(text), std::nullopt) << text;
  struct Sizes {
    int64_t max_bytes_total = 1, size = 1;
    static constexpr auto fields() {
      return std::tuple{option("max_bytes_total", &Sizes::max_bytes_total, at_least(1), "of it"),
                        option("size", &Sizes::size, at_least(1), "things")};
    }
  } o;
  const auto all = options_of(o);
  set(named(all, "max_bytes_total"), "2MiB");
  EXPECT_EQ(o.max_bytes_total, 2 << 20);
  EXPECT_EQ(error_of([&] { set(named(all, "max_bytes_total"), "0KiB"); }),
            "test: max_bytes_total is 0KiB, it must be an integer of at least 1");
  EXPECT_EQ(error_of([&] { set(named(all, "size"), "1KB"); }),
            "test: size is 1KB, it must be an integer of at least 1");
}

TEST(Options, AStructIsCheckedAsAWhole) {
  OuterOptions o;
  check_options(o, "test: ");
  o.inner.size = -3;
  EXPECT_EQ(error_of([&] { check_options(o, "test: "); }),
            "test: size is -3, it must be an integer of at least 1, at most 9");
}

TEST(Options, AnUnknownNameIsRefusedWithTheNearest) {
  const std::vector<std::string> names{"port", "loud"};
  const auto error = [&](const char* name) {
    return error_of([&] { refuse_name(name, names, "test: ", "key"); });
  };
  EXPECT_EQ(error("prot"), "test: 'prot' is no key; did you mean 'port'?");
  EXPECT_EQ(error("elephant"), "test: 'elephant' is no key; there are port, loud");
}

TEST(Options, ThatTakeAllBitsOfAnIntegerTakeTheLargestAndOthersAreRefusedIt) {
  OuterOptions o;
  const auto all = options_of(o);
  const std::string largest = "18446744073709551615";
  set(named(all, "seed"), largest);
  EXPECT_EQ(o.seed, UINT64_MAX);
  EXPECT_EQ(told(named(all, "seed").get()), largest);
  check_options(o, "");
  for (const char* text : {"-1", "18446744073709551616", "1.5", "x"})
    EXPECT_EQ(invalid_of([&] { set(named(all, "seed"), text); }),
              std::string("test: seed is ") + text +
                  ", it must be an integer of at least 0, at most " + largest);
  EXPECT_EQ(invalid_of([&] { set(named(all, "size"), largest); }),
            "test: size is " + largest + ", it must be an integer of at least 1, at most 9");
}

}  // namespace
}  // namespace twinkle
