#include "twinkle/engine/memory/text_of_error.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "twinkle/base/error.h"
#include "twinkle/base/parallel.h"

namespace twinkle::engine {
namespace {

template <class F>
std::string text_after(F&& run) {
  try {
    run();
  } catch (const std::exception& e) {
    return text_of(e);
  }
  return "no error";
}

TEST(TextOfError, IsOneForMemoryThatRanOut) {
  const std::string want = "the machine has no memory left for this: make it smaller";
  constexpr int64_t kTooMuch = int64_t{1} << 58;
  EXPECT_EQ(text_after([] { at::empty({kTooMuch}, at::kByte); }), want);
  EXPECT_EQ(text_after([] { ::operator delete(::operator new(kTooMuch)); }), want);
}

TEST(TextOfError, IsTheErrorsOwnWithoutABacktrace) {
  EXPECT_EQ(text_after([] { fail(Code::kInvalid, "lora: rank is 0"); }), "lora: rank is 0");
  const std::string torchs = text_after([] { TORCH_CHECK(false, "of torch"); });
  EXPECT_EQ(torchs, "of torch");
}

TEST(TextOfError, IsThereForWhateverWasThrown) {
  EXPECT_EQ(text_of(nullptr), "");
  EXPECT_EQ(text_of(std::make_exception_ptr(Error(Code::kInvalid, "lora: rank is 0"))),
            "lora: rank is 0");
  EXPECT_EQ(text_of(std::make_exception_ptr(Interrupted())), Interrupted::kText);
}

}  // namespace
}  // namespace twinkle::engine
