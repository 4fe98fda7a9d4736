#include "twinkle/server/starting.h"

#include <utility>

namespace twinkle::server {

void Starting::admit(const Head& head, const std::string& path, const Admit& admit) {
  if (service_) return service_->admit(head, admit);
  if (path == "/healthz" || path == "/api/v1/healthz")
    return admit({-1, {.body = R"({"status":"ok"})"}});
  if (path == "/readyz") {
    const int64_t num = num_left_ ? num_left_() : 0;  // none yet, while it reads
    const std::string left = num > 0 ? "; operations left: " + std::to_string(num) : "";
    Response later =
        refusal(503, "server: it starts, and does again what its journal holds" + left);
    later.headers.emplace_back("Retry-After", "1");
    return admit({-1, std::move(later)});
  }
  waiting_.push_back([this, head, admit] { service_->admit(head, admit); });
}

void Starting::end(Handler service) {
  service_ = std::move(service);
  for (const auto& admit : std::exchange(waiting_, {})) admit();
}

}  // namespace twinkle::server
