// The built-in preprocessors: raw columns of known data sets to `messages` and `user_data`. One
// small file each, and one line in preprocessors.def. Values; thread-safe.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/data/dataset.h"

namespace twinkle::data {

struct PreprocessorKind {
  std::string name;     // "GSM8KProcessor", as users write it
  JsonObject defaults;  // its arguments, in order, with their defaults
  Preprocessor (*make)(const JsonObject& arguments);  // given all of them
  // Why rows that it makes with the defaults are not for supervised fine-tuning; empty: they are.
  std::string not_for_tuning = {};
  std::string about = {};  // the fields that it reads and sets, for users; empty: its name says so
};

// All of them, in the order of preprocessors.def.
std::vector<PreprocessorKind> preprocessor_kinds();

// The preprocessor `name` with `arguments` over its defaults. Error kNotFound: an unknown name (the
// known ones are listed); kInvalid: an unknown argument, or one of another type than its default
// (null takes a string).
Preprocessor make_preprocessor(std::string_view name, const JsonObject& arguments = {});

// For the preprocessors' own use. The string in the row's field. Error kInvalid: missing, null or
// no string, as a number of a CSV file is none in a column that no preprocessor names by default.
std::string text_field(const Row& row, std::string_view field);
// The same, with "" for a field that is missing or null.
std::string text_field_or_empty(const Row& row, std::string_view field);
JsonObject message(std::string_view role, std::string_view content);
// The user's message of Alpaca's columns instruction and input.
std::string instruction_of(const Row& row);
// Messages of ShareGPT's turns, or of one. `field` names them in errors. Error kInvalid: another
// value, an unknown 'from', a call that is none.
JsonArray sharegpt_messages(const Json& turns, std::string_view field);
// Sets out["tools"] to the row's column tools, each in the form {"type": "function", "function":
// ...}; LLaMA-Factory's lack it, and are JSON text.
void add_tools(const Row& row, Row& out);
// The assistant's messages are context: they get the weight 0, unless they have one.
void leave_untrained(JsonArray& messages);
// A row's messages, `own` among them: its column `system`, else the argument of that name, null or
// a string, unless `own` begins with it; the turns of its column `history`; the rest of `own`.
// Error kInvalid: a column that is no text, or no list of pairs; a column `system` where `own`
// begins with another system message.
JsonArray with_earlier_messages(const Row& row, JsonArray own, const Json& system = nullptr);
// [] or [system], from an argument that is null or a string.
JsonArray system_messages(const Json& system);

}  // namespace twinkle::data
