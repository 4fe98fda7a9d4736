#include "twinkle/server/tinker/fields.h"

#include <string_view>

namespace twinkle::server::tinker {

namespace {

// "engine: labels of inputs[3] are its own tokens; ..." by the SDK's names, or the text as it is.
std::string of_own_tokens(const std::string& why) {
  constexpr std::string_view kBegin = "engine: labels of inputs[", kEnd = "] are its own tokens; ";
  const size_t end = why.find(kEnd);
  if (end == std::string::npos) return why;
  return "server: data[" + why.substr(kBegin.size(), end - kBegin.size()) +
         "].target_tokens are its own tokens; target_tokens[t] is the token after t: send "
         "tokens[:-1] as model_input and tokens[1:] as target_tokens";
}

}  // namespace

std::string by_field(const std::string& why) {
  if (why.starts_with("engine: labels of inputs[")) return of_own_tokens(why);
  constexpr std::string_view kBegin = "engine: sequence ";
  if (!why.starts_with(kBegin)) return why;
  const size_t end = why.find_first_not_of("0123456789", kBegin.size());
  if (end == kBegin.size() || end == std::string::npos) return why;
  const std::string rest = why.substr(end);
  const std::string datum = "server: data[" + why.substr(kBegin.size(), end - kBegin.size()) + "]";
  if (rest.starts_with(": label ")) return datum + ".target_tokens" + rest;
  const bool is_input =
      rest.starts_with(": token ") || rest == " is empty" ||
      (rest.starts_with(" has ") && rest.find(" tokens, the model's") != std::string::npos);
  return datum + (is_input ? ".model_input" : "") + rest;
}

}  // namespace twinkle::server::tinker
