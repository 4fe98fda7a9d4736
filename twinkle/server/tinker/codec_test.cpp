// Against bytes that the SDK 0.38's own protobuf classes wrote and read.
#include <gtest/gtest.h>

#include <limits>

#include "twinkle/base/error_for_test.h"
#include "twinkle/server/tinker/forward_backward_request.h"
#include "twinkle/server/tinker/results.h"

namespace twinkle::server::tinker {
namespace {

std::string from_hex(std::string_view hex) {
  std::string out;
  for (size_t i = 0; i < hex.size(); i += 2)
    out += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return out;
}

const std::string kDatum =
    "100a0e0a0c01000000020000000300000012300a0d7461726765745f746f6b656e73121f0a18020000000000000003"
    "0000000000000004000000000000001802220103121e0a077765696768747312130a0c000000000000803f0000803f"
    "1801220103";
const std::string kCrossEntropy =
    "0a09733a747261696e3a3010011a640a" + kDatum + "220d63726f73735f656e74726f7079";
const std::string kPpo =
    "0a09733a747261696e3a3010021a640a" + kDatum +
    "220370706f2a1d0a12636c69705f6c6f775f7468726573686f6c6411cdccccccccccec3f30013a1f0a12636c69705f"
    "6c6f775f7468726573686f6c64120909cdccccccccccec3f";
const std::string kSparse =
    "0a09733a747261696e3a3010031a730a100a0e0a0c010000000200000003000000125f0a0d7461726765745f746f6b"
    "656e73124e12460a100700000000000000080000000000000012200000000000000000010000000000000001000000"
    "00"
    "0000000200000000000000"
    "1a1002000000000000000000000000000000180222020304220d63726f73735f656e74726f7079";

Tensor ints(std::vector<int64_t> values) {
  return {.shape = {std::ssize(values)}, .values = std::move(values)};
}

TEST(ForwardBackwardRequest, ReadsWhatTheSdkWrites) {
  const auto r = read_forward_backward(from_hex(kCrossEntropy));
  EXPECT_EQ(r.model_id, "s:train:0");
  EXPECT_EQ(r.seq_id, 1);
  EXPECT_EQ(r.loss_fn, "cross_entropy");
  EXPECT_FALSE(r.forward_only);
  ASSERT_EQ(r.data.size(), 1u);
  EXPECT_EQ(r.data[0].tokens, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(r.data[0].loss_fn_inputs.at("target_tokens"), ints({2, 3, 4}));
  EXPECT_EQ(r.data[0].loss_fn_inputs.at("weights"),
            (Tensor{.shape = {3}, .values = std::vector<float>{0, 1, 1}}));
}

TEST(ForwardBackwardRequest, ReadsOptionsAndForwardOnly) {
  const auto r = read_forward_backward(from_hex(kPpo));
  EXPECT_EQ(r.loss_fn, "ppo");
  EXPECT_TRUE(r.forward_only);
  EXPECT_EQ(r.loss_fn_config, (LossConfig{{"clip_low_threshold", 0.9}}));
}

TEST(ForwardBackwardRequest, CellsThatASparseTensorDoesNotListAre0) {
  const auto r = read_forward_backward(from_hex(kSparse));
  const Tensor& targets = r.data[0].loss_fn_inputs.at("target_tokens");
  EXPECT_EQ(targets.shape, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(targets.num_cells(), 12);
  EXPECT_EQ(cells_of<int64_t>(targets, std::identity()),
            (std::vector<int64_t>{0, 0, 7, 0, 0, 0, 0, 0, 8, 0, 0, 0}));
  EXPECT_EQ(cells_of<int64_t>(ints({2, 3}), std::identity()), (std::vector<int64_t>{2, 3}));
}

TEST(ForwardBackwardRequest, OfASparseTensorOfManyCellsOnlyThoseThatAreListedAreInMemory) {
  std::string hex = kSparse;
  // The shape [3, 4] becomes [3, 20000000], which takes three bytes more, and so do all around it.
  const std::string shape = "180222020304";
  const size_t at = hex.find(shape);
  ASSERT_NE(at, std::string::npos);
  hex.replace(at, shape.size(), "180222050380dac409");
  for (const auto& [from, to] :
       {std::pair<std::string, std::string>{"1a730a100a0e", "1a760a100a0e"},
        {"125f0a0d7461", "12620a0d7461"},
        {"124e12460a10", "125112460a10"}})
    hex.replace(hex.find(from), from.size(), to);
  const auto r = read_forward_backward(from_hex(hex));
  const Tensor& targets = r.data[0].loss_fn_inputs.at("target_tokens");
  EXPECT_EQ(targets.num_cells(), 60'000'000);
  EXPECT_EQ(targets.num_values(), 2);
}

TEST(ForwardBackwardRequest, AnyPrefixAndAnyChangedByteIsReadOrRefused) {
  for (const std::string& hex : {kCrossEntropy, kPpo, kSparse}) {
    const std::string whole = from_hex(hex);
    const auto read = [](const std::string& bytes) {
      try {
        read_forward_backward(bytes);
      } catch (const Error& e) {
        EXPECT_EQ(e.code, Code::kInvalid);
      }
    };
    for (size_t size = 0; size < whole.size(); ++size) read(whole.substr(0, size));
    for (size_t at = 0; at < whole.size(); ++at) {
      for (const int value : {0, 1, 0x7f, 0x80, 0xff}) {
        std::string changed = whole;
        changed[at] = static_cast<char>(value);
        read(changed);
      }
    }
    EXPECT_EQ(read_forward_backward(whole + from_hex("fa3f0101")), read_forward_backward(whole));
  }
}

TEST(ForwardBackwardRequest, RefusesByName) {
  const auto text = [](std::string hex, const std::string& from, const std::string& to) {
    const size_t at = hex.find(from);
    EXPECT_NE(at, std::string::npos);
    hex.replace(at, from.size(), to);
    return error_of([&] { read_forward_backward(from_hex(hex)); });
  };
  EXPECT_EQ(text(kCrossEntropy, "3a301001", "3a301000"),
            "forward_backward: seq_id is 0, it must be at least 1");
  EXPECT_EQ(text(kCrossEntropy, "1802220103", "1802220104"),
            "forward_backward: data[0].target_tokens has 3 values, its shape has 4");
  EXPECT_EQ(text(kCrossEntropy, "1802220103", "1809220103"),
            "forward_backward: data[0].target_tokens has dtype 9, it must be 1 (float32), 2 "
            "(int64), 3 (int32) or 4 (bfloat16)");
  EXPECT_EQ(text(kSparse, "1a100200", "1a100400"),
            "forward_backward: data[0].target_tokens.col_indices[0] is 4, it must be above -1 and "
            "below 4");
  EXPECT_EQ(text(kCrossEntropy, "1a640a100a", "1a640a1012"),
            "forward_backward: data[0].model_input has a chunk of an image; this server's models "
            "read text alone");
}

TEST(ForwardBackwardRequest, WhatTakesMemoryWithoutValuesIsBounded) {
  const std::string head = from_hex("0a09733a747261696e3a301001");
  const auto many = [&](const std::string& hex) {
    std::string bytes = head;
    for (int64_t i = 0; i <= kMaxValues / kItemValues; ++i) bytes += from_hex(hex);
    return error_of([&] { read_forward_backward(bytes); });
  };
  const std::string limit = "forward_backward: the request has more than 67108864 values with ";
  EXPECT_EQ(many("1a00"), limit + "data; send fewer at once");
  EXPECT_EQ(many("2a00"), limit + "loss_fn_config; send fewer at once");
  EXPECT_EQ(many("3a00"), limit + "loss_fn_config; send fewer at once");
  // A tensor with the shape [1, 1, 1], packed.
  EXPECT_EQ(
      error_of([&] { read_forward_backward(head + from_hex("1a0c120a0a017812052203010101")); }),
      "forward_backward: data[0].x has more than 2 dimensions, the limit is 2");
}

TEST(ForwardBackwardRequest, TellsWhoseItIsAlsoWhereItIsBroken) {
  const std::string whole = from_hex(kPpo);
  for (size_t size = 0; size < whole.size(); ++size) {
    const Address told = address_of(whole.substr(0, size));
    EXPECT_EQ(told.model_id, size < 11 ? "" : "s:train:0") << size;
    EXPECT_EQ(told.seq_id, size < 13 ? 0 : 2) << size;
  }
  EXPECT_TRUE(address_of(whole).forward_only);
  EXPECT_FALSE(address_of(from_hex(kCrossEntropy)).forward_only);
}

TEST(ForwardBackwardOutput, IsWhatTheSdkReads) {
  const ForwardBackwardOutput output{.data = {{{"logprobs", {{-1, -2}}}}, {{"logprobs", {{-0.5}}}}},
                                     .metrics = {{"loss:sum", 3.5}}};
  EXPECT_EQ(
      to_protobuf(output),
      from_hex("0a0b41727261795265636f726412470a0b41727261795265636f726412360a086c6f6770726f6273"
               "122a0a0c000080bf000000c0000000bf1218000000000000000008000000000000000c0000000000"
               "0000180118021a130a086c6f73733a73756d110000000000000c40"));
}

TEST(SampleResponse, IsWhatTheSdkReads) {
  const SampleResponse response{
      .sequences = {{.tokens = {5, 6}, .logprobs = {-0.5, -0.25}, .at_length = true}},
      .prompt_logprobs = std::vector<float>{std::numeric_limits<float>::quiet_NaN(), -1},
      .prompt_top = TopTokens{.k = 2, .rows = {{}, {{9, -0.1f}, {4, -3.0f}}}}};
  EXPECT_EQ(
      to_protobuf(response),
      from_hex("0a160801120805000000060000001a08000000bf000080be12080000c07f000080bf1a280a1000"
               "000000000000000900000004000000121080"
               "4fc3c7804fc3c7cdccccbd000040c018022002"));
}

TEST(SampleResponse, HasTensorsOfAPromptsTargetsAndAlternatives) {
  const SampleResponse response{
      .sequences = {{.tokens = {5}, .logprobs = {-0.5}}},
      .prompt_targets = Tensor{.shape = {2, 9},
                               .values = std::vector<float>{-1, 0},
                               .sparse = Csr{.crow = {0, 1, 2}, .col = {3, 0}}},
      .prompt_alt_tokens =
          PromptAltTokens{.tokens = {.shape = {2, 1}, .values = std::vector<int64_t>{7, 300}},
                          .logprobs = {.shape = {2, 1}, .values = std::vector<float>{-2, -3}}}};
  EXPECT_EQ(
      to_protobuf(response),
      from_hex("0a0c1204050000001a04000000bf2a3e12360a08000080bf0000000012180000000000000000010000"
               "000000000002000000000000001a1003000000000000000000000000000000180122020209322c0a18"
               "0a1007000000000000002c0100000000000018022202020112100a08000000c0000040c01801220202"
               "01"));
}

}  // namespace
}  // namespace twinkle::server::tinker
