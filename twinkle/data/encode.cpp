#include "twinkle/data/encode.h"

#include <algorithm>

#include "twinkle/text/columns.h"

namespace twinkle::data {
namespace {

bool is_trajectory(const Json& value) {
  return value.is_object() && value.get_object().contains("messages");
}

// The names of the fields that are trajectories; none for a row that is one itself.
std::vector<std::string> nested_fields(const Row& row) {
  std::vector<std::string> out;
  if (row.contains("messages")) return out;
  for (const auto& field : row) {
    if (is_trajectory(field.value())) out.emplace_back(field.key());
  }
  return out;
}

// The fields that the template reads; others may be large. What `row` lacks, the row `around` it
// may have: columns beside a pair are of both.
Json trajectory_of(const Row& row, const Row& around = {}) {
  JsonObject out;
  const auto copy = [&](std::string_view name) {
    const Json* value = row.if_contains(name);
    if (!value || value->is_null()) value = around.if_contains(name);
    if (value) out[name] = *value;
  };
  std::ranges::for_each(text::kChatColumns, copy);
  std::ranges::for_each(text::kMoreColumns, copy);
  // Without messages it is refused, by an error that names what the row has in their place.
  if (!out.contains("messages"))
    for (const auto& field : row) out.emplace(field.key(), nullptr);
  return out;
}

Row with_feature(const Row& row, const text::InputFeature& feature) {
  Row out = row;
  JsonArray positions;
  positions.reserve(feature.input_ids.size());
  for (int64_t t = 0; t < feature.length(); ++t) positions.push_back(t);
  out["input_ids"] = JsonArray(feature.input_ids.begin(), feature.input_ids.end());
  out["labels"] = JsonArray(feature.labels.begin(), feature.labels.end());
  out["attention_mask"] = JsonArray(feature.input_ids.size(), Json(1));
  out["position_ids"] = std::move(positions);
  out["length"] = feature.length();
  return out;
}

Rows encode_row(const text::Template& tmpl, const Row& row, bool add_generation_prompt) {
  Rows out;
  const auto fields = nested_fields(row);
  if (fields.empty()) {
    for (const auto& feature : tmpl.encode(trajectory_of(row), add_generation_prompt)) {
      if (feature.length() > 0) out.push_back(with_feature(row, feature));
    }
    return out;
  }
  if (!add_generation_prompt) text::refuse_weights(row);  // whatever is said within the pair
  Row encoded = row;
  for (const std::string& field : fields) {
    const Row& inner = row.at(field).get_object();
    const auto features = tmpl.encode(trajectory_of(inner, row), add_generation_prompt);
    require(features.size() < 2, Code::kInvalid, "data: field '", field, "' was split into ",
            features.size(), "; nested samples cannot be split, use another truncation_strategy");
    if (features.empty() || features[0].length() == 0) return {};
    encoded[field] = with_feature(inner, features[0]);
  }
  out.push_back(std::move(encoded));
  return out;
}

}  // namespace

Encoder encoder(const text::Template& tmpl, bool add_generation_prompt) {
  return [&tmpl, add_generation_prompt](const Row& row) {
    return encode_row(tmpl, row, add_generation_prompt);
  };
}

std::optional<std::string> why_not(const text::Template& tmpl, const Row& row) {
  const auto fields = nested_fields(row);
  if (fields.empty()) return tmpl.check(trajectory_of(row));
  for (const std::string& field : fields) {
    if (auto cause = tmpl.check(trajectory_of(row.at(field).get_object(), row)))
      return field + ": " + *cause;
  }
  return std::nullopt;
}

std::vector<int32_t> integers(const Row& row, std::string_view field) {
  const Json* list = row.if_contains(field);
  require(list && list->is_array(), Code::kInvalid, "data: field '", field,
          "' must be a list of integers; encode the rows first");
  std::vector<int32_t> out;
  out.reserve(list->get_array().size());
  for (const Json& value : list->get_array()) {
    boost::system::error_code failed;
    out.push_back(value.to_number<int32_t>(failed));
    require(!failed, Code::kInvalid, "data: field '", field, "' has ", value, " at ",
            out.size() - 1, ", it must be an integer of 32 bits");
  }
  return out;
}

}  // namespace twinkle::data
