// Bodies of requests: protobuf of forward_backward, and those that came compressed, whose first
// byte says how.
#include <stdexcept>

#include "tests/fuzz/fuzz.h"
#include "twinkle/server/bodies/zstd.h"
#include "twinkle/server/null_backend_for_test.h"
#include "twinkle/server/tinker/address.h"
#include "twinkle/server/tinker/forward_backward_request.h"

namespace twinkle::fuzz {
namespace {

using server::tinker::Form;

constexpr int64_t kMaxBody = int64_t{1} << 20;

// A frame of RFC 8878 with one raw block, and one whose block repeats a byte so often.
const std::string kMagic = "\x28\xb5\x2f\xfd";

std::string raw_frame(const std::string& content) {
  const auto size = static_cast<uint32_t>(content.size() << 3 | 1);  // the last block, raw
  return kMagic + std::string("\x00\x58", 2) + raw(size).substr(0, 3) + content;
}

std::string repeated_frame(uint32_t count) {
  return kMagic + std::string("\x00\x58", 2) + raw(count << 3 | 3).substr(0, 3) + "x";
}

// The numbers found in a refused body do not depend on the pieces in which it comes; small pieces
// may show more of a broken frame.
void search(const std::string& bytes, const std::string& encoding, Form body, Form found) {
  std::string whole;
  for (const size_t piece : {bytes.size() + 1, size_t{3}}) {
    const auto finder = server::tinker::address_finder(body, found);
    server::Search search(finder, encoding, kMaxBody);
    for (size_t at = 0; at < bytes.size(); at += piece)
      if (!search.read(std::string_view(bytes).substr(at, piece))) break;
    if (piece > bytes.size())
      whole = finder->found();
    else if (encoding.empty() && whole != finder->found())
      throw std::logic_error("in pieces another address is found");
  }
}

void read_request(const std::string& bytes) {
  for (const Form body : {Form::kJson, Form::kProtobuf})
    for (const Form found : {Form::kJson, Form::kProtobuf}) search(bytes, "", body, found);
  const server::tinker::Address address = server::tinker::address_of(bytes);
  const auto request = server::tinker::read_forward_backward(bytes);
  if (request.model_id != address.model_id || request.seq_id != address.seq_id)
    throw std::logic_error("the address is another's");
}

void read_zstd(const std::string& bytes) {
  search(bytes, "zstd", Form::kJson, Form::kProtobuf);
  std::string body = bytes;
  const std::string wrong = server::decode_body(body, "zstd", kMaxBody);
  require(wrong.empty(), Code::kInvalid, wrong);
  if (std::ssize(body) > kMaxBody) throw std::logic_error("more was decoded than may be");
}

}  // namespace

Reader forward_backward() {
  const std::string good = server::forward_backward_bytes("run", 1, "cross_entropy");
  return {.name = "forward_backward",
          .corpus = {good, good + good.substr(7), "",
                     // Options of both kinds, and forward_only.
                     good + "\x2a\x0c\x0a\x01"
                            "a\x11\0\0\0\0\0\0\xf0\x3f\x30\x01",
                     good + "\x3a\x08\x0a\x01"
                            "a\x12\x03\x12\x01x",
                     good + "\x12\x03\x0a\x01x",
                     R"({"x": ["model_id"], "model_id": "run", "y": {"seq_id": 1}, "seq_id": 1})"},
          .words = {"\x1a", "\x12", "\x0a", std::string("\x1a\0", 2), "\x18\x02", "\x22\x01",
                    "\xff\xff\xff\xff\x0f", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x1b"},
          .read = read_request};
}

Reader zstd() {
  return {.name = "zstd",
          .corpus = {raw_frame("abc"), raw_frame("") + raw_frame(std::string(300, 'x')),
                     repeated_frame(100000), raw_frame("abc").substr(0, 8),
                     "\x50\x2a\x4d\x18" + raw<uint32_t>(3) + "abc" + raw_frame("abc"), ""},
          .words = {kMagic, repeated_frame(1 << 17), raw<uint32_t>(0xffffffff)},
          .read = read_zstd};
}

}  // namespace twinkle::fuzz
