#include "twinkle/server/starting.h"

#include <utility>

namespace twinkle::server {
namespace {

Response later(const std::string& text) {
  Response out = refusal(503, text);
  out.headers.emplace_back("Retry-After", "1");
  return out;
}

}  // namespace

void Starting::admit(const Head& head, const std::string& path, const Admit& admit) {
  if (service_) return service_->admit(head, admit);
  if (path == "/healthz" || path == "/api/v1/healthz")
    return admit({-1, {.body = R"({"status":"ok"})"}});
  if (path == "/readyz") {
    const int64_t num = num_left_ ? num_left_() : 0;  // none yet, while it reads
    const std::string left = num > 0 ? "; operations left: " + std::to_string(num) : "";
    return admit({-1, later("server: it starts, and does again what its journal holds" + left)});
  }
  if (std::ssize(waiting_) >= max_waiting_) {
    Response busy =
        later("server: it starts, and " + std::to_string(max_waiting_) + " requests wait for it");
    // The SDK comes again at once after 503, and after 429 with pauses that grow.
    if (path == "/api/v1/retrieve_future" || path == "/api/v1/asample") busy.status = 429;
    busy.close = true;
    return admit({-1, std::move(busy)});
  }
  const int64_t number = next_++;
  waiting_[number] = [this, head, admit] { service_->admit(head, admit); };
  if (head.when_gone) head.when_gone([this, number] { waiting_.erase(number); });
}

void Starting::end(Handler service) {
  service_ = std::move(service);
  for (const auto& [number, admit] : std::exchange(waiting_, {})) admit();
}

}  // namespace twinkle::server
