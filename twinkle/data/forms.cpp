#include "twinkle/data/forms.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "twinkle/data/preprocessors/preprocessor.h"
#include "twinkle/text/columns.h"
#include "twinkle/text/messages.h"

namespace twinkle::data {
namespace {

constexpr text::Form kTurns = {{"messages", "messages"}, "ShareGPTProcessor"};

bool has(const Row& row, std::string_view column) {
  const Json* value = row.if_contains(column);
  return value && !value->is_null();
}

bool holds_trajectories(const Row& row) {
  return std::ranges::any_of(
      row, [](const auto& field) { return find(field.value(), "messages") != nullptr; });
}

// Turns with 'from', or with roles such as human and gpt.
bool are_turns(const Json& messages) {
  if (!messages.is_array()) return false;
  return std::ranges::any_of(messages.get_array(), [](const Json& message) {
    const Json* role = find(message, "role");
    if (role == nullptr) return find(message, "from") != nullptr;
    if (!role->is_string()) return false;
    const std::string_view name = role->get_string();
    return text::usual_role(name) != name;
  });
}

const Preprocessor& preprocessor_of(std::string_view name) {
  static const auto kMade = [] {
    std::map<std::string, Preprocessor, std::less<>> made;
    for (const PreprocessorKind& kind : preprocessor_kinds())
      made.emplace(kind.name, kind.make(kind.defaults));
    return made;
  }();
  return kMade.find(name)->second;
}

// A null is why the row, which has neither messages nor trajectories, has no form.
void refuse_null(const Row& row) {
  const auto is_column = [&row](std::string_view column) { return row.contains(column); };
  for (const text::Form& form : text::forms_of(is_column))
    for (const std::string_view column : form.columns)
      require(has(row, column), Code::kInvalid, "data: field '", column,
              "' is null; give it a value, or leave the row out");
}

// Lines about files, in the order of their first rows.
template <class Count>
class ByFile {
 public:
  explicit ByFile(const Dataset& rows) : rows_(rows) {}

  Count& at(int64_t index) {
    const Dataset::Source& source = rows_.source(index);
    const auto [place, is_new] = places_.emplace(&source, counts_.size());
    if (is_new) counts_.emplace_back(&source, Count());
    return counts_[place->second].second;
  }
  const std::vector<std::pair<const Dataset::Source*, Count>>& counts() const { return counts_; }

 private:
  const Dataset& rows_;
  std::map<const Dataset::Source*, size_t> places_;
  std::vector<std::pair<const Dataset::Source*, Count>> counts_;
};

struct FormCounts {
  int64_t rows = 0;
  std::vector<std::pair<std::string, int64_t>> forms;  // readings, with their rows

  void add(const std::string& form) {
    for (auto& [name, count] : forms)
      if (name == form) return void(++count);
    forms.emplace_back(form, 1);
  }
};

struct ReplyCounts {
  int64_t replies = 0, empty = 0, calls = 0;

