// What is answered before the service is there, while weights are loaded and what the journal holds
// is done again: a probe that asks whether the process lives, and one whether it is ready. All else
// waits, without its body, and is then the service's; who hangs up waits no more, and beyond some
// that wait the next are told to come again, so that connections are left for the probes. At all
// times connections that are kept for probes (Head::beyond) get no more than these, and /metrics.
// Used by the HTTP server's thread alone.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "twinkle/server/http/message.h"

namespace twinkle::server {

class Starting {
 public:
  // `max_waiting`: requests.
  explicit Starting(int64_t max_waiting) : max_waiting_(max_waiting) {}

  // As Handler::admit. `path`: as route() gets it.
  void admit(const Head& head, const std::string& path, const Admit& admit);
  // From here on /readyz tells how many operations are left, by this.
  void tell(std::function<int64_t()> num_left) { num_left_ = std::move(num_left); }
  // Of what was admitted.
  void handle(Request request, Reply reply) {
    service_->handle(std::move(request), std::move(reply));
  }
  // The service is there: what has waited is its, in the order of its coming, and all that comes.
  void end(Handler service);

 private:
  const int64_t max_waiting_;
  std::function<int64_t()> num_left_;
  std::optional<Handler> service_;
  int64_t next_ = 0;
  std::map<int64_t, std::function<void()>> waiting_;  // in the order of their coming
};

}  // namespace twinkle::server
