// Structs with a list of fields (base/fields.h) as JSON objects and back, each field under its
// name. Numbers that JSON does not have are the texts "NaN", "Infinity" and "-Infinity".
#pragma once
#include <cmath>
#include <concepts>
#include <limits>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/fields.h"
#include "twinkle/base/json.h"

namespace twinkle {

// The parts of a class, so that containers and structs of each other are found.
struct JsonOf {
  static Json of(bool v) { return v; }
  template <std::integral T>
  static Json of(T v) {
    if constexpr (std::is_signed_v<T>)
      return static_cast<int64_t>(v);
    else
      return static_cast<uint64_t>(v);
  }
  template <std::floating_point T>
  static Json of(T v) {
    if (std::isnan(v)) return "NaN";
    if (std::isinf(v)) return v > 0 ? "Infinity" : "-Infinity";
    return static_cast<double>(v);
  }
  static Json of(const std::string& v) { return Json(std::string_view(v)); }
  template <HasFields T>
  static Json of(const T& v) {
    JsonObject out;
    for_each_field(v, [&](const auto& field, const auto& member) { out[field.name] = of(member); });
    return out;
  }
  template <class T>
  static Json of(const std::vector<T>& v) {
    JsonArray out;
    out.reserve(v.size());
    for (const T& item : v) out.push_back(of(item));
    return out;
  }
  template <class T>
  static Json of(const std::map<std::string, T>& v) {
    JsonObject out;
    for (const auto& [key, item] : v) out[key] = of(item);
    return out;
  }
};

// Fields that are absent keep their default. Error kInvalid: an unknown field, another type, a
// number out of range; the text opens with `what` and names the place ("sequences[1].labels[0]").
class JsonFields {
 public:
  explicit JsonFields(std::string what) : path_(std::move(what)) {}

  void take(const Json& from, bool& v) {
    require(from.is_bool(), from, "true or false");
    v = from.get_bool();
  }
  template <std::integral T>
  void take(const Json& from, T& v) {
    const auto fits = [&](auto number) {
      if (!std::in_range<T>(number)) return false;
      v = static_cast<T>(number);
      return true;
    };
    require((from.is_int64() && fits(from.get_int64())) ||
                (from.is_uint64() && fits(from.get_uint64())),
            from, "an integer from ", std::numeric_limits<T>::min(), " to ",
            std::numeric_limits<T>::max());
  }
  template <std::floating_point T>
  void take(const Json& from, T& v) {
    using Limits = std::numeric_limits<T>;
    double wide = 0;
    if (from == "NaN") {
      v = Limits::quiet_NaN();
    } else if (from == "Infinity" || from == "-Infinity") {
      v = from == "Infinity" ? Limits::infinity() : -Limits::infinity();
    } else {
      require(from.is_number() && in_range<T>(wide = from.to_number<double>()), from,
              "a number of at most ", Limits::max());
      v = static_cast<T>(wide);
    }
  }
  void take(const Json& from, std::string& v) {
    require(from.is_string(), from, "a text");
    v.assign(from.get_string().data(), from.get_string().size());
  }
  template <HasFields T>
  void take(const Json& from, T& v) {
    require(from.is_object(), from, "an object");
    for (const auto& [key, value] : from.get_object()) {
      bool known = false;
      for_each_field(v, [&](const auto& field, auto& member) {
        if (field.name != std::string_view(key)) return;
        known = true;
        inside(std::string(path_.ends_with(' ') ? 0 : 1, '.').append(key),
               [&] { take(value, member); });
      });
      twinkle::require(known, Code::kInvalid, path_, path_.ends_with(' ') ? "'" : ": '",
                       std::string_view(key), "' is not a field, it has ", names_of<T>());
    }
  }
  template <class T>
  void take(const Json& from, std::vector<T>& v) {
    require(from.is_array(), from, "a list");
    v.clear();
    v.reserve(from.get_array().size());
    for (const Json& item : from.get_array())
      inside(std::string(1, '[').append(std::to_string(v.size())).append(1, ']'),
             [&] { take(item, v.emplace_back()); });
  }
  template <class T>
  void take(const Json& from, std::map<std::string, T>& v) {
    require(from.is_object(), from, "an object");
    v.clear();
    for (const auto& [key, item] : from.get_object())
      inside(std::string(1, '.').append(key), [&] { take(item, v[std::string(key)]); });
  }

 private:
  template <class T>
  static bool in_range(double v) {
    return std::abs(v) <= static_cast<double>(std::numeric_limits<T>::max());
  }
  template <class F>
  void inside(const std::string& step, F&& f) {
    const size_t size = path_.size();
    path_ += step;
    f();
    path_.resize(size);
  }
  template <class... Want>
  void require(bool ok, const Json& from, const Want&... want) const {
    if (ok) return;
    fail(Code::kInvalid, path_, " is ", boost::json::serialize(from).substr(0, 80), ", it must be ",
         want...);
  }

  std::string path_;
};

}  // namespace twinkle
