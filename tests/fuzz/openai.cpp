#include "tests/fuzz/fuzz.h"
#include "twinkle/server/openai/request.h"

namespace twinkle::fuzz {
namespace {

void read_request(const std::string& bytes) {
  using server::openai::Form;
  const bool is_chat = bytes.find("messages") != std::string::npos;
  server::openai::read(parse_json(bytes, "the body"), is_chat ? Form::kChat : Form::kCompletion, 1);
}

}  // namespace

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
          .read = read_request};
}

}  // namespace twinkle::fuzz
