#include "twinkle/server/starting.h"

#include <utility>

namespace twinkle::server {
namespace {

Response later(const std::string& text) {
  Response out = refusal(503, text);
  out.headers.emplace_back("Retry-After", "1");
  return out;
}

// The SDK comes again at once after 503, and after 429 with pauses that grow.
Response busy(const std::string& path, const std::string& text) {
  Response out = later(text);
  if (path == "/api/v1/retrieve_future" || path == "/api/v1/asample") out.status = 429;
  out.close = true;
  return out;
}

// What a connection that is kept for probes is for, of requests that have no body to wait for.
// Before the service is there /metrics would wait.
bool is_for_all(const Head& head, const std::string& path, bool is_served) {
  if (head.method != "GET" && head.method != "HEAD") return false;
  if (head.content_length > 0 || !head.header("transfer-encoding").empty()) return false;
  return path == "/healthz" || path == "/api/v1/healthz" || path == "/readyz" ||
         (is_served && path == "/metrics");
}

}  // namespace

void Starting::admit(const Head& head, const std::string& path, const Admit& admit) {
  if (head.beyond > 0 && !is_for_all(head, path, service_.has_value()))
    return admit({-1, busy(path, "server: " + std::to_string(head.beyond) +
                                     " connections are open, and the rest of max_connections is "
                                     "for probes; close some, or come again")});
  if (service_) return service_->admit(head, admit);
  if (path == "/healthz" || path == "/api/v1/healthz")
    return admit({-1, {.body = R"({"status":"ok"})"}});
  if (path == "/readyz") {
    const int64_t num = num_left_ ? num_left_() : 0;  // none yet, while it reads
    const std::string left = num > 0 ? "; operations left: " + std::to_string(num) : "";
    return admit({-1, later("server: it starts, and does again what its journal holds" + left)});
  }
  if (std::ssize(waiting_) >= max_waiting_)
    return admit({-1, busy(path, "server: it starts, and " + std::to_string(max_waiting_) +
                                     " requests wait for it")});
  const int64_t number = next_++;
  waiting_[number] = [this, head, admit] { service_->admit(head, admit); };
  if (head.when_gone) head.when_gone([this, number] { waiting_.erase(number); });
}

void Starting::end(Handler service) {
  service_ = std::move(service);
  for (const auto& [number, admit] : std::exchange(waiting_, {})) admit();
}

}  // namespace twinkle::server
