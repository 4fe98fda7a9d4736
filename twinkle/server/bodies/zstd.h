// Bodies that came compressed (Content-Encoding), decoded within a limit.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "twinkle/server/http/message.h"

namespace twinkle::server {

// Decodes `body` in place: "zstd" (RFC 8878, with the windows of RFC 9659, at most 8 MiB), and
// "identity" or "", which is as it came. Returns what is wrong, else "": another encoding, broken
// or cut off, or more than max_bytes, of which no more is decoded.
std::string decode_body(std::string& body, const std::string& encoding, int64_t max_bytes);

// Looks through a body of decode_body() as it comes, whether or not it is whole or sound. One
// thread at a time.
class Search {
 public:
  // At most `most` bytes as they come, and as many decoded. Null `finder`, or another encoding: of
  // nothing.
  Search(std::shared_ptr<Finder> finder, const std::string& encoding, int64_t most);
  ~Search();

  int64_t num_bytes() const;  // of memory that it may take
  // False: no more is looked at.
  bool read(std::string_view more);

 private:
  bool take(std::string_view more);

  struct Decoder;
  std::shared_ptr<Finder> finder_;
  std::unique_ptr<Decoder> decoder_;  // null: as it came
  int64_t left_, left_decoded_;
};

// What a zstd body decodes to as its first frame says, if that is at most `most`; else `most`.
int64_t decoded_bytes(std::string_view body, int64_t most);

}  // namespace twinkle::server
