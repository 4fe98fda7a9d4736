#include "twinkle/base/fields/options.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <utility>

#include "twinkle/base/error.h"

namespace twinkle {
namespace {

std::string shortest(double value) {
  if (value == kAnyBits) return std::to_string(std::numeric_limits<uint64_t>::max());
  std::array<char, 32> out{};
  const bool whole = std::abs(value) < 1e18 && value == std::trunc(value);
  char* const end = out.data() + out.size();
  const auto last = whole ? std::to_chars(out.data(), end, static_cast<int64_t>(value))
                          : std::to_chars(out.data(), end, value);
  return {out.data(), last.ptr};
}

template <class T>
bool parse(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size() && !text.empty();
}

bool is_within(double v, const Limits& l) {
  if (std::isinf(v)) return v > 0 && std::ranges::count(l.one_of, "inf") > 0;
  return std::isfinite(v) && (l.open ? v > l.least && v < l.most : v >= l.least && v <= l.most);
}

// Levenshtein's.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = std::exchange(row[j + 1], std::min({changed, row[j] + 1, row[j + 1] + 1}));
    }
  }
  return row.back();
}

std::string in_quotes(std::string_view text) {
  return std::string(1, '\'').append(text).append(1, '\'');
}

std::string shown(const AnyOption& option, const Json& value) {
  return option.kind == OptionKind::kText ? in_quotes(told(value)) : told(value);
}

}  // namespace

bool AnyOption::is_bytes() const {
  return kind == OptionKind::kInteger && name.find("bytes") != std::string_view::npos;
}

std::string AnyOption::range() const {
  std::string out;
  const auto add = [&out](std::string_view text, const char* between) {
    out.append(out.empty() ? "" : between).append(text);
  };
  if (limits.least != -Limits::kNone)
    add(std::string(limits.open ? "above " : "at least ").append(shortest(limits.least)), ", ");
  if (limits.most != Limits::kNone)
    add(std::string(limits.open ? "below " : "at most ").append(shortest(limits.most)), ", ");
  for (size_t i = 0; i < limits.one_of.size() && !limits.one_of[i].empty(); ++i) {
    const bool is_last = i + 1 == limits.one_of.size() || limits.one_of[i + 1].empty();
    add(in_quotes(limits.one_of[i]), is_last ? " or " : ", ");
  }
  return out;
}

std::string AnyOption::must_be() const {
  const std::string limit = range();
  switch (kind) {
    case OptionKind::kFlag:
      return "true or false";
    case OptionKind::kText:
      return limit.empty() ? "a text" : limit;
    case OptionKind::kTexts:
      return "a list of texts";
    default:
      break;
  }
  const std::string noun = kind == OptionKind::kInteger ? "an integer" : "a number";
  if (limit.empty()) return noun;
  return noun + (limits.open ? " " : " of ") + limit;
}

bool AnyOption::allows(const Json& value) const {
  const auto is_text = [](const Json& v) { return v.is_string(); };
  switch (kind) {
    case OptionKind::kFlag:
      return value.is_bool();
    case OptionKind::kInteger:
      if (value.is_uint64())  // no other kind is so large
        return limits.most == kAnyBits;
      return value.is_int64() && is_within(static_cast<double>(value.get_int64()), limits);
    case OptionKind::kNumber:
      return value.is_number() && is_within(value.to_number<double>(), limits);
    case OptionKind::kText:
      return value.is_string() && (limits.one_of[0].empty() ||
                                   std::ranges::any_of(limits.one_of, [&](std::string_view one) {
                                     return !one.empty() && value.get_string() == one;
                                   }));
    default:
      return value.is_array() && std::ranges::all_of(value.get_array(), is_text);
  }
}

std::string told(const Json& value) {
  if (value.is_string()) return std::string(value.get_string());
  if (value.is_double()) return shortest(value.get_double());
  if (!value.is_array()) return boost::json::serialize(value);
  std::string out;
  for (const Json& item : value.get_array()) out.append(out.empty() ? "" : ", ").append(told(item));
  return std::string(1, '[').append(out).append(1, ']');
}

void set_option(const AnyOption& option, const Json& value, std::string_view what,
                const std::string& shown) {
  require(option.allows(value), Code::kInvalid, what, option.name, " is ", shown, ", it must be ",
          option.must_be());
  option.set(value);
}

std::optional<int64_t> bytes_of(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, int64_t>, 8> kUnits = {
      {{"KiB", int64_t{1} << 10},
       {"MiB", int64_t{1} << 20},
       {"GiB", int64_t{1} << 30},
       {"TiB", int64_t{1} << 40},
       {"KB", 1'000},
       {"MB", 1'000'000},
       {"GB", 1'000'000'000},
       {"TB", 1'000'000'000'000}}};
  int64_t unit = 1, count = 0, bytes = 0;
  for (const auto& [name, size] : kUnits) {
    if (!text.ends_with(name)) continue;
    unit = size;
    text.remove_suffix(name.size());
    if (text.ends_with(' ')) text.remove_suffix(1);
    break;
  }
  if (!parse(text, count) || __builtin_mul_overflow(count, unit, &bytes)) return std::nullopt;
  return bytes;
}

Json value_of(const AnyOption& option, const std::string& text) {
  double number = 0;
  int64_t integer = 0;
  uint64_t bits = 0;
  if (option.is_bytes()) {
    const auto bytes = bytes_of(text);
    return bytes ? Json(*bytes) : Json(nullptr);
  }
  switch (option.kind) {
    case OptionKind::kFlag:
      return text == "true" || text == "false" ? Json(text == "true") : Json(nullptr);
    case OptionKind::kInteger:
      if (parse(text, integer)) return integer;
      return parse(text, bits) ? Json(bits) : Json(nullptr);
    case OptionKind::kNumber:
      return parse(text, number) ? Json(number) : Json(nullptr);
    default:
      return Json(text);
  }
}

void check_options(std::span<const AnyOption> options, std::string_view what) {
  for (const AnyOption& option : options) {
    const Json value = option.get();
    require(option.allows(value), Code::kInvalid, what, option.name, " is ", shown(option, value),
            ", it must be ", option.must_be());
  }
}

std::string nearest_of(std::string_view name, std::span<const std::string> names) {
  std::string nearest;
  size_t least = 1 + name.size() / 3;  // more is another word
  for (const std::string& one : names) {
    const size_t longer = std::max(name.size(), one.size());
    const size_t shorter = std::min(name.size(), one.size());
    if (longer - shorter > least) continue;  // a name may be a request's, as long as a body
    const size_t d = distance(name, one);
    if (d <= least) nearest = one, least = d;
  }
  return nearest;
}

void refuse_name(std::string_view name, std::span<const std::string> names, const std::string& what,
                 std::string_view of) {
  const std::string nearest = nearest_of(name, names);
  std::string all;
  for (const std::string& one : names) all.append(all.empty() ? "" : ", ").append(one);
  fail(Code::kInvalid, what, "'", name, "' is no ", of,
       nearest.empty() ? std::string("; there are ").append(all)
                       : std::string("; did you mean ").append(in_quotes(nearest)).append("?"));
}

std::vector<std::string> names_of(std::span<const AnyOption> options) {
  std::vector<std::string> out;
  for (const AnyOption& option : options) out.emplace_back(option.name);
  return out;
}

}  // namespace twinkle
