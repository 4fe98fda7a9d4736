// JSON as the program sees it: Boost.JSON values, and typed field access whose errors name the
// field, the value and what was expected. No torch in here. Thread-safe as long as a value is not
// written while it is read.
#pragma once
#include <boost/json.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "twinkle/base/error.h"

namespace twinkle {

using Json = boost::json::value;
using JsonObject = boost::json::object;
using JsonArray = boost::json::array;

// Parses one document. `what` names it in errors ("model/config.json"). Error kInvalid: with line
// and cause; deeper than 128 levels, or more than 2^22 values. Doubles are those nearest to their
// digits (Boost 1.81's own parser rounds some wrongly).
Json parse_json(std::string_view text, std::string_view what);

// The document, or nothing when `text` is none.
std::optional<Json> json_in(std::string_view text);

// Treatment of a number beyond the range of doubles, or of an integer beyond 64 bits: the nearest
// double, which may be infinite, as other readers have it, or an error.
enum class OutOfRange { kRound, kRefuse };

// The value at the start of `text`. Sets `used` to its length with the white space around it. On an
// error the value is null, `cause` says what is wrong, and `used` is where; else `cause` is empty.
Json parse_json_prefix(std::string_view text, size_t& used, std::string& cause,
                       OutOfRange numbers = OutOfRange::kRound);

inline constexpr int64_t kMaxJsonBytes = int64_t{64} << 20;  // for a file

// Reads and parses a file. Error kNotFound: none; kInvalid: no regular file, above kMaxJsonBytes,
// broken.
Json read_json(const std::filesystem::path& file);

// `object[key]` as T (int64_t, double, bool, std::string). Error kInvalid when it is missing or of
// another type. int64_t refuses fractions; double takes integers too.
template <class T>
T get(const Json& object, std::string_view key);

// Like get, with `fallback` for a key that is missing or null.
template <class T>
T get_or(const Json& object, std::string_view key, T fallback);

// The member, or nullptr when `object` is no object, or the key is missing or null.
const Json* find(const Json& object, std::string_view key);

// Two-space indented text with a final newline; numbers keep full precision.
std::string pretty(const Json& value);

}  // namespace twinkle
