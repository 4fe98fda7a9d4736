#include <gtest/gtest.h>

#include <limits>
#include <tuple>
#include <type_traits>

#include "twinkle/base/random.h"
#include "twinkle/engine/operation.h"
#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle::engine {
namespace {

// All fields of a struct. A field more or less does not compile.
template <class T>
auto all(T& v) {
  using U = std::remove_const_t<T>;
  if constexpr (std::is_same_v<U, Example>) {
    auto& [a, b, c, d, e, f] = v;
    return std::tie(a, b, c, d, e, f);
  } else if constexpr (std::is_same_v<U, Create>) {
    auto& [a, b, c, d, e, f, g] = v;
    return std::tie(a, b, c, d, e, f, g);
  } else if constexpr (std::is_same_v<U, Delete> || std::is_same_v<U, ZeroGrad> ||
                       std::is_same_v<U, Publish>) {
    auto& [a] = v;
    return std::tie(a);
  } else if constexpr (std::is_same_v<U, Forward>) {
    auto& [a, b, c, d, e, f, g, h] = v;
    return std::tie(a, b, c, d, e, f, g, h);
  } else if constexpr (std::is_same_v<U, ForwardBackward>) {
    auto& [a, b, c, d, e, f] = v;
    return std::tie(a, b, c, d, e, f);
  } else if constexpr (std::is_same_v<U, Step> || std::is_same_v<U, Save>) {
    auto& [a, b, c, d, e] = v;
    return std::tie(a, b, c, d, e);
  } else if constexpr (std::is_same_v<U, Load> || std::is_same_v<U, Sample>) {
    auto& [a, b, c, d] = v;
    return std::tie(a, b, c, d);
  } else if constexpr (std::is_same_v<U, SamplingParams>) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = v;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o);
  } else if constexpr (std::is_same_v<U, Inspect> || std::is_same_v<U, Release>) {
    auto& [a, b] = v;
    return std::tie(a, b);
  } else {
    auto& [a, b, c] = v;
    return std::tie(a, b, c);
  }
}

class Draw {
 public:
  explicit Draw(uint64_t seed) : seed_(seed) {}
  uint64_t below(uint64_t n) { return key_of(seed_, count_++) % n; }

  template <class T>
  void fill(T& v) {
    if constexpr (std::is_same_v<T, bool>)
      v = below(2) == 1;
    else if constexpr (std::is_integral_v<T>)
      v = static_cast<T>(key_of(seed_, count_++));
    else if constexpr (std::is_floating_point_v<T>)
      v = below(9) == 0 ? std::numeric_limits<T>::infinity()
                        : static_cast<T>(uniform_at(seed_, count_++) - 0.5);
    else
      std::apply([this](auto&... fields) { (fill(fields), ...); }, all(v));
  }
  void fill(std::string& v) {
    v.resize(below(20));
    for (char& c : v) c = static_cast<char>(below(256));
  }
  template <class T>
  void fill(std::vector<T>& v) {
    v.resize(below(5));
    for (T& item : v) fill(item);
  }
  template <class T>
  void fill(std::map<std::string, T>& v) {
    for (uint64_t n = below(4); n > 0; --n) {
      std::string key;
      fill(key);
      fill(v[key]);
    }
  }

  template <size_t I = 0>
  Operation operation(size_t kind) {
    if constexpr (I + 1 < std::variant_size_v<Operation>) {
      if (kind != I) return operation<I + 1>(kind);
    }
    std::variant_alternative_t<I, Operation> value;
    fill(value);
    return value;
  }

 private:
  uint64_t seed_, count_ = 0;
};

bool same(const std::string& x, const std::string& y) { return x == y; }
template <class T>
bool same(const std::map<std::string, T>& x, const std::map<std::string, T>& y) {
  return x == y;
}
template <class T>
bool same(const std::vector<T>& x, const std::vector<T>& y);

template <class T>
bool same(const T& x, const T& y) {
  if constexpr (std::is_arithmetic_v<T>)
    return x == y;
  else
    return [&]<size_t... I>(std::index_sequence<I...>) {
      const auto a = all(x), b = all(y);
      return (same(std::get<I>(a), std::get<I>(b)) && ...);
    }(std::make_index_sequence<std::tuple_size_v<decltype(all(x))>>{});
}
template <class T>
bool same(const std::vector<T>& x, const std::vector<T>& y) {
  if (x.size() != y.size()) return false;
  for (size_t i = 0; i < x.size(); ++i) {
    if (!same(x[i], y[i])) return false;
  }
  return true;
}

constexpr size_t kKinds = std::variant_size_v<Operation>;

TEST(Bytes, EveryOperationComesBackWithEveryField) {
  for (size_t kind = 0; kind < kKinds; ++kind) {
    for (uint64_t seed = 0; seed < 200; ++seed) {
      const Operation operation = Draw(key_of(seed, kind)).operation(kind);
      const std::string bytes = to_bytes(operation);
      const Operation back = from_bytes(bytes);
      ASSERT_EQ(back.index(), kind);
      std::visit(
          [&](const auto& want) {
            ASSERT_TRUE(same(want, std::get<std::decay_t<decltype(want)>>(back)))
                << "kind " << kind << ", seed " << seed;
          },
          operation);
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

// What replaying a damaged journal meets: an Error, or an operation that can be written again.
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

// Sixteen million empty sequences in as many bytes took 2.7 GB before the bytes ended.
TEST(Bytes, ACountThatTheBytesCannotHoldReservesNoMemory) {
  std::string bytes = to_bytes(Forward{.tenant = "a"});
  const size_t at = 2 + 1 + 8 + 1;  // version, kind, tenant
  bytes.resize(at);
  const uint64_t count = 1000;
  bytes.append(reinterpret_cast<const char*>(&count), sizeof(count));
  bytes.append(count, '\0');
  EXPECT_EQ(error_of([&] { from_bytes(bytes); }),
            "engine: an operation's bytes promise 1000 items where 1000 bytes are left");
  bytes.append(47 * count, '\0');  // 48 each: six counts; what follows them is missing
  EXPECT_EQ(error_of([&] { from_bytes(bytes); }),
            "engine: an operation's bytes end 1 bytes too early");
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
  EXPECT_EQ(text(good, 0, 9), "engine: an operation of version 9, this program reads 8");
  EXPECT_EQ(text(good, 2, 77), "engine: operation kind 77 is unknown, the last is 12");
  EXPECT_EQ(text(good, 3, 4),
            "engine: an operation's bytes promise 4 items where 3 bytes are left");
  EXPECT_EQ(text(good, 10, 1),
            "engine: an operation's bytes promise 72057594037927939 items where 3 bytes are left");
  EXPECT_EQ(error_of([&] { from_bytes(std::span(good.data(), 7)); }),
            "engine: an operation's bytes end 4 bytes too early");
  EXPECT_EQ(error_of([&] { from_bytes(good + "xy"); }),
            "engine: 2 bytes after the end of an operation");
}

}  // namespace
}  // namespace twinkle::engine
