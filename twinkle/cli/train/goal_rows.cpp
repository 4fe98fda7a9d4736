#include "twinkle/cli/train/goal_rows.h"

#include <algorithm>

#include "twinkle/base/error.h"
#include "twinkle/cli/train/rows.h"
#include "twinkle/data/encode.h"
#include "twinkle/data/forms.h"
#include "twinkle/data/preprocessors/preprocessor.h"

namespace twinkle::cli {
namespace {

void check_length(const data::Row& row, int64_t max_length, std::string_view what) {
  const auto length = std::ssize(data::integers(row, "input_ids"));
  require(length <= max_length, Code::kInvalid, "cli: ", what, " has ", length,
          " tokens, --max-length is ", max_length, "; raise it, or shorten the row");
}

bool is_chat(const data::Row& row, const char* name) {
  const Json* value = row.if_contains(name);
  return value && value->is_object();
}

data::Row as_pair(const data::Row& row) {
  if (is_chat(row, kChosen) && is_chat(row, kRejected)) return {};
  data::Row made = data::read_form(row);
  require(
      is_chat(made, kChosen) && is_chat(made, kRejected), Code::kInvalid,
      "cli: the row is no pair of replies; a pair has prompt, chosen and rejected, or chosen and "
      "rejected as whole chats (docs/preferences.md)");
  return made;
}

data::Row as_prompt(const data::Row& row) {
  if (row.contains("messages")) return {};
  require(row.contains("prompt"), Code::kInvalid,
          "cli: the row has no messages and no prompt; a preprocessor makes them (--preprocessor)");
  return {{"messages", JsonArray{data::message("user", data::text_field(row, "prompt"))}}};
}

}  // namespace

data::Dataset preference_rows(const std::string& file, const TrainingFiles& files,
                              const text::Template& tmpl, int64_t max_length) {
  const data::Encoder encode = data::encoder(tmpl);
  return read_rows(file, files).map(as_pair).encode([&encode, max_length](const data::Row& row) {
    data::Row pair = row;
    pair.erase("messages");  // the pair's prompt alone, where a row has it as messages, too
    data::Rows made = encode(pair);
    for (const char* side : {kChosen, kRejected}) {
      const data::Row& chat = made.at(0).at(side).as_object();
      check_length(chat, max_length, std::string("the chat '") + side + "'");
      require(std::ranges::any_of(data::integers(chat, "labels"), [](int32_t l) { return l >= 0; }),
              Code::kInvalid, "cli: the chat '", side, "' has no reply to learn from");
    }
    return made;
  });
}

data::Dataset prompt_rows(const std::string& file, const TrainingFiles& files,
                          const text::Template& tmpl, int64_t max_length) {
  const data::Encoder encode = data::encoder(tmpl, true);
  return read_rows(file, files).map(as_prompt).encode([&encode, max_length](const data::Row& row) {
    const Json* messages = row.if_contains("messages");
    const Json* last = messages && messages->is_array() && !messages->get_array().empty()
                           ? find(messages->get_array().back(), "role")
                           : nullptr;
    require(!last || *last != "assistant", Code::kInvalid,
            "cli: the row ends with a reply, and grpo samples replies itself; end it with the "
            "user's turn");
    data::Rows made = encode(row);
    for (const data::Row& one : made) check_length(one, max_length, "the prompt");
    return made;
  });
}

}  // namespace twinkle::cli
