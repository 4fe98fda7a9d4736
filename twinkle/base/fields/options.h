// Options: structs whose field list (base/fields.h) says of each field what it may be and what it
// does, and groups of such structs. Command lines, YAML files, Python's keyword arguments, the
// reference in docs/options.md and one check come from the list; the default is the struct's own:
//   struct QueueOptions {
//     int64_t max_queued = 1024;
//     static constexpr auto fields() {
//       return std::tuple{option("max_queued", &QueueOptions::max_queued, at_least(1),
//                                "operations of one tenant that have not ended")};
//     }
//   };
//   struct ServiceOptions {
//     QueueOptions queue;
//     static constexpr auto fields() { return std::tuple{group("queue", &ServiceOptions::queue)}; }
//   };
// Outside C++ an option goes by its own name, not by its group's, so that a program's names differ.
#pragma once
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "twinkle/base/fields.h"
#include "twinkle/base/json.h"

namespace twinkle {

// Limits of a value, besides its type.
struct Limits {
  static constexpr double kNone = std::numeric_limits<double>::infinity();
  double least = -kNone, most = kNone;          // numbers, which are finite
  bool open = false;                            // least and most themselves are out
  std::array<std::string_view, 8> one_of = {};  // texts, none: any; "inf", a number
};
constexpr Limits any() { return {}; }
constexpr Limits at_least(double least) { return {.least = least}; }
constexpr Limits between(double least, double most) { return {.least = least, .most = most}; }
constexpr Limits strictly_between(double least, double most) { return {least, most, true}; }
// Texts, or an enumeration's values, in their order.
template <class... Text>
constexpr Limits one_of(const Text&... texts) {
  return {.one_of = {texts...}};
}
inline constexpr double kMostTokens = std::numeric_limits<int32_t>::max();
inline constexpr double kMostBytes = int64_t{1} << 50;
// As the most of a uint64_t: all that it holds, whose largest has no double of its own.
inline constexpr double kAnyBits = 0x1p64;

template <class Struct, class Type>
struct Option : Field<Struct, Type> {
  Limits limits;
  // Its unit, and what changing it does; at its end "[...]": what is taken without it, where the
  // struct's default does not tell.
  std::string_view help;
};
// A std::chrono::milliseconds is told in seconds.
template <class Struct, class Type>
constexpr Option<Struct, Type> option(std::string_view name, Type Struct::* member, Limits limits,
                                      std::string_view help) {
  return {{0, name, member}, limits, help};
}
template <class Struct, class Type>
constexpr Field<Struct, Type> group(std::string_view name, Type Struct::* member) {
  return {0, name, member};
}

enum class OptionKind { kFlag, kInteger, kNumber, kText, kTexts };

// An option of some struct, which outlives it.
struct AnyOption {
  std::string_view name, help;
  OptionKind kind;
  Limits limits;
  std::function<Json()> get;
  std::function<void(const Json&)> set;  // unchecked: set_option() checks

  bool is_bytes() const;        // by its name: a text may then have a unit, "64MiB"
  std::string range() const;    // "at least 1, at most 9", "'a' or 'b'"; empty: any
  std::string must_be() const;  // "an integer of at least 1, at most 9"
  bool allows(const Json& value) const;
};

// As people write it: 0.5, true, text, [a, b].
std::string told(const Json& value);

// Error kInvalid: a value of another type or outside the limits; `what` opens the text, "engine: ",
// and `shown` is how the caller wrote the value.
void set_option(const AnyOption& option, const Json& value, std::string_view what,
                const std::string& shown);
// The value of a text of a command line or a file; null: it is none of the option's kind.
Json value_of(const AnyOption& option, const std::string& text);
// "1048576", "1024KiB", "1 MiB" (powers of 1024: KiB, MiB, GiB, TiB; of 1000: KB, MB, GB, TB).
// Nothing: it is no whole number of bytes, or more than an int64_t has.
std::optional<int64_t> bytes_of(std::string_view text);
// Error kInvalid: one is outside its limits.
void check_options(std::span<const AnyOption> options, std::string_view what);

// The one that was probably meant, or empty.
std::string nearest_of(std::string_view name, std::span<const std::string> names);
// Error kInvalid: "'prot' is no OF; did you mean 'port'?", or which there are.
[[noreturn]] void refuse_name(std::string_view name, std::span<const std::string> names,
                              const std::string& what, std::string_view of);

namespace detail {

template <class T>
inline constexpr bool kIsTime = std::is_same_v<T, std::chrono::milliseconds>;

template <class T>
consteval OptionKind kind_of() {
  if constexpr (std::is_same_v<T, bool>)
    return OptionKind::kFlag;
  else if constexpr (std::is_integral_v<T>)
    return OptionKind::kInteger;
  else if constexpr (std::is_floating_point_v<T> || kIsTime<T>)
    return OptionKind::kNumber;
  else if constexpr (std::is_same_v<T, std::vector<std::string>>)
    return OptionKind::kTexts;
  else
    return OptionKind::kText;
}

template <class T>
Json option_value(const T& v, const Limits& limits) {
  if constexpr (kIsTime<T>)
    return std::chrono::duration<double>(v).count();
  else if constexpr (std::is_enum_v<T>)
    return Json(limits.one_of.at(static_cast<size_t>(v)));
  else if constexpr (std::is_same_v<T, std::vector<std::string>>)
    return JsonArray(v.begin(), v.end());
  else if constexpr (std::is_same_v<T, std::string>)
    return Json(std::string_view(v));
  else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool> &&
                     !std::is_same_v<T, uint64_t>)
    return Json(static_cast<int64_t>(v));
  else
    return Json(v);
}

template <class T>
void set_value(T& v, const Json& from, const Limits& limits) {
  if constexpr (kIsTime<T>) {
    v = T(std::llround(from.to_number<double>() * 1000));
  } else if constexpr (std::is_enum_v<T>) {
    for (size_t i = 0; i < limits.one_of.size(); ++i)
      if (from.get_string() == limits.one_of[i]) v = static_cast<T>(i);
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    v.clear();
    for (const Json& item : from.get_array()) v.emplace_back(item.get_string());
  } else if constexpr (std::is_same_v<T, std::string>) {
    v = std::string(from.get_string());
  } else if constexpr (std::is_same_v<T, bool>) {
    v = from.get_bool();
  } else {
    v = from.to_number<T>();
  }
}

template <class T>
void gather_options(T& options, std::vector<AnyOption>& out) {
  for_each_field(options, [&]<class Of, class Member>(const Of& field, Member& member) {
    using Type = std::remove_const_t<Member>;
    if constexpr (HasFields<Type>) {
      gather_options(member, out);
    } else {
      const Limits limits = field.limits;
      AnyOption one{.name = field.name,
                    .help = field.help,
                    .kind = kind_of<Type>(),
                    .limits = limits,
                    .get = [&member, limits] { return option_value(member, limits); },
                    .set = {}};
      if constexpr (!std::is_const_v<Member>)
        one.set = [&member, limits](const Json& v) { set_value(member, v, limits); };
      out.push_back(std::move(one));
    }
  });
}

}  // namespace detail

// Those of all groups, in the order of the lists.
template <class T>
  requires HasFields<std::remove_const_t<T>>
std::vector<AnyOption> options_of(T& options) {
  std::vector<AnyOption> out;
  detail::gather_options(options, out);
  return out;
}

// Error kInvalid: "engine: token_budget is 0, it must be an integer of at least 1".
template <HasFields T>
void check_options(const T& options, std::string_view what) {
  check_options(options_of(options), what);
}

std::vector<std::string> names_of(std::span<const AnyOption> options);

}  // namespace twinkle
