// The one error type of the program. `code` is for callers to act on, the text for people: it
// starts with the folder and names the field, the value and the limit. Throwing leaves the
// thrower's state as it was.
#pragma once
#include <sstream>
#include <stdexcept>
#include <string>

namespace twinkle {

enum class Code { kInvalid, kNotFound, kConflict, kBusy, kInternal };

class Error : public std::runtime_error {
 public:
  Error(Code code, const std::string& text) : std::runtime_error(text), code(code) {}
  const Code code;
};

// Throws an Error of the streamed parts: fail(Code::kInvalid, "lora: rank is ", rank, ", it must be
// at least 1").
template <class... Parts>
[[noreturn]] void fail(Code code, const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw Error(code, text.str());
}

// Throws unless `ok`. For callers' mistakes; our own are asserts.
template <class... Parts>
void require(bool ok, Code code, const Parts&... parts) {
  if (!ok) fail(code, parts...);
}

}  // namespace twinkle
