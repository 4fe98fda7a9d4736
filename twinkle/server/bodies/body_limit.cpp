#include "twinkle/server/bodies/body_limit.h"

namespace twinkle::server {
namespace {

constexpr int64_t kMostShortBytes = int64_t{64} << 10;
constexpr int64_t kMostJsonBytes = int64_t{8} << 20;

}  // namespace

BodyLimit body_limit(const BodyOf& of, int64_t max_body_bytes) {
  if (of.is_short)
    return {kMostShortBytes, ", the most of this path; send what it needs and no more"};
  if (!of.is_protobuf && max_body_bytes > kMostJsonBytes)
    return {kMostJsonBytes, std::string(", the most of JSON; ") +
                                (of.takes_protobuf ? "this path takes application/x-protobuf"
                                                   : "send a shorter request")};
  return {max_body_bytes,
          std::string(", max_body_bytes; send ") +
              (of.takes_protobuf ? "fewer or shorter examples at once" : "a shorter request") +
              ", or have the operator raise it"};
}

}  // namespace twinkle::server
