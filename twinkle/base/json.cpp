#include "twinkle/base/json.h"

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <charconv>
#include <cmath>
#include <limits>

#include "twinkle/base/encoding/text_fault.h"
#include "twinkle/base/fields/json_handler.h"
#include "twinkle/base/file.h"

namespace twinkle {
namespace {

template <class T>
struct Kind;
template <>
struct Kind<int64_t> {
  static constexpr const char* name = "an integer";
  static bool take(const Json& v, int64_t& out) {
    if (v.is_int64())
      out = v.get_int64();
    else if (v.is_double() && std::abs(v.get_double()) < 0x1p63 &&
             v.get_double() == std::trunc(v.get_double()))
      out = static_cast<int64_t>(v.get_double());
    else
      return false;
    return true;
  }
};
template <>
struct Kind<double> {
  static constexpr const char* name = "a number";
  static bool take(const Json& v, double& out) {
    if (v.is_double())
      out = v.get_double();
    else if (v.is_int64())
      out = static_cast<double>(v.get_int64());
    else if (v.is_uint64())
      out = static_cast<double>(v.get_uint64());
    else
      return false;
    return true;
  }
};
template <>
struct Kind<bool> {
  static constexpr const char* name = "true or false";
  static bool take(const Json& v, bool& out) {
    if (v.is_bool()) out = v.get_bool();
    return v.is_bool();
  }
};
template <>
struct Kind<std::string> {
  static constexpr const char* name = "a string";
  static bool take(const Json& v, std::string& out) {
    if (v.is_string()) out = std::string(v.get_string());
    return v.is_string();
  }
};

// Boost writes 0.5 as 5E-1; people and diffs prefer the shortest plain form that reads back to the
// same bits.
std::string leaf(const Json& value) {
  if (!value.is_double() || !std::isfinite(value.get_double()))
    return boost::json::serialize(value);
  char digits[32];
  const auto [end, error] = std::to_chars(digits, digits + sizeof(digits), value.get_double());
  std::string text(digits, end);
  if (text.find_first_of(".e") == text.npos) text += ".0";
  return text;
}

std::string brief(std::string text) {
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

void pretty_into(std::string& out, const Json& value, const std::string& indent) {
  const std::string inner = indent + "  ";
  if (value.is_object() && !value.get_object().empty()) {
    out += "{\n";
    size_t left = value.get_object().size();
    for (const auto& [key, item] : value.get_object()) {
      out += inner + boost::json::serialize(Json(key)) + ": ";
      pretty_into(out, item, inner);
      out += --left ? ",\n" : "\n";
    }
    out += indent + "}";
  } else if (value.is_array() && !value.get_array().empty()) {
    out += "[\n";
    size_t left = value.get_array().size();
    for (const Json& item : value.get_array()) {
      out += inner;
      pretty_into(out, item, inner);
      out += --left ? ",\n" : "\n";
    }
    out += indent + "]";
  } else {
    out += leaf(value);
  }
}

// True if `number`, a JSON number, is an integer.
bool is_integer(std::string_view number) { return number.find_first_of(".eE") == number.npos; }

// The number in which, or behind which, `at` is.
std::string_view number_around(std::string_view text, size_t at) {
  constexpr std::string_view kParts = "+-.0123456789Ee";
  const auto part = [&](size_t i) { return kParts.find(text[i]) != kParts.npos; };
  size_t end = at;
  while (at > 0 && part(at - 1)) --at;
  while (end < text.size() && part(end)) ++end;
  return text.substr(at, end - at);
}

std::string out_of_range(std::string_view number) {
  return (is_integer(number) ? "the integer " : "the number ") + brief(std::string(number)) +
         (is_integer(number) ? " is beyond 64 bits" : " is beyond the range of a double, 1.8e308") +
         "; write it as a string";
}

// Limit of a document; a value may take 60 times its text.
constexpr size_t kMaxValues = size_t{1} << 22;

// Builds a value from parser events. Boost 1.81's own handler rounds some doubles wrongly; this one
// asks from_chars.
struct Builder : JsonHandler {
  static constexpr size_t max_object_size = boost::json::object::max_size();
  static constexpr size_t max_array_size = boost::json::array::max_size();
  static constexpr size_t max_key_size = boost::json::string::max_size();
  static constexpr size_t max_string_size = boost::json::string::max_size();

  bool on_object_begin(Failure& failure) { return counted(failure); }
  bool on_object_end(size_t n, Failure&) { return stack.push_object(n), true; }
  bool on_array_begin(Failure& failure) { return counted(failure); }
  bool on_array_end(size_t n, Failure&) { return stack.push_array(n), true; }
  bool on_key_part(Text s, size_t, Failure&) { return stack.push_chars(s), true; }
  bool on_key(Text s, size_t, Failure&) { return stack.push_key(s), true; }
  bool on_string_part(Text s, size_t, Failure&) { return stack.push_chars(s), true; }
  bool on_string(Text s, size_t, Failure& failure) {
    return stack.push_string(s), counted(failure);
  }
  bool on_int64(int64_t i, Text, Failure& failure) { return stack.push_int64(i), counted(failure); }
  bool on_uint64(uint64_t u, Text, Failure& failure) {
    return stack.push_uint64(u), counted(failure);
  }
  bool on_double(double rough, Text s, Failure& failure) {
    double exact = rough;  // kept for NaN, Infinity and what is out of range
    const auto end = s.data() + s.size();
    const auto read = std::from_chars(s.data(), end, exact);
    if (read.ec != std::errc{}) exact = rough;
    // Out of range is what is too small for a double, too; it may become 0.
    const bool too_large = read.ec == std::errc::result_out_of_range && std::abs(rough) > 1;
    if (numbers == OutOfRange::kRefuse && (too_large || is_integer(s))) {
      failure = boost::json::error::exponent_overflow;
      refused = s;
      return false;
    }
    return stack.push_double(exact), counted(failure);
  }
  bool on_bool(bool b, Failure& failure) { return stack.push_bool(b), counted(failure); }
  bool on_null(Failure& failure) { return stack.push_null(), counted(failure); }

  bool counted(Failure& failure) {
    if (++num_values <= max_values) return true;
    failure = boost::json::error::array_too_large;
    return false;
  }

  boost::json::value_stack stack;
  size_t num_values = 0, max_values = std::numeric_limits<size_t>::max();
  OutOfRange numbers = OutOfRange::kRound;
  Text refused;  // the number that was, a part of the text
};

boost::json::parse_options options() {
  boost::json::parse_options out;
  out.max_depth = 128;
  return out;
}

Json parse_prefix(std::string_view text, size_t& used, std::string& cause, OutOfRange numbers,
                  size_t max_values) {
  boost::json::basic_parser<Builder> parser(options());
  Builder& builder = parser.handler();
  builder.stack.reset();
  builder.numbers = numbers;
  builder.max_values = max_values;
  boost::json::error_code error;
  used = parser.write_some(false, text.data(), text.size(), error);
  if (!error && !parser.done()) error = boost::json::error::incomplete;
  cause = error ? json_fault(text, used) : "";
  if (error && cause.empty()) cause = error.message();
  if (error == boost::json::error::exponent_overflow && numbers == OutOfRange::kRefuse) {
    std::string_view number = builder.refused;
    if (number.empty()) number = number_around(text, used);  // the parser itself gave up
    used = static_cast<size_t>(number.data() - text.data());
    cause = out_of_range(number);
  }
  if (builder.num_values > builder.max_values)
    cause = "more than " + std::to_string(max_values) + " values";
  return error ? Json() : builder.stack.release();
}

Json parse_whole(std::string_view text, size_t& used, std::string& cause) {
  Json value = parse_prefix(text, used, cause, OutOfRange::kRound, kMaxValues);
  if (cause.empty() && text.find_first_not_of(" \t\r\n", used) != text.npos)
    cause = boost::json::error_code(boost::json::error::extra_data).message();
  return value;
}

}  // namespace

Json parse_json_prefix(std::string_view text, size_t& used, std::string& cause,
                       OutOfRange numbers) {
  return parse_prefix(text, used, cause, numbers, std::numeric_limits<size_t>::max());
}

std::optional<Json> json_in(std::string_view text) {
  std::string cause;
  size_t used = 0;
  Json value = parse_whole(text, used, cause);
  if (!cause.empty()) return std::nullopt;
  return value;
}

Json parse_json(std::string_view text, std::string_view what) {
  text = without_mark(text);
  std::string cause;
  size_t used = 0;
  Json value = parse_whole(text, used, cause);
  if (!cause.empty()) {
    const std::string_view before = text.substr(0, used);
    fail(Code::kInvalid, "json: ", what, " line ", 1 + std::ranges::count(before, '\n'), " column ",
         used - before.rfind('\n'), ": ", cause);  // npos is -1
  }
  return value;
}

Json read_json(const std::filesystem::path& file) {
  require(is_there(file), Code::kNotFound, "json: cannot open ", file.string());
  return parse_json(read_file(file, "json", kMaxJsonBytes), file.string());
}

const Json* find(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const Json* value = object.get_object().if_contains(key);
  return value && !value->is_null() ? value : nullptr;
}

template <class T>
T get(const Json& object, std::string_view key) {
  const Json* value = find(object, key);
  const bool is_null = !value && object.is_object() && object.get_object().contains(key);
  require(!is_null, Code::kInvalid, "json: field '", key, "' is null, expected ", Kind<T>::name);
  require(value, Code::kInvalid, "json: field '", key, "' is missing");
  T out{};
  require(Kind<T>::take(*value, out), Code::kInvalid, "json: field '", key, "' is ",
          brief(leaf(*value)), ", expected ", Kind<T>::name);
  return out;
}

template <class T>
T get_or(const Json& object, std::string_view key, T fallback) {
  return find(object, key) ? get<T>(object, key) : fallback;
}

template int64_t get(const Json&, std::string_view);
template double get(const Json&, std::string_view);
template bool get(const Json&, std::string_view);
template std::string get(const Json&, std::string_view);
template int64_t get_or(const Json&, std::string_view, int64_t);
template double get_or(const Json&, std::string_view, double);
template bool get_or(const Json&, std::string_view, bool);
template std::string get_or(const Json&, std::string_view, std::string);

std::string pretty(const Json& value) {
  std::string out;
  pretty_into(out, value, "");
  return out + "\n";
}

}  // namespace twinkle
