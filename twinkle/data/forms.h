// Rows of a form that is known by their columns: read as the preprocessor of that form reads them,
// without anybody naming it. Rows that have messages are taken as they are, unless those are turns
// of ShareGPT.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/data/dataset.h"
#include "twinkle/text/forms.h"
#include "twinkle/text/template.h"

namespace twinkle::data {

// The forms that a row has; none of messages, of trajectories (`positive`, `negative`) and of rows
// that nobody knows. Columns that are null are not there.
std::vector<text::Form> forms_of(const Row& row);

// The fields that the preprocessor of the row's form sets on it; none where forms_of gives none.
// Error kInvalid: two forms; a verdict (refuse_verdict); what the preprocessor refuses.
Row read_form(const Row& row);

// For a chat template that writes no tool calls: those of a message that has nothing else become
// its content, too, a line of JSON for each.
void write_calls(JsonArray& messages);

// False for a column whose value changes nothing of read_form. Others may be large.
bool is_read(std::string_view column);

// The columns that say whether the row's reply is desirable, where they are true or false.
inline constexpr std::array kVerdicts = {"label", "kto_tag"};
// The verdict; none: neither column has one. Error kInvalid: they have two.
std::optional<bool> verdict_of(const Row& row);
// Error kInvalid: the row has a verdict, and every reply would be learnt alike.
void refuse_verdict(const Row& row);

// "prompt, completion: read as PromptCompletionProcessor".
std::string reading(const text::Form& form);

// A line for each file and form of these rows that encode() reads by their form, and for each file
// that was itself read in one of several ways: "semi.csv: separated by ';'; ...".
std::vector<std::string> readings(const Dataset& rows);

// Lines about encoded rows that may teach something else than is meant, for each file: "chats.csv:
// 1 of 21 replies is empty", and of calls that `tmpl` writes as JSON.
std::vector<std::string> remarks(const Dataset& rows, const text::Template& tmpl);

}  // namespace twinkle::data
