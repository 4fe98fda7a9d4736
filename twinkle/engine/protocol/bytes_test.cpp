#include <gtest/gtest.h>

#include "twinkle/base/fields/codec.h"
#include "twinkle/engine/protocol/drawn_for_test.h"
#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle::engine {
namespace {

template <class T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

constexpr size_t kHeader = 1 + 1 + 8;  // format, kind, size
constexpr size_t kKinds = std::variant_size_v<Operation>;

TEST(Bytes, EveryOperationComesBackWithEveryField) {
  for (size_t kind = 0; kind < kKinds; ++kind) {
    for (uint64_t seed = 0; seed < 200; ++seed) {
      const Operation operation = Draw(key_of(seed, kind)).operation(kind);
      const std::string bytes = to_bytes(operation);
      const Operation back = from_bytes(bytes);
      ASSERT_TRUE(back == operation) << "kind " << kind << ", seed " << seed;
      ASSERT_EQ(to_bytes(back), bytes);
      ASSERT_EQ(tenant_of(back), tenant_of(operation));
    }
  }
}

TEST(Bytes, EveryTruncationIsAnError) {
  for (size_t kind = 0; kind < kKinds; ++kind) {
    const std::string bytes = to_bytes(Draw(key_of(3, kind)).operation(kind));
    for (size_t n = 0; n < bytes.size(); ++n) {
      const std::string text = error_of([&] { from_bytes(std::span(bytes.data(), n)); });
      ASSERT_TRUE(text.starts_with("engine: an operation's bytes ")) << n << ": " << text;
    }
  }
}

// Replaying a damaged journal gives one of two: an Error, or an operation that can be written
// again.
TEST(Bytes, DamagedBytesAreAnErrorOrAnOperation) {
  size_t errors = 0, operations = 0;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Draw draw(seed);
    std::string bytes = to_bytes(draw.operation(seed % kKinds));
    for (uint64_t n = 1 + draw.below(4); n > 0; --n) {
      const size_t at = draw.below(bytes.size());
      switch (draw.below(3)) {
        case 0:
          bytes[at] = static_cast<char>(draw.below(256));
          break;
        case 1:
          bytes.insert(at, 1, static_cast<char>(draw.below(256)));
          break;
        default:
          if (bytes.size() > 1) bytes.erase(at, 1);
      }
    }
    // Half of them with the size that they have now, so that the fields are met.
    if (seed % 2 && bytes.size() >= kHeader)
      bytes.replace(2, 8, raw<uint64_t>(bytes.size() - kHeader));
    try {
      to_bytes(from_bytes(bytes));
      ++operations;
    } catch (const Error& e) {
      ASSERT_EQ(e.code, Code::kInvalid);
      ++errors;
    }
  }
  EXPECT_GT(errors, 1000u);
  EXPECT_GT(operations, 1000u);
}

TEST(Bytes, EveryResultComesBackWithEveryField) {
  for (size_t kind = 0; kind < std::variant_size_v<Result>; ++kind) {
    for (uint64_t seed = 0; seed < 100; ++seed) {
      const Result result = Draw(key_of(seed, kind)).any<Result>(kind);
      ASSERT_TRUE(result_from_bytes(to_bytes(result)) == result) << kind << ", seed " << seed;
    }
  }
  EXPECT_EQ(error_of([] { result_from_bytes(std::string("\x09\x08", 2)); }),
            "engine: a result's bytes are of kind 8, which is unknown; the last is 7");
}

std::string release_of(const std::string& fields) {
  return std::string("\x09\x0c", 2) + raw<uint64_t>(fields.size()) + fields;
}

// A Release as a program writes it that knows one field more, and as one that knows one less.
TEST(Bytes, FieldsThatAreNotKnownAreSkippedAndThoseThatAreAbsentKeepTheirDefault) {
  const Release release{.tenant = "ann", .version = 7};
  const std::string fields = to_bytes(release).substr(kHeader);
  EXPECT_EQ(from_bytes(release_of(fields + raw<uint16_t>(3) + raw<uint64_t>(4) + "more")),
            Operation(release));
  const std::string older = fields.substr(0, fields.size() - 2 - 8 - 8);  // tag, size, version
  EXPECT_EQ(from_bytes(release_of(older)), Operation(Release{.tenant = "ann", .version = 0}));
}

