#include "twinkle/loss/arguments/given.h"

#include <algorithm>
#include <span>
#include <sstream>

namespace twinkle::loss {
namespace {

constexpr size_t kMostTold = 80;  // characters

std::string shortened(const Json& value) {
  std::string text = boost::json::serialize(value);
  if (text.size() > kMostTold) text.replace(kMostTold, std::string::npos, "...");
  return text;
}

const JsonArray* list_in(const Json& value) { return value.if_array(); }

// The sizes of nested lists, by the first of each.
std::vector<int64_t> sizes_of(const Json& value) {
  std::vector<int64_t> out;
  const JsonArray* list = list_in(value);
  while (list) {
    out.push_back(static_cast<int64_t>(list->size()));
    list = list->empty() ? nullptr : list_in(list->front());
  }
  return out;
}

// Appends the numbers of lists of these sizes. False: it is another thing.
bool append(const Json& value, std::span<const int64_t> sizes, std::vector<double>& out) {
  if (sizes.empty()) {
    if (value.is_number()) out.push_back(value.to_number<double>());
    return value.is_number();
  }
  const JsonArray* list = list_in(value);
  return list && static_cast<int64_t>(list->size()) == sizes[0] &&
         std::ranges::all_of(*list,
                             [&](const Json& one) { return append(one, sizes.subspan(1), out); });
}

// Empty: it is no list of [[token, log p], ...].
std::vector<OfToken> sampled_in(const Json& value) {
  std::vector<OfToken> out;
  const JsonArray* list = list_in(value);
  if (!list) return {};
  for (const Json& token : *list) {
    const JsonArray* pairs = list_in(token);
    if (!pairs || pairs->empty()) return {};
    out.emplace_back();
    for (const Json& one : *pairs) {
      const JsonArray* pair = list_in(one);
      if (!pair || pair->size() != 2 || !pair->front().is_int64() || !pair->back().is_number())
        return {};
      out.back().emplace_back(pair->front().get_int64(), pair->back().to_number<double>());
    }
  }
  return out;
}

Entry entry_in(const Json& value) {
  if (value.is_null()) return {.told = "null", .is_none = true};
  if (value.is_bool()) return {.numbers = at::scalar_tensor(value.get_bool(), at::kBool)};
  if (auto sampled = sampled_in(value); !sampled.empty()) return {.sampled = std::move(sampled)};
  const std::vector<int64_t> sizes = sizes_of(value);
  std::vector<double> numbers;
  if (!append(value, sizes, numbers)) return {.told = shortened(value)};
  return {.numbers = at::tensor(numbers, at::kDouble).reshape(sizes)};
}

Given given_in(const std::string& name, const Json& value) {
  const Json* entries = name == kOutputs ? twinkle::find(value, "logps") : &value;
  const JsonArray* list = entries ? list_in(*entries) : nullptr;
  if (!list) return {.told = shortened(value)};
  Given out;
  for (const Json& one : *list) out.entries.push_back(entry_in(one));
  return out;
}

}  // namespace

std::string entry_told(const Entry& entry) {
  if (!entry.sampled.empty()) return "a list of sampled tokens";
  if (!entry.numbers.defined()) return entry.told;
  std::ostringstream out;
  if (entry.numbers.numel() == 1)
    out << entry.numbers.item<double>();
  else
    out << "of shape " << entry.numbers.sizes();
  return out.str();
}

Arguments arguments_in(const Json& json) {
  require(json.is_object(), Code::kInvalid, "loss: arguments are ", shortened(json),
          ", they must be a JSON object");
  Arguments out;
  for (const auto& [key, value] : json.get_object()) {
    const std::string name(key);
    if (!value.is_null()) out[name] = given_in(name, value);
  }
  return out;
}

}  // namespace twinkle::loss
