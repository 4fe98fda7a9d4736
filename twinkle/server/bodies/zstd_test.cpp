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

TEST(Zstd, TheBeginningIsToldOfWhatIsCutOffBrokenOrTooLong) {
  const std::string text = noise(300'000), whole = compressed(text);
  EXPECT_EQ(beginning_of(whole, "zstd", 1000), text.substr(0, 1000));
  EXPECT_EQ(beginning_of(std::string_view(whole).substr(0, 200'000), "zstd", 1000),
            text.substr(0, 1000));
  EXPECT_EQ(beginning_of(compressed("one") + "no frame", "zstd", 1000), "one");
  EXPECT_EQ(beginning_of("no frame", "zstd", 1000), "");
  EXPECT_EQ(beginning_of("", "zstd", 1000), "");
  EXPECT_EQ(beginning_of("plain", "", 3), "pla");
  EXPECT_EQ(beginning_of("plain", "identity", 30), "plain");
  EXPECT_EQ(beginning_of("plain", "br", 30), "");
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
