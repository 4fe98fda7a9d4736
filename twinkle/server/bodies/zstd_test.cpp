#include "twinkle/server/bodies/zstd.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include <random>

namespace twinkle::server {
namespace {

std::string compressed(const std::string& text, int level = 3) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), level));
  return out;
}

std::string noise(size_t bytes) {
  std::mt19937 random(1);
  std::string out(bytes, '\0');
  for (char& c : out) c = static_cast<char>(random());
  return out;
}

constexpr int64_t kLimit = int64_t{8} << 20;

TEST(Zstd, DecodesWhatTheLibraryCompressed) {
  for (const std::string& text :
       {std::string(), std::string("a"), std::string(3 << 20, 'x'), noise(3 << 20)}) {
    std::string body = compressed(text);
    EXPECT_EQ(decode_body(body, "zstd", kLimit), "");
    EXPECT_EQ(body, text);
  }
  std::string two = compressed("one, ") + compressed("two");
  EXPECT_EQ(decode_body(two, "zstd", kLimit), "");
  EXPECT_EQ(two, "one, two");
}

// Keeps all that it is given, and needs no more than so much.
struct Keeping : Finder {
  explicit Keeping(size_t most = 1 << 30) : most(most) {}
  bool read(std::string_view more) override { return (text += more).size() < most; }
  std::string found() const override { return text; }
  const size_t most;
  std::string text;
};

std::string searched(std::string_view body, const std::string& encoding, int64_t most,
                     size_t piece = 1000) {
  const auto finder = std::make_shared<Keeping>();
  Search search(finder, encoding, most);
  bool goes_on = true;
  for (size_t at = 0; at < body.size() && goes_on; at += piece)
    goes_on = search.read(body.substr(at, piece));
  return finder->text;
}

TEST(Zstd, ASearchIsToldAllThatCanBeDecodedOfWhatIsCutOffBrokenOrTooLongUpToItsLimit) {
  const std::string text = noise(300'000), whole = compressed(text);
  constexpr int64_t kMost = 400'000;
  for (const size_t piece : {1000, 70'000, 1'000'000})
    EXPECT_TRUE(searched(whole, "zstd", kMost, piece) == text) << piece;
  // As many blocks, of 128 KiB, as are whole.
  for (const std::string& part :
       {searched(whole, "zstd", 200'000),
        searched(std::string_view(whole).substr(0, 200'000), "zstd", kMost)})
    EXPECT_TRUE(part.size() >= 128 << 10 && part.size() <= 200'000 && text.starts_with(part));
  EXPECT_EQ(searched(compressed("one") + compressed("two") + "no frame", "zstd", kMost), "onetwo");
  EXPECT_EQ(searched("no frame", "zstd", kMost), "");
  EXPECT_EQ(searched(compressed(std::string(size_t{1} << 27, 'x')), "zstd", 5000),
            std::string(5000, 'x'))
      << "of a bomb";
  EXPECT_EQ(searched("", "zstd", kMost), "");
  EXPECT_EQ(searched("plain", "", 3), "pla");
  EXPECT_EQ(searched("plain", "identity", 30, 2), "plain");
  EXPECT_EQ(searched("plain", "br", 30), "");
}

TEST(Zstd, ASearchEndsWithItsFinder) {
  const auto finder = std::make_shared<Keeping>(1000);
  Search search(finder, "zstd", kLimit);
  const std::string bomb = compressed(std::string(size_t{1} << 27, 'x'));
  EXPECT_FALSE(search.read(bomb));
  EXPECT_FALSE(search.read(bomb));
  EXPECT_LT(finder->text.size(), size_t{1} << 18) << "the rest is not decoded";
  EXPECT_GT(search.num_bytes(), 8 << 20);
  EXPECT_FALSE(Search(nullptr, "", kLimit).read("x"));
}

TEST(Zstd, TheLimitIsExactAndABombIsNotDecoded) {
  std::string whole = compressed(noise(5000));
  EXPECT_EQ(decode_body(whole, "zstd", 5000), "");
  std::string more = compressed(noise(5001));
  EXPECT_EQ(decode_body(more, "zstd", 5000),
            "its Content-Encoding is zstd, but it is longer than 5000 bytes when it is decoded");
  std::string bomb = compressed(std::string(size_t{1} << 27, '\0'));
  EXPECT_LT(bomb.size(), 20'000);
  EXPECT_NE(decode_body(bomb, "zstd", kLimit).find("longer than 8388608"), std::string::npos);
}

TEST(Zstd, BrokenCutAndTooWideFramesAreRefused) {
  const std::string good = compressed(noise(100'000));
  for (const size_t kept : {size_t{0}, size_t{3}, size_t{20}, good.size() / 2, good.size() - 1}) {
    std::string cut = good.substr(0, kept);
    EXPECT_NE(decode_body(cut, "zstd", kLimit), "") << kept;
  }
  std::string other = "{\"a\": 1}";
  EXPECT_NE(decode_body(other, "zstd", kLimit).find("it is broken"), std::string::npos);
  std::string behind = good + "x";
  EXPECT_NE(decode_body(behind, "zstd", kLimit), "");
  const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> context(ZSTD_createCCtx(),
                                                                     ZSTD_freeCCtx);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_windowLog, 27);
  const std::string text = noise(100'000);
  std::string wide(ZSTD_compressBound(text.size()), '\0');
  ZSTD_outBuffer out{wide.data(), wide.size(), 0};
  ZSTD_inBuffer in{text.data(), text.size(), 0};
  ASSERT_FALSE(ZSTD_isError(ZSTD_compressStream2(context.get(), &out, &in, ZSTD_e_continue)));
  ASSERT_EQ(ZSTD_compressStream2(context.get(), &out, &in, ZSTD_e_end), 0);
  wide.resize(out.pos);
  EXPECT_NE(decode_body(wide, "zstd", kLimit).find("too much memory"), std::string::npos);
}

TEST(Zstd, OtherEncodingsAreNamed) {
  std::string body = "plain";
  EXPECT_EQ(decode_body(body, "", kLimit), "");
  EXPECT_EQ(decode_body(body, "identity", kLimit), "");
  EXPECT_EQ(body, "plain");
  EXPECT_EQ(decode_body(body, "gzip", kLimit),
            "its Content-Encoding is 'gzip', only zstd and identity are taken");
}

}  // namespace
}  // namespace twinkle::server
