#include "twinkle/cli/train/rows.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/cli/model_path.h"
#include "twinkle/data/encode.h"
#include "twinkle/data/forms.h"
#include "twinkle/data/preprocessors/preprocessor.h"

namespace twinkle::cli {
namespace {

// The roles of a row without a label. Which roles there are is the chat template's to say: Llama
// 3's takes ipython, others observation.
std::vector<std::string> roles_of(const data::Row& row) {
  std::vector<std::string> roles;
  for (const Json& message : row.at("messages").as_array())
    roles.push_back(get<std::string>(message, "role"));
  return roles;
}

std::string listed(const std::vector<std::string>& roles) {
  std::string out;
  for (const std::string& role : roles)
    if (out.size() < 80) out += (out.empty() ? "" : ", ") + role.substr(0, 40);
  return out;
}

void check_encoded(const data::Row& row, int64_t max_length) {
  require(row.contains("input_ids"), Code::kInvalid,
          "cli: the row holds several chats and no messages; pairs are for --loss dpo, see "
          "docs/preferences.md");
  const auto labels = data::integers(row, "labels");
  require(std::ssize(labels) <= max_length, Code::kInvalid, "cli: the row has ", labels.size(),
          " tokens, --max-length is ", max_length, "; raise it, or shorten the row");
  if (std::ranges::any_of(labels, [](int32_t label) { return label != -100; })) return;
  fail(Code::kInvalid, "cli: the row has no label to learn from: its messages have the roles ",
       listed(roles_of(row)),
       ", and only the assistant's replies are trained; add the reply (docs/training.md, Rows)");
}

void say(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) std::fprintf(stderr, "%s\n", line.c_str());
}

}  // namespace

data::Dataset read_rows(const std::string& file, const TrainingFiles& files) {
  data::Dataset rows = data::Dataset::read(data_path(file), data::renames_of(files.columns));
  if (!files.preprocessor.empty()) rows = rows.map(data::make_preprocessor(files.preprocessor));
  say(data::readings(rows));
  return rows;
}

void refuse_preferences(const data::Row& row) {
  for (const char* name : {"rejected", "rejected_response", "rejected_messages"}) {
    const Json* value = row.if_contains(name);
    require(!value || value->is_null(), Code::kInvalid, "cli: field '", name,
            "' is the worse one of a pair, which --loss dpo learns from; see docs/preferences.md, "
            "or leave the field out");
  }
  data::refuse_verdict(row);
}

data::Dataset trainable_rows(const std::string& file, const TrainingFiles& files,
                             const text::Template& tmpl, int64_t max_length) {
  const data::Dataset rows = read_rows(file, files);
  rows.encode([](const data::Row& row) -> data::Rows {  // before what one row alone has wrong
    if (row.contains("messages") || !data::forms_of(row).empty()) refuse_preferences(row);
    return {};
  });
  const data::Encoder encode = data::encoder(tmpl);
  data::Dataset encoded = rows.encode([&encode, max_length](const data::Row& row) {
    data::Rows made = encode(row);
    for (const data::Row& one : made) check_encoded(one, max_length);
    return made;
  });
  say(data::remarks(encoded, tmpl));
  return encoded;
}

data::Dataset text_rows(const std::string& file, const TrainingFiles& files,
                        const text::Template& tmpl, int64_t max_length) {
  return data::encode_texts(read_rows(file, files), tmpl.tokenizer(), max_length);
}

std::string preprocessors_for_tuning() {
  std::string names;
  for (const auto& kind : data::preprocessor_kinds()) {
    if (kind.not_for_tuning.empty()) names += (names.empty() ? "" : ", ") + kind.name;
  }
  return names;
}

void check_preprocessor(const std::string& name, bool for_tuning) {
  for (const auto& kind : data::preprocessor_kinds()) {
    if (kind.name != name) continue;
    require(!for_tuning || kind.not_for_tuning.empty(), Code::kInvalid, "cli: --preprocessor is ",
            name, ", ", kind.not_for_tuning);
    return;
  }
  fail(Code::kInvalid, "cli: --preprocessor is '", name, "', it must be one of ",
       preprocessors_for_tuning());
}

}  // namespace twinkle::cli
