// For the operator: whether the service is alive, whether it can work, and what it counts.
#include "twinkle/server/routes.h"

namespace twinkle::server {

std::optional<Response> healthz(Call&) { return json({{"status", "ok"}}); }

std::optional<Response> readyz(Call& call) {
  const Services& s = call.services;
  if (!s.history.trouble().empty())
    return refusal(503, "server: the disk refuses what is to be journalled");
  if (!s.access.is_read()) return refusal(503, "server: the keys cannot be read");
  return json({{"status", "ready"}});
}

std::optional<Response> usage(Call& call) {
  JsonArray lines;
  for (const UsageLine& line : call.services.usage.lines())
    lines.push_back({{"tenant", line.tenant},
                     {"key", line.key},
                     {"run", line.run},
                     {"requests", line.requests},
                     {"trained_tokens", line.used.trained},
                     {"prompt_tokens", line.used.prompt},
                     {"generated_tokens", line.used.generated},
                     {"compute_seconds", line.used.seconds}});
  return json({{"usage", std::move(lines)}});
}

std::optional<Response> metrics(Call& call) {
  return Response{.body = call.services.metrics.text(call.services),
                  .content_type = "text/plain; version=0.0.4"};
}

}  // namespace twinkle::server
