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

std::optional<Response> metrics(Call& call) {
  return Response{.body = call.services.metrics.text(call.services),
                  .content_type = "text/plain; version=0.0.4"};
}

}  // namespace twinkle::server
