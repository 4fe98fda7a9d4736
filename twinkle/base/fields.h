// The fields of a struct, listed once, by tag, name and place. Bytes and sizes in memory
// (base/fields/codec.h), JSON (base/fields/json_codec.h) and Python's keyword arguments all
// come from the list:
//   struct Release {
//     std::string tenant;
//     int64_t version = 0;
//     static constexpr auto fields() {
//       return std::tuple{field(1, "tenant", &Release::tenant),
//                         field(2, "version", &Release::version)};
//     }
//   };
// A tag is never given to another field, so that what was written before a field came or after it
// went is read. A list that is not whole does not compile, nor bytes of one whose tags do not rise.
// Options (base/fields/options.h) have no tags: they are written nowhere.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

namespace twinkle {

template <class Struct, class Type>
struct Field {
  uint16_t tag;
  std::string_view name;
  Type Struct::* member;
};

template <class Struct, class Type>
constexpr Field<Struct, Type> field(uint16_t tag, std::string_view name, Type Struct::* member) {
  return {tag, name, member};
}

namespace detail {

struct Anything {
  template <class T>
  constexpr operator T() const;  // NOLINT(google-explicit-constructor): it stands for any value
};

template <class T, class... A>
consteval size_t num_members() {
  if constexpr (requires { T{A{}..., Anything{}}; })
    return num_members<T, A..., Anything>();
  else
    return sizeof...(A);
}

template <class T>
consteval bool tags_rise() {
  return std::apply(
      [](const auto&... f) {
        [[maybe_unused]] uint16_t last = 0;
        return ((f.tag > last && ((last = f.tag), true)) && ...);
      },
      T::fields());
}

}  // namespace detail

template <class T>
concept HasFields = requires { T::fields(); };

// Calls f(field, value.*member) for each, in the order of the list.
template <class T, class F>
  requires HasFields<std::remove_const_t<T>>
void for_each_field(T& value, F&& f) {
  using U = std::remove_const_t<T>;
  static_assert(std::tuple_size_v<decltype(U::fields())> == detail::num_members<U>(),
                "fields() lists every member");
  std::apply([&](const auto&... each) { (f(each, value.*each.member), ...); }, U::fields());
}

// "a, b and c".
template <HasFields T>
std::string names_of() {
  std::string out;
  size_t left = std::tuple_size_v<decltype(T::fields())>;
  const auto add = [&](std::string_view name) {
    if (!out.empty()) out += left == 1 ? " and " : ", ";
    out += name;
    --left;
  };
  std::apply([&](const auto&... each) { (add(each.name), ...); }, T::fields());
  return out;
}

}  // namespace twinkle
