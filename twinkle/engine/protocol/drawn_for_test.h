// For tests: operations and results with every field drawn from a seed.
#pragma once
#include <limits>
#include <map>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "twinkle/base/random.h"
#include "twinkle/engine/protocol/operation.h"
#include "twinkle/engine/protocol/result.h"

namespace twinkle::engine {

class Draw {
 public:
  enum Texts { kBytes, kAscii };
  explicit Draw(uint64_t seed, Texts texts = kBytes) : seed_(seed), texts_(texts) {}
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
      for_each_field(v, [this](const auto&, auto& member) { fill(member); });
  }
  void fill(std::string& v) {
    v.resize(below(20));
    for (char& c : v)
      c = texts_ == kBytes ? static_cast<char>(below(256)) : static_cast<char>(32 + below(95));
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

  template <class Variant, size_t I = 0>
  Variant any(size_t kind) {
    if constexpr (I + 1 < std::variant_size_v<Variant>) {
      if (kind != I) return any<Variant, I + 1>(kind);
    }
    std::variant_alternative_t<I, Variant> value;
    fill(value);
    return value;
  }
  Operation operation(size_t kind) { return any<Operation>(kind); }

 private:
  uint64_t seed_, count_ = 0;
  Texts texts_;
};

}  // namespace twinkle::engine
