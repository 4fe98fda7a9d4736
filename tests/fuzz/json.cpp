#include "twinkle/base/json.h"

#include "tests/fuzz/fuzz.h"
#include "twinkle/server/openai/request.h"

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

void read_openai(const std::string& bytes) {
  using server::openai::Form;
  const bool is_chat = bytes.find("messages") != std::string::npos;
  server::openai::read(parse_json(bytes, "the body"), is_chat ? Form::kChat : Form::kCompletion, 1);
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

Reader openai() {
  return {.name = "openai",
          .corpus = {R"({"model":"m","messages":[{"role":"user","content":[{"type":"text",)"
                     R"("text":"a"}]},{"role":"assistant","tool_calls":[{"id":"c","type":)"
                     R"("function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool",)"
                     R"("tool_call_id":"c","content":"a"}],"n":2,"stop":["a"],"logprobs":true,)"
                     R"("top_logprobs":1,"tools":[{"type":"function","function":{"name":"f"}}]})",
                     R"({"model":"m","prompt":[[1,2],"a"],"echo":true,"logprobs":1,"n":3})"},
          .words = {"\"stream\":true,", "\"stream_options\":{}", "null", "1e999", "[[[[", "-1",
                    "9223372036854775808", "\"response_format\":", "\xff", "\\u0000"},
          .read = read_openai};
}

}  // namespace twinkle::fuzz
