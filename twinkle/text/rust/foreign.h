// The edges of the C interface of rust/text: views, owned results, error texts turned into Errors.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "rust/text/twinkle_text.h"
#include "twinkle/base/error.h"

namespace twinkle::text {

inline twinkle_view view(std::string_view text) { return {text.data(), text.size()}; }

struct FreeText {
  void operator()(char* text) const { twinkle_text_free(text); }
};
using OwnedText = std::unique_ptr<char, FreeText>;

// Throws kInvalid "text: WHAT: cause" when `error` is a text, and frees it.
inline void check(char* error, std::string_view what) {
  const OwnedText owned(error);
  if (owned) fail(Code::kInvalid, "text: ", what, ": ", owned.get());
}

// Frees a twinkle_rendering or twinkle_encoding that the crate has filled.
template <class T, void (*kFree)(T)>
struct Owned {
  T value{};
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { kFree(value); }
};

}  // namespace twinkle::text
