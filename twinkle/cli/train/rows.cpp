#include "twinkle/cli/train/rows.h"

#include <algorithm>
#include <array>

#include "twinkle/base/error.h"
#include "twinkle/data/encode.h"
#include "twinkle/data/preprocessors/preprocessor.h"

namespace twinkle::cli {
namespace {

constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                    "tool"};
constexpr std::array<std::string_view, 3> kShareGptRoles = {"human", "gpt", "model"};

bool is_in(const auto& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// A turn of a role that no chat template knows is rendered as one that nobody learns from, or not
// at all. What is no message with a role is the template's to refuse.
void check_roles(const data::Row& row) {
  const Json* messages = row.if_contains("messages");
  if (!messages || !messages->is_array()) return;
  for (size_t i = 0; i < messages->get_array().size(); ++i) {
    const Json* given = find(messages->get_array()[i], "role");
    if (!given || !given->is_string()) continue;
    const std::string_view role = given->get_string();
    require(is_in(kRoles, role), Code::kInvalid, "cli: messages[", i, "].role is '",
            role.substr(0, 40), "', it must be system, developer, user, assistant or tool; ",
            is_in(kShareGptRoles, role)
                ? "--preprocessor ShareGPTProcessor renames human, gpt and model"
                : "rename it (docs/training.md, Rows)");
  }
}

std::string roles_of(const data::Row& row) {
  std::string out;
  for (const Json& message : row.at("messages").as_array()) {
    const std::string role(get<std::string>(message, "role"));
    if (out.size() < 80) out += (out.empty() ? "" : ", ") + role;
  }
  return out;
}

void check_encoded(const data::Row& row, int64_t max_length) {
  require(row.contains("input_ids"), Code::kInvalid,
          "cli: the row holds several chats and no messages; for preferences see "
          "docs/preferences.md");
  const auto labels = data::integers(row, "labels");
  require(std::ssize(labels) <= max_length, Code::kInvalid, "cli: the row has ", labels.size(),
          " tokens, --max-length is ", max_length, "; raise it, or shorten the row");
  require(std::ranges::any_of(labels, [](int32_t label) { return label != -100; }), Code::kInvalid,
          "cli: the row has no label to learn from: its messages have the roles ", roles_of(row),
          ", and only the assistant's replies are trained; add the reply (docs/training.md, Rows)");
}

}  // namespace

data::Dataset trainable_rows(const std::string& file, const std::string& preprocessor,
                             const text::Template& tmpl, int64_t max_length) {
  data::Dataset rows = data::Dataset::read(file);
  if (!preprocessor.empty()) rows = rows.map(data::make_preprocessor(preprocessor));
  const data::Encoder encode = data::encoder(tmpl);
  return rows.encode([&encode, max_length](const data::Row& row) {
    check_roles(row);
    data::Rows made = encode(row);
    for (const data::Row& one : made) check_encoded(one, max_length);
    return made;
  });
}

std::string preprocessors_for_tuning() {
  std::string names;
  for (const auto& kind : data::preprocessor_kinds()) {
    if (kind.not_for_tuning.empty()) names += (names.empty() ? "" : ", ") + kind.name;
  }
  return names;
}

void check_preprocessor(const std::string& name) {
  for (const auto& kind : data::preprocessor_kinds()) {
    if (kind.name != name) continue;
    require(kind.not_for_tuning.empty(), Code::kInvalid, "cli: --preprocessor is ", name, ", ",
            kind.not_for_tuning);
    return;
  }
  fail(Code::kInvalid, "cli: --preprocessor is '", name, "', it must be one of ",
       preprocessors_for_tuning());
}

}  // namespace twinkle::cli
