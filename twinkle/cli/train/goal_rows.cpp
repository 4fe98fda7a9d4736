#include "twinkle/cli/train/goal_rows.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

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

// The place of the first message after the user's last one.
int64_t begin_of_reply(const JsonArray& messages) {
  const auto last = std::find_if(messages.rbegin(), messages.rend(), [](const Json& message) {
    const Json* role = find(message, "role");
    return role && *role == "user";
  });
  return messages.rend() - last;
}

data::Row as_judged(const data::Row& row) {
  const std::optional<bool> desirable = data::verdict_of(row);
  require(desirable.has_value(), Code::kInvalid,
          "cli: the row has no verdict on its reply: --loss kto learns from a column label or "
          "kto_tag, true or false (docs/preferences.md); add it, or leave --loss out");
  data::Row chat = row;
  for (const char* name : data::kVerdicts) chat.erase(name);
  for (auto& field : data::read_form(chat)) chat[field.key()] = std::move(field.value());
  Json* messages = chat.if_contains("messages");
  require(messages && messages->is_array(), Code::kInvalid,
          "cli: the row is no chat with a reply; such a row has prompt, completion and label, or "
          "messages and label (docs/preferences.md)");
  JsonArray& all = messages->as_array();
  const int64_t begin = begin_of_reply(all);
  require(begin < std::ssize(all), Code::kInvalid,
          "cli: the row has no reply after the user's last message; add it, or leave the row out");
  JsonArray prompt(all.begin(), all.begin() + begin);
  data::leave_untrained(prompt);
  std::ranges::move(prompt, all.begin());
  return {{kDesirable, *desirable}, {kReply, JsonObject{{"messages", std::move(all)}}}};
}

const JsonArray& messages_of(const data::Row& row, const char* chat) {
  return row.at(chat).at("messages").as_array();
}

// The rows with kOtherReply.
data::Dataset with_others(const data::Dataset& rows, const std::string& file) {
  std::vector<JsonArray> prompts;
  for (const data::Row& row : rows.rows()) {
    const JsonArray& all = messages_of(row, kReply);
    prompts.emplace_back(all.begin(), all.begin() + begin_of_reply(all));
  }
  const auto differs = std::ranges::find_if(
      prompts.rbegin(), prompts.rend(), [&](const auto& one) { return one != prompts.front(); });
  require(prompts.empty() || differs != prompts.rend(), Code::kInvalid,
          "cli: --loss kto compares with replies to other prompts, and all rows of ", file,
          " have the same prompt; add rows of another one, or give --baseline zero");
  auto other = static_cast<size_t>(prompts.rend() - differs) - 1;
  data::Rows out = rows.rows();
  std::vector<int64_t> origins;
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (i > 0 && prompts[i - 1] != prompts[i]) other = i - 1;
    const JsonArray& theirs = messages_of(out[other], kReply);
    JsonArray chat = prompts[i];
    chat.insert(chat.end(), theirs.begin() + begin_of_reply(theirs), theirs.end());
    out[i][kOtherReply] = JsonObject{{"messages", std::move(chat)}};
    origins.push_back(static_cast<int64_t>(i));
  }
  return rows.replaced(std::move(out), origins);
}

// Encodes the rows' chats of these names, each of which must have a reply.
data::Dataset encoded(const data::Dataset& rows, const std::vector<std::string>& chats,
                      const text::Template& tmpl, int64_t max_length) {
  const data::Encoder encode = data::encoder(tmpl);
  return rows.encode([&](const data::Row& row) {
    data::Row alone = row;
    alone.erase("messages");  // where a row has its prompt, or its chat, as messages, too
    data::Rows made = encode(alone);
    for (const std::string& name : chats) {
      const data::Row& chat = made.at(0).at(name).as_object();
      check_length(chat, max_length, "the chat '" + name + "'");
      require(std::ranges::any_of(data::integers(chat, "labels"), [](int32_t l) { return l >= 0; }),
              Code::kInvalid, "cli: the chat '", name, "' has no reply to learn from");
    }
    return made;
  });
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
  return encoded(read_rows(file, files).map(as_pair), {kChosen, kRejected}, tmpl, max_length);
}

data::Dataset judged_rows(const std::string& file, const TrainingFiles& files,
                          const text::Template& tmpl, int64_t max_length, bool others) {
  const data::Dataset rows = read_rows(file, files).map(as_judged);
  if (!others) return encoded(rows, {kReply}, tmpl, max_length);
  return encoded(with_others(rows, file), {kReply, kOtherReply}, tmpl, max_length);
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