// The bytes of an operation in this format.
TEST(Bytes, TheFormatDoesNotChange) {
  const auto field = [](uint16_t tag, const std::string& bytes) {
    return raw(tag) + raw<uint64_t>(bytes.size()) + bytes;
  };
  const auto item = [](const std::string& bytes) { return raw<uint64_t>(bytes.size()) + bytes; };
  const std::string sequence = field(1, raw<int32_t>(1) + raw<int32_t>(2)) +
                               field(3, raw<float>(0.5) + raw<float>(1)) +
                               field(4, item("advantages") + item(raw<float>(-1) + raw<float>(2)));
  const std::string bytes =
      std::string("\x09\x03", 2) +
      item(field(1, "ann") + field(2, item(sequence) + item("")) + field(3, "PPOLoss") +
           field(5, raw<double>(0.5)) + field(6, std::string("\x01", 1)));
  const ForwardBackward want{
      .tenant = "ann",
      .sequences = {{.input_ids = {1, 2}, .weights = {0.5, 1}, .extras = {{"advantages", {-1, 2}}}},
                    {}},
      .loss = "PPOLoss",
      .temperature = 0.5,
      .logits = true};
  EXPECT_TRUE(from_bytes(bytes) == Operation(want));
}

TEST(Bytes, MoreMemoryThanAnOperationMayTakeIsRefusedWhileItIsRead) {
  std::string items(size_t{8} * 1000, '\0');  // empty sequences, of 8 bytes each
  ByteReader reader(items, "these bytes", 20 * sizeof(Example));
  std::vector<Example> sequences;
  EXPECT_EQ(error_of([&] { reader.take(sequences); }),
            "these bytes are too many: they take more memory than one may");
  EXPECT_LE(sequences.size(), 20u);
}

TEST(Bytes, ANameThatComesTwiceIsRefused) {
  Example s;
  s.extras = {{"a", {1}}, {"b", {2}}};
  std::string bytes = to_bytes(Forward{.tenant = "t", .sequences = {s}});
  bytes[bytes.rfind('b')] = 'a';
  EXPECT_EQ(error_of([&] { from_bytes(bytes); }), "engine: an operation's bytes hold 'a' twice");
}

TEST(Bytes, TheMemoryOfOperationsAndResultsIsThatOfWhatTheyHold) {
  ForwardBackward operation{.tenant = "a"};
  const int64_t empty = num_bytes(Operation(operation));
  operation.sequences.resize(2);
  operation.sequences[1].input_ids.resize(1000);
  operation.sequences[1].extras["old_logps"].resize(1000);
  const int64_t more = num_bytes(Operation(operation)) - empty;
  EXPECT_GE(more, 8000);
  EXPECT_LE(more, 9000);
  const int64_t none = num_bytes(Result(ForwardResult{}));
  EXPECT_GE(num_bytes(Result(ForwardResult{.logits = {std::vector<float>(5000)}})) - none, 20000);
  SampleResult sampled;
  sampled.completions = {{Completion{.tokens = std::vector<int32_t>(700)}}};
  sampled.completions[0][0].top_logprobs.resize(3, sampler::TopLogprobs(10));
  EXPECT_GE(num_bytes(Result(sampled)), 700 * 4 + 3 * 10 * 8);
  EXPECT_LE(num_bytes(Result(Done{})), 1000);
}

TEST(Bytes, WhatIsWrongWithThemIsSaid) {
  const std::string good = to_bytes(Delete{"ann"});
  const auto text = [](std::string bytes, size_t at, char value) {
    bytes[at] = value;
    return error_of([&] { from_bytes(bytes); });
  };
  EXPECT_EQ(text(good, 0, 8), "engine: an operation's bytes are of format 8, this program reads 9");
  EXPECT_EQ(text(good, 1, 77),
            "engine: an operation's bytes are of kind 77, which is unknown; the last is 15");
  EXPECT_EQ(text(good, kHeader + 2, 4), "engine: an operation's bytes end 1 bytes too early");
  EXPECT_EQ(text(good, kHeader, 0),
            "engine: an operation's bytes have field 0 behind field 0; fields rise");
  EXPECT_EQ(error_of([&] { from_bytes(std::span(good.data(), good.size() - 3)); }),
            "engine: an operation's bytes end 3 bytes too early");
  EXPECT_EQ(error_of([&] { from_bytes(good + "xy"); }),
            "engine: an operation's bytes have 2 more behind their end");
  const std::string short_number = raw<uint16_t>(2) + raw<uint64_t>(7) + std::string(7, 'x');
  EXPECT_EQ(error_of([&] { from_bytes(release_of(short_number)); }),
            "engine: an operation's bytes have 7 bytes for a number that takes 8");
  const std::string twice = raw<uint16_t>(1) + raw<uint64_t>(0);
  EXPECT_EQ(error_of([&] { from_bytes(release_of(twice + twice)); }),
            "engine: an operation's bytes have field 1 behind field 1; fields rise");
}

}  // namespace
}  // namespace twinkle::engine