  void add(const Json* messages) {
    if (!messages || !messages->is_array()) return;
    for (const Json& message : messages->get_array()) {
      const Json* role = find(message, "role");
      if (!role || *role != "assistant") continue;
      ++replies;
      const bool calls_tools = !text::says_nothing(find(message, "tool_calls"));
      calls += calls_tools;
      empty += !calls_tools && text::says_nothing(find(message, "content"));
    }
  }
};

}  // namespace

std::vector<text::Form> forms_of(const Row& row) {
  if (const Json* messages = row.if_contains("messages"); messages && !messages->is_null())
    return are_turns(*messages) ? std::vector{kTurns} : std::vector<text::Form>();
  if (holds_trajectories(row)) return {};
  return text::forms_of([&row](std::string_view column) { return has(row, column); });
}

Row read_form(const Row& row) {
  const std::vector<text::Form> forms = forms_of(row);
  if (forms.empty()) {
    if (!has(row, "messages") && !holds_trajectories(row)) refuse_null(row);
    return {};
  }
  require(
      forms.size() == 1, Code::kInvalid, "data: the row can be ", reading(forms.front()), ", or ",
      reading(forms.back()),
      "; name one, dataset.map(NAME) or twinkle train --preprocessor NAME, or leave the other's "
      "columns out");
  refuse_verdict(row);
  return preprocessor_of(forms.front().preprocessor)(row);
}

void write_calls(JsonArray& messages) {
  for (Json& message : messages) {
    const Json* calls = find(message, "tool_calls");
    if (!calls || !calls->is_array() || !text::says_nothing(find(message, "content"))) continue;
    std::string text;
    for (const Json& call : calls->get_array()) {
      const Json* function = find(call, "function");
      if (!text.empty()) text += '\n';
      text += boost::json::serialize(function ? *function : call);
    }
    message.as_object()["content"] = text;
  }
}

bool is_read(std::string_view column) {
  static constexpr std::array<std::string_view, 15> kColumns = {
      "chosen",   "rejected", "conversations", "instruction", "input",
      "output",   "prompt",   "completion",    "response",    "query",
      "question", "answer",   "label",         "kto_tag",     "tools"};
  return std::ranges::find(kColumns, column) != kColumns.end();
}

std::optional<bool> verdict_of(const Row& row) {
  std::optional<bool> out;
  for (const char* name : kVerdicts) {
    const Json* column = row.if_contains(name);
    const std::optional<bool> said = column ? text::truth(*column) : std::nullopt;
    require(!out || !said || out == said, Code::kInvalid,
            "data: fields 'label' and 'kto_tag' say the opposite of each other; leave one out");
    if (said) out = said;
  }
  return out;
}

void refuse_verdict(const Row& row) {
  for (const char* name : kVerdicts) {
    const Json* verdict = row.if_contains(name);
    require(!verdict || !text::truth(*verdict), Code::kInvalid, "data: field '", name, "' is ",
            verdict ? *verdict : Json(),
            ", a verdict on the reply, and here every reply is learnt alike; learn from verdicts "
            "with twinkle train --loss kto, or KTOLoss (docs/preferences.md), or leave the field "
            "out");
  }
}

std::string reading(const text::Form& form) {
  return form.listed() + ": read as " + std::string(form.preprocessor);
}

std::vector<std::string> readings(const Dataset& rows) {
  ByFile<FormCounts> files(rows);
  for (int64_t i = 0; i < rows.size(); ++i) {
    FormCounts& file = files.at(i);
    ++file.rows;
    const std::vector<text::Form> forms = forms_of(rows.row(i));
    if (forms.size() == 1) file.add(reading(forms.front()));
  }
  std::vector<std::string> out;
  for (const auto& [source, file] : files.counts()) {
    std::string line = source->name + ": " + source->note;
    for (const auto& [form, count] : file.forms) {
      if (line.size() > source->name.size() + 2) line += "; ";
      if (count < file.rows)
        line += std::to_string(count) + " of " + std::to_string(file.rows) + " rows: ";
      line += form;
    }
    if (line.size() > source->name.size() + 2) out.push_back(line);
  }
  return out;
}

std::vector<std::string> remarks(const Dataset& rows, const text::Template& tmpl) {
  ByFile<ReplyCounts> files(rows);
  for (int64_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows.row(i);
    ReplyCounts& file = files.at(i);
    file.add(row.if_contains("messages"));
    if (has(row, "messages")) continue;
    for (const auto& field : row) file.add(find(field.value(), "messages"));
  }
  std::vector<std::string> out;
  const auto say = [&](const std::string& name, int64_t count, int64_t all, const char* what) {
    if (count > 0)
      out.push_back(name + ": " + std::to_string(count) + " of " + std::to_string(all) +
                    " replies " + (count == 1 ? "is " : "are ") + what);
  };
  for (const auto& [source, file] : files.counts()) {
    say(source->name, file.empty, file.replies, "empty");
    if (!tmpl.writes_calls())
      say(source->name, file.calls, file.replies,
          "of tool calls: the chat template knows none, so they are learnt as JSON");
  }
  return out;
}

}  // namespace twinkle::data
