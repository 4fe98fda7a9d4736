// The columns of a row besides `messages` that say something of its chat: those that are read, and
// those that are refused because nobody would read them. Columns that only describe a row (id,
// source) are no business of this. Knows no template.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "twinkle/base/json.h"

namespace twinkle::text {

// A reader of rows passes these on to the template; others may be large.
inline constexpr std::array<std::string_view, 6> kChatColumns = {"messages", "tools",  "user_data",
                                                                 "images",   "videos", "audios"};
// These, too, where they hold JSON; a row of a loop of one's own may have tensors of such names.
inline constexpr std::array<std::string_view, 9> kMoreColumns = {
    "system", "system_prompt", "history", "functions", "function_call", "chat_template_kwargs",
    "weight", "loss",          "train"};

// Null, or an empty text, list or object, or no value at all.
bool says_nothing(const Json* value);

bool begins_with_system(const JsonArray& messages);

// The text of the column `system`, or `system_prompt`; empty: none, or `messages` begin with it.
// Error kInvalid: it is no string, the two differ, or the messages begin with another.
std::string system_column(const Json& row, const JsonArray& messages);

// The messages of the column `history`, a list of [question, answer]; empty: there is none. Error
// kInvalid: another value.
JsonArray history_messages(const Json& row);

// True and false of true and false, 1 and 0, and texts that hold one of these, in any case: tables
// have them all. Nothing of another value.
std::optional<bool> truth(const Json& value);

// Error kInvalid: a column that would change the chat's text and is not read, with its value and a
// remedy. `history` may be there when `messages` begin with its turns.
void refuse_columns(const Json& row, const JsonArray& messages);

// The same of columns that say how much of the row is to be learnt: weight, loss and train. A text
// counts as the number or the boolean that it holds, as in a column of a CSV file with empty cells.
void refuse_weights(const Json& row);

}  // namespace twinkle::text
