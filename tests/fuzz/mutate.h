// Damage to a case: a few of the changes that readers have fallen for, drawn at random.
#pragma once
#include <random>
#include <string>

#include "tests/fuzz/fuzz.h"

namespace twinkle::fuzz {

constexpr size_t kMaxCase = size_t{1} << 20;  // bytes

// `other` gives parts to splice in.
std::string mutated(std::string bytes, const std::string& other, const Reader& reader,
                    std::mt19937_64& random);

}  // namespace twinkle::fuzz
