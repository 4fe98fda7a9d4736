#include "tests/fuzz/mutate.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <utility>

namespace twinkle::fuzz {
namespace {

constexpr std::array<uint64_t, 18> kIntegers = {
    0,          1,          2,          3,          31,         127,
    128,        255,        256,        65535,      1ULL << 20, 1ULL << 30,
    0x7FFFFFFF, 0x80000000, 1ULL << 32, 1ULL << 62, 1ULL << 63, ~0ULL};

constexpr std::array<std::string_view, 24> kNumbers = {"0",
                                                       "-1",
                                                       "1",
                                                       "2",
                                                       "-1000",
                                                       "7",
                                                       "0.5",
                                                       "-0.0",
                                                       "1e30",
                                                       "1e999",
                                                       "-1e19",
                                                       "1e-320",
                                                       "255",
                                                       "2147483648",
                                                       "-2147483649",
                                                       "4611686018427387904",
                                                       "9223372036854775807",
                                                       "-9223372036854775808",
                                                       "9223372036854775808",
                                                       "18446744073709551616",
                                                       "null",
                                                       "true",
                                                       "[]",
                                                       "\"x\""};

class Damage {
 public:
  Damage(std::string bytes, const std::string& other, const Reader& reader, std::mt19937_64& random)
      : bytes_(std::move(bytes)), other_(other), reader_(reader), random_(random) {}

  void once() {
    switch (below(11)) {
      case 0:
        if (!bytes_.empty()) bytes_[below(bytes_.size())] ^= static_cast<char>(1 << below(8));
        break;
      case 1:
        if (!bytes_.empty()) bytes_[below(bytes_.size())] = static_cast<char>(below(256));
        break;
      case 2:
        bytes_.erase(place(), size());
        break;
      case 3:
        bytes_.insert(place(), bytes_.substr(place(), size()));
        break;
      case 4:
        bytes_.insert(place(), other_.substr(below(other_.size() + 1), size()));
        break;
      case 5:
        bytes_.resize(place());
        break;
      case 6:
        overwrite();
        break;
      case 7:
      case 8:
        another_number();
        break;
      case 9:
        if (!reader_.words.empty())
          bytes_.insert(place(), reader_.words[below(reader_.words.size())]);
        break;
      default:
        repeat();
    }
  }

  std::string done() {
    if (bytes_.size() > kMaxCase) bytes_.resize(kMaxCase);
    return std::move(bytes_);
  }

 private:
  size_t below(size_t limit) { return random_() % limit; }
  size_t place() { return below(bytes_.size() + 1); }
  size_t size() { return below(size_t{1} << (1 + below(8))); }

  // Bytes of a binary number.
  void overwrite() {
    const std::string number = raw(kIntegers[below(kIntegers.size())] + below(3) - 1);
    const size_t width = size_t{1} << below(4);
    bytes_.replace(place(), width, number.substr(0, width));
  }

  // Digits of a written one.
  void another_number() {
    const auto digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
    auto begin =
        std::find_if(bytes_.begin() + static_cast<ptrdiff_t>(place()), bytes_.end(), digit);
    const auto end = std::find_if_not(begin, bytes_.end(), digit);
    bytes_.replace(begin, end, kNumbers[below(kNumbers.size())]);
  }

  void repeat() {
    const std::string part = bytes_.substr(place(), 1 + below(8));
    if (part.empty()) return;
    std::string many;
    for (size_t left = size_t{1} << below(17); left > 0 && many.size() < kMaxCase; --left)
      many += part;
    bytes_.insert(place(), many);
  }

  std::string bytes_;
  const std::string& other_;
  const Reader& reader_;
  std::mt19937_64& random_;
};

}  // namespace

std::string mutated(std::string bytes, const std::string& other, const Reader& reader,
                    std::mt19937_64& random) {
  Damage damage(std::move(bytes), other, reader, random);
  do damage.once();
  while (random() % 2);
  return damage.done();
}

}  // namespace twinkle::fuzz
