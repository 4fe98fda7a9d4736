// What `twinkle serve` is told, and what can be said of it before weights are loaded.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace twinkle::cli {

struct ServeOptions {
  std::string model = "smollm2", device, state = "twinkle-state", host = "127.0.0.1";
  std::string auth;  // "keys" or "open"; empty: default_auth
  std::vector<std::string> names;
  uint16_t port = 8000;
  double snapshot_seconds = 60;
  bool accept_other_arithmetic = false;  // of a state that another processor computed
  bool compress = false;                 // clients are asked to send training data compressed
  int64_t max_body_bytes = int64_t{256} << 20;      // of one request
  int64_t max_body_bytes_total = int64_t{2} << 30;  // of all that are not written down yet
  double body_patience_seconds = 20;                // that one waits for room, then 503
  std::string log_level = "info";
  std::string root_path;  // in front of every path, where a proxy leaves it there; or empty
};

// Under which clients ask for a model where no name is given: its id, and what others know it by.
std::vector<std::string> default_names(const std::string& model);

// Keys if the state has any.
std::string default_auth(const ServeOptions& options);

// Error kInvalid: a name, root_path, host or state that cannot be; a host that others reach, and
// everybody is let in.
void check_options(const ServeOptions& options);

// What would be served. Errors as of check_options; and those of a model whose files, config.json
// or tokenizer cannot be read, or of a device that is not here. Reads no weights; downloads a hub's
// model without them.
std::string check_service(const ServeOptions& options);

// The path behind root_path, or as it came.
std::string without_root(const std::string& path, const std::string& root_path);

}  // namespace twinkle::cli
