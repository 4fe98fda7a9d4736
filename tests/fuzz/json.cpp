#include "twinkle/base/json.h"

#include "tests/fuzz/fuzz.h"

namespace twinkle::fuzz {
namespace {

template <class T>
void take(const Json& value) {
  try {
    get<T>(value, "a");
  } catch (const Error&) {
    return;  // another type
  }
}

void read_json_text(const std::string& bytes) {
  const Json value = parse_json(bytes, "x");
  take<int64_t>(value);
  take<double>(value);
  take<bool>(value);
  take<std::string>(value);
  parse_json(pretty(value), "what was written");
}

}  // namespace

Reader json() {
  return {
      .name = "json",
      .corpus = {R"({"a": [1, 2.5, {"b": "c\n\u00e9\ud83d\ude00"}], "d": {}, "e": [], "f": null})",
                 R"({"a": 1e300})", R"({"a": -9223372036854775809})", R"({"a": 5e-324})",
                 std::string(128, '[') + std::string(128, ']'), std::string(200000, '['),
                 " [1000000000000000019884624838656, 1e999]"},
      .words = {"{\"a\":", "[[[[[[[[[[[[[[[[", "\"", "\\u", "\\ud800", "true", "false", "null",
                "e+", "0.", ",", "\xff", "\xEF\xBB\xBF"},
      .read = read_json_text};
}

}  // namespace twinkle::fuzz
