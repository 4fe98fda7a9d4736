// Options of losses: structs with field lists (base/fields/options.h), read from JSON.
#pragma once
#include <span>
#include <string_view>

#include "twinkle/base/fields/options.h"
#include "twinkle/base/json.h"

namespace twinkle::loss {

constexpr Limits above(double least) { return {.least = least, .open = true}; }

// Null, {} and members that are null leave defaults. Error kInvalid: not an object, an option that
// is not known, a value of another type or out of its range.
void set_options(std::span<const AnyOption> options, const Json& json, std::string_view loss);

template <HasFields T>
T parsed(const Json& json, std::string_view loss) {
  T out;
  set_options(options_of(out), json, loss);
  return out;
}

// As Loss::options: a list of {name, help, kind, default, least, most, open, one_of}. A default
// that is out of range is null: another one stands in for it.
Json described(std::span<const AnyOption> options);
template <HasFields T>
Json described() {
  const T defaults{};
  return described(options_of(defaults));
}

// A Loss's check by what parses its options.
template <auto parse>
void checked(const Json& options) {
  parse(options);
}

}  // namespace twinkle::loss
