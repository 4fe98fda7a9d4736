// Bodies that came compressed (Content-Encoding), decoded within a limit.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace twinkle::server {

// Decodes `body` in place: "zstd" (RFC 8878, with the windows of RFC 9659, at most 8 MiB), and
// "identity" or "", which is as it came. Returns what is wrong, else "": another encoding, broken
// or cut off, or more than max_bytes, of which no more is decoded.
std::string decode_body(std::string& body, const std::string& encoding, int64_t max_bytes);

// The beginning of what a body of decode_body() decodes to, at most `most` bytes: what can be told
// where it is broken or cut off; "" of another encoding.
std::string beginning_of(std::string_view body, const std::string& encoding, size_t most);

// What a zstd body decodes to as its first frame says, if that is at most `most`; else `most`.
int64_t decoded_bytes(std::string_view body, int64_t most);

}  // namespace twinkle::server
