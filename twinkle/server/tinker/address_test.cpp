#include "twinkle/server/tinker/address.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "twinkle/server/tinker/forward_backward_request.h"

namespace twinkle::server::tinker {
namespace {

struct Got {
  std::string found;
  size_t read;  // bytes, in whole pieces
};

Got in(const std::string& body, bool is_protobuf, size_t piece) {
  const Form form = is_protobuf ? Form::kProtobuf : Form::kJson;
  const auto finder = address_finder(form, form);
  size_t at = 0;
  bool goes_on = true;
  for (; goes_on && at < body.size(); at += piece)
    goes_on = finder->read(std::string_view(body).substr(at, piece));
  return {finder->found(), std::min(at, body.size())};
}

// The same in pieces of any size.
std::string in_json(const std::string& body) {
  const std::string whole = in(body, false, body.size() + 1).found;
  for (const size_t piece : {1, 2, 3, 7}) EXPECT_EQ(in(body, false, piece).found, whole) << body;
  return whole;
}

const std::string kBoth = R"({"model_id":"a:train:0","seq_id":7})";

TEST(Address, IsFoundWhereverItStandsInJson) {
  for (const char* body :
       {R"({"model_id": "a:train:0", "seq_id": 7, "x)", R"({"seq_id": 7, "model_id": "a:train:0" )",
        R"({"adam_params": {"x": [1, {"y": null}]}, "model_id": "a:train:0", "seq_id": 7})",
        R"(  { "path": "a\"}, \\", "model_id" : "a:tr\u0061in:0", "x": [], "seq_id": 7})",
        R"({"model_id": null, "model_id": "a:train:0", "seq_id": 7)"
        ",",
        R"({"seq_id": 7, "seq_id": 8, "model_id": "a:train:0"})"})
    EXPECT_EQ(in_json(body), kBoth) << body;
  const std::string long_text(size_t{9} << 20, 'x');
  EXPECT_EQ(
      in(R"({"path": ")" + long_text + R"(", "model_id": "a:train:0", "seq_id": 7})", false, 65536)
          .found,
      kBoth);
}

TEST(Address, IsOfTheOutermostObjectAloneAndOfWhatIsJson) {
  for (const char* body :
       {R"({"x": {"model_id": "a:train:0", "seq_id": 7}})",
        R"({"x": [{"model_id": "a:train:0", "seq_id": 7}], "seq_id": 7})",
        R"({"x": "\"model_id\": \"a:train:0\", \"seq_id\": 7"})",
        R"({"x": "model_id", "y": "a:train:0", "seq_id": 7})",
        R"([{"model_id": "a:train:0", "seq_id": 7}])", R"("model_id")", "7", "", "{", "nonsense",
        R"({"model_id": ["a:train:0"], "seq_id": 7})", R"({"model_id": 7, "seq_id": 7})",
        R"({"model_id": "a:train:0", "seq_id": "7"})",
        R"({"model_id": "a:train:0", "seq_id": 7.5})",
        R"({"model_id": "a:train:0", "seq_id": 18446744073709551615})",
        R"({"model_id": "a:train:0", "seq_id": 7)", R"({"model_idx": "a:train:0", "seq_id": 7})",
        R"({"x": NaN, "model_id": "a:train:0", "seq_id": 7})",
        R"({} {"model_id": "a:train:0", "seq_id": 7})"})
    EXPECT_EQ(in_json(body), "") << body;
  const std::string deep = R"({"x": )" + std::string(200, '[') + std::string(200, ']');
  EXPECT_EQ(in_json(deep + R"(, "model_id": "a:train:0", "seq_id": 7})"), "");
  for (const size_t more : {0, 1}) {
    const std::string id(4096 + more, 'a');
    EXPECT_EQ(in_json(R"({"model_id": ")" + id + R"(", "seq_id": 7})").empty(), more == 1);
  }
}

TEST(Address, NoMoreIsReadThanItTakes) {
  const std::string rest(1000, ' ');
  EXPECT_LE(in(kBoth + rest, false, 10).read, kBoth.size() + 10);
  EXPECT_LE(in("[" + rest, false, 10).read, 10U);
  const std::string bytes = bytes_of({.model_id = "a:train:0", .seq_id = 7});
  EXPECT_LE(in(bytes + std::string(1000, '\0'), true, 1).read, bytes.size());
}

TEST(Address, IsFoundWhereverItStandsInAProtobuf) {
  const std::string id = "\x0a\x09"
                         "a:train:0",
                    number = "\x10\x07", forward = "\x30\x01";
  // Data that look like it: of a field 3 (its length in two bytes), and fields of fixed lengths.
  const std::string data = "\x1a\xac\x02" + (id + number + std::string(300, '\x0a')).substr(0, 300);
  const std::string fixed = std::string("\x39\x0a\x09xxxxxx", 9) + std::string("\x45\x10\x07xx", 5);
  const auto want = bytes_of({.model_id = "a:train:0", .seq_id = 7});
  for (const std::string& body : {id + number, number + id, data + id + number,
                                  fixed + data + number + data + id, id + "\x10\x07\x1a\xff"}) {
    for (const size_t piece : {1, 2, 5, 1000}) EXPECT_EQ(in(body, true, piece).found, want);
  }
  EXPECT_EQ(in(forward + id + number, true, 1000).found,
            bytes_of({.model_id = "a:train:0", .seq_id = 7, .forward_only = true}));
  for (const std::string& none :
       {id, number, data,
        std::string("\x0a\x09"
                    "a:tra"),
        id + std::string("\x10\x00", 2), std::string("\x0b"), std::string(20, '\xff'),
        std::string("\x0a\xff\xff\x03") + std::string(70000, 'a') + number})
    EXPECT_EQ(in(none, true, 1000).found, "");
}

// In one form, told in the other.
std::string turned(const std::string& body, Form from) {
  const auto finder = address_finder(from, from == Form::kJson ? Form::kProtobuf : Form::kJson);
  finder->read(body);
  return finder->found();
}

TEST(Address, OfOneFormIsToldInTheOther) {
  const std::string bytes = bytes_of({.model_id = "a:train:0", .seq_id = 7});
  EXPECT_EQ(turned(R"({"seq_id": 7, "x": [], "model_id": "a:train:0"})", Form::kJson), bytes);
  EXPECT_EQ(turned(bytes, Form::kProtobuf), kBoth);
  for (const char* seq_id : {"0", "-1", "2147483648", "4294967303", "9223372036854775807"})
    EXPECT_EQ(
        turned(R"({"model_id": "a:train:0", "seq_id": )" + std::string(seq_id) + "}", Form::kJson),
        "")
        << "no int32 from 1 on is " << seq_id;
  EXPECT_EQ(turned(R"({"model_id": "", "seq_id": 7})", Form::kJson), "");
}

}  // namespace
}  // namespace twinkle::server::tinker
