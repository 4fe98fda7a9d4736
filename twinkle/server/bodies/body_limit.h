// How long a request's body may be, and what helps where it is longer.
#pragma once
#include <cstdint>
#include <string>

namespace twinkle::server {

struct BodyLimit {
  int64_t bytes;
  std::string why;  // behind "longer than N bytes": whose limit that is, and the remedy
};

struct BodyOf {
  bool is_short = false;        // the path takes a few words, or nothing
  bool is_protobuf = false;     // what comes; else it is JSON, or is not read
  bool takes_protobuf = false;  // the path, which is then that of examples
};

// `max_body_bytes`: what any may have, an option. JSON takes many times its bytes, so it has less.
BodyLimit body_limit(const BodyOf& of, int64_t max_body_bytes);

}  // namespace twinkle::server
