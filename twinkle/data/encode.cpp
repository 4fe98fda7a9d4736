#include "twinkle/data/encode.h"

#include <algorithm>

#include "twinkle/data/forms.h"
#include "twinkle/data/preprocessors/preprocessor.h"
#include "twinkle/text/columns.h"
#include "twinkle/text/turns.h"

namespace twinkle::data {
namespace {

bool is_trajectory(const Json& value) {
  return value.is_object() && value.get_object().contains("messages");
}

// The names of the fields that are trajectories; none for a row that is one itself.
std::vector<std::string> nested_fields(const Row& row) {
  std::vector<std::string> out;
  if (const Json* messages = row.if_contains("messages"); messages && !messages->is_null())
    return out;
  for (const auto& field : row) {
    if (is_trajectory(field.value())) out.emplace_back(field.key());
  }
  return out;
}

// The fields that the template reads; others may be large. What `row` lacks, the row `around` it
// may have: columns beside a pair are of both.
Json trajectory_of(const text::Template& tmpl, const Row& row, const Row& around = {}) {
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
  if (Json* messages = out.if_contains("messages"); messages && messages->is_array())
    if (!tmpl.writes_calls()) write_calls(messages->get_array());
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

// The row with the fields of its form's preprocessor; nothing for one that is taken as it is.
std::optional<Row> with_form(const Row& row) {
  Row fields = read_form(row);
  if (fields.empty()) return std::nullopt;
  Row out = row;
  for (auto& field : fields) out[field.key()] = std::move(field.value());
  return out;
}

Rows encode_row(const text::Template& tmpl, const Row& row, bool add_generation_prompt) {
  Rows out;
  const auto fields = nested_fields(row);
  if (fields.empty()) {
    for (const auto& feature : tmpl.encode(trajectory_of(tmpl, row), add_generation_prompt)) {
      if (feature.length() > 0) out.push_back(with_feature(row, feature));
    }
    return out;
  }
  if (!add_generation_prompt) text::refuse_weights(row);  // whatever is said within the pair
  Row encoded = row;
  for (const std::string& field : fields) {
    const Row& inner = row.at(field).get_object();
    const auto features = tmpl.encode(trajectory_of(tmpl, inner, row), add_generation_prompt);
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
    const auto made = add_generation_prompt ? std::nullopt : with_form(row);
    return encode_row(tmpl, made ? *made : row, add_generation_prompt);
  };
}

std::optional<std::string> why_not(const text::Template& tmpl, const Row& row) try {
  const auto made = with_form(row);
  const Row& read = made ? *made : row;
  const auto fields = nested_fields(read);
  if (fields.empty()) return tmpl.check(trajectory_of(tmpl, read));
  for (const std::string& field : fields) {
    if (auto cause = tmpl.check(trajectory_of(tmpl, read.at(field).get_object(), read)))
      return field + ": " + *cause;
  }
  return std::nullopt;
} catch (const Error& error) {  // the cause is the answer that was asked for
  return error.what();
}

Dataset encode_texts(const Dataset& rows, const text::Tokenizer& tokenizer, int64_t max_length) {
  require(max_length >= 1, Code::kInvalid, "data: max_length is ", max_length,
          ", it must be at least 1");
  const std::optional<int64_t> eos = tokenizer.eos_id();
  require(eos.has_value(), Code::kInvalid, "data: the tokenizer of ",
          tokenizer.directory().string(),
          " names no eos_token, which ends a text; add it to tokenizer_config.json");
  const Dataset texts = rows.encode([&](const Row& row) -> Rows {
    const std::string text = text_field(row, "text");
    if (text.find_first_not_of(" \t\r\n") == text.npos) return {};
    std::vector<int64_t> ids = tokenizer.encode(text, true);
    if (ids.empty() || ids.back() != *eos) ids.push_back(*eos);
    return {{{"input_ids", JsonArray(ids.begin(), ids.end())}}};
  });
  Rows out;
  std::vector<int64_t> origins;
  text::InputFeature piece;
  const auto close = [&] {  // a label of the last token is that of the text behind it
    if (piece.labels.size() < piece.input_ids.size()) piece.labels.push_back(text::kIgnored);
    if (std::ranges::any_of(piece.labels, [](int64_t label) { return label != text::kIgnored; }))
      out.push_back(with_feature({}, piece));
    else
      origins.pop_back();
    piece = {};
  };
  for (int64_t i = 0; i < texts.size(); ++i) {
    for (const Json& id : texts.row(i).at("input_ids").get_array()) {
      if (!piece.input_ids.empty()) piece.labels.push_back(id.get_int64());
      if (piece.length() == max_length) close();
      if (piece.input_ids.empty()) origins.push_back(i);
      piece.input_ids.push_back(id.get_int64());
    }
  }
  if (!piece.input_ids.empty()) close();
  return texts.replaced(std::move(out), origins);
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
