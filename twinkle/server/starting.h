// What is answered before the service is there, while weights are loaded and what the journal holds
// is done again: a probe that asks whether the process lives, and one whether it is ready. All else
// waits, without its body, and is then the service's. Used by the HTTP server's thread alone.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/server/http/message.h"

namespace twinkle::server {

class Starting {
 public:
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
  std::function<int64_t()> num_left_;
  std::optional<Handler> service_;
  std::vector<std::function<void()>> waiting_;
};

}  // namespace twinkle::server
