// Random streams keyed by what they are for, never by the order of execution: the i-th number of a
// stream is a function of (key, i). Built on SplitMix64's finaliser (Steele, Lea and Flood 2014).
// Stateless; any thread.
#pragma once
#include <cstdint>
#include <string_view>

namespace twinkle {

// A bijection of 64-bit words whose output bits all depend on all input bits.
constexpr uint64_t mix64(uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// The key of a stream within a stream: key_of(key_of(seed, owner), step).
constexpr uint64_t key_of(uint64_t key, uint64_t part) { return mix64(mix64(key) ^ part); }
constexpr uint64_t key_of(uint64_t key, std::string_view part) {
  uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
  for (const char c : part) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return key_of(key, hash);
}

// Number `index` of the stream, in [0, 1), 53 bits.
constexpr double uniform_at(uint64_t key, uint64_t index) {
  return static_cast<double>(key_of(key, index) >> 11) * 0x1.0p-53;
}

}  // namespace twinkle
