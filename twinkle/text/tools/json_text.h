// JSON in a model's text by its place, so that a call's arguments stay as the model wrote them,
// numbers of any size and precision included. Takes what Python's json.loads takes, NaN and
// Infinity too, up to kMaxJsonLevels. Linear and without recursion.
#pragma once
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

namespace twinkle::text {

inline constexpr size_t kMaxJsonLevels = 512;
inline constexpr size_t kMaxIntegerDigits = 4300;  // Python's own limit

struct JsonMember {
  std::string_view key, value;  // parts of the text; the key in its quotes
};

// True if the text is one JSON value with white space around it.
bool is_json(std::string_view text);

// The members of a text that is_json() and an object, in their order, also of equal names; nothing
// of another text.
std::optional<std::vector<JsonMember>> members_of(std::string_view text);

}  // namespace twinkle::text
