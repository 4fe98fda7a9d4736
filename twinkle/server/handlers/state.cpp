// For the operator: whether the service is alive, whether it can work, and what it counts.
#include <array>
#include <charconv>

#include "twinkle/server/routes.h"

namespace twinkle::server {
namespace {

// 23.0, where boost would write 2.3E1.
std::string plain(double seconds) {
  std::array<char, 64> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), seconds,
                                 std::chars_format::fixed);
  std::string text(digits.data(), end.ptr);
  if (text.find('.') == text.npos) text += ".0";
  return text;
}

}  // namespace

std::optional<Response> healthz(Call&) { return json({{"status", "ok"}}); }

std::optional<Response> readyz(Call& call) {
  const Services& s = call.services;
  if (!s.history.trouble().empty())
    return refusal(503, "server: the disk refuses what is to be journalled");
  if (!s.access.is_read()) return refusal(503, "server: the keys cannot be read");
  return json({{"status", "ready"}});
}

std::optional<Response> usage(Call& call) {
  std::string out = R"({"usage":[)";
  for (const UsageLine& line : call.services.usage.lines()) {
    std::string text =
        boost::json::serialize(JsonObject{{"tenant", line.tenant},
                                          {"key", line.key},
                                          {"run", line.run},
                                          {"requests", line.requests},
                                          {"trained_tokens", line.used.trained},
                                          {"prompt_tokens", line.used.prompt},
                                          {"generated_tokens", line.used.generated}});
    text.back() = ',';
    text.append(R"("compute_seconds":)").append(plain(line.used.seconds));
    out.append(out.back() == '}' ? "," : "").append(text).append("}");
  }
  return Response{.body = out.append("]}")};
}

std::optional<Response> metrics(Call& call) {
  return Response{.body = call.services.metrics.text(call.services),
                  .content_type = "text/plain; version=0.0.4"};
}

}  // namespace twinkle::server
