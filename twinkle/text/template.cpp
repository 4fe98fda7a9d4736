#include "twinkle/text/template.h"

#include <algorithm>
#include <utility>

#include "twinkle/text/columns.h"
#include "twinkle/text/rows.h"
#include "twinkle/text/rust/shared_tokenizer.h"
#include "twinkle/text/turns.h"

namespace twinkle::text {
namespace {

// The piece [from, to) with labels moved so that position t holds the label of token t + 1.
InputFeature piece(const std::vector<int64_t>& ids, const std::vector<int64_t>& labels, size_t from,
                   size_t to) {
  const auto at = [](const auto& v, size_t i) { return v.begin() + static_cast<ptrdiff_t>(i); };
  InputFeature out;
  out.input_ids.assign(at(ids, from), at(ids, to));
  out.labels.assign(at(labels, std::min(from + 1, to)), at(labels, to));
  if (from < to) out.labels.push_back(kIgnored);
  return out;
}

// A model needs a token to begin with.
void require_tokens(const std::vector<int64_t>& ids, const std::string& text,
                    const Json& messages) {
  require(
      !ids.empty(), Code::kInvalid, "text: the chat template renders nothing that is a token, ",
      text.size(), " bytes of ", messages.get_array().size(),
      " messages; a sample needs at least 1: mend the template, or drop such rows with check()");
}

}  // namespace

Truncation truncation_of(std::string_view name) {
  if (name == "raise") return Truncation::kRaise;
  if (name == "left") return Truncation::kLeft;
  if (name == "right") return Truncation::kRight;
  if (name == "split") return Truncation::kSplit;
  if (name == "delete") return Truncation::kDelete;
  fail(Code::kInvalid, "text: truncation_strategy is '", name,
       "', it must be raise, left, right, split or delete");
}

Template::Template(const std::filesystem::path& model, TemplateOptions options)
    : options_(std::move(options)), tokenizer_(shared_tokenizer(model)) {
  require(options_.max_length >= 0, Code::kInvalid, "text: max_length is ", options_.max_length,
          ", it must be at least 1, or 0 for no limit");
  if (options_.use_chat_template)
    chat_.emplace(ChatTemplate::of_directory(tokenizer_->directory()));
}

std::vector<InputFeature> Template::encode(const Json& trajectory,
                                           bool add_generation_prompt) const {
  return fit(chat_ ? encode_chat(trajectory, add_generation_prompt) : encode_plain(trajectory));
}

std::vector<std::vector<InputFeature>> Template::batch_encode(std::span<const Json> trajectories,
                                                              bool add_generation_prompt) const {
  std::vector<std::vector<InputFeature>> out(trajectories.size());
  for_each_row(trajectories.size(),
               [&](size_t i) { out[i] = encode(trajectories[i], add_generation_prompt); });
  return out;
}

std::optional<std::string> Template::check(const Json& trajectory) const {
  try {
    const auto features = encode(trajectory);
    if (!features.empty() && features.front().length() > 0) return std::nullopt;
    return "text: the row is longer than max_length, " + std::to_string(options_.max_length) +
           ", or empty";
  } catch (const Error& error) {  // the cause is the answer that was asked for
    return error.what();
  }
}

InputFeature Template::concat_input_feature(const InputFeature& feature,
                                            std::span<const int64_t> new_tokens) const {
  require(feature.input_ids.size() == feature.labels.size(), Code::kInvalid, "text: a feature of ",
          feature.input_ids.size(), " input_ids has ", feature.labels.size(), " labels");
  Labelled row{feature.input_ids, {}};
  if (!feature.labels.empty()) {  // back to the order of the tokens
    row.labels.push_back(kIgnored);
    row.labels.insert(row.labels.end(), feature.labels.begin(), feature.labels.end() - 1);
  }
  for (const int64_t token : new_tokens) {
    require(token >= 0, Code::kInvalid, "text: token id ", token, " is negative");
    row.ids.push_back(token);
    row.labels.push_back(token);
  }
  const size_t length = row.ids.size();
  auto fitted = fit(std::move(row));
  require(fitted.size() == 1, Code::kInvalid, "text: the prompt and its reply have ", length,
          " tokens, more than max_length, ", options_.max_length,
          "; 'split' and 'delete' cannot keep them in one sample");
  return std::move(fitted.front());
}

std::string Template::decode(std::span<const int64_t> ids, bool skip_special_tokens) const {
  return tokenizer_->decode(ids, skip_special_tokens);
}

std::vector<std::string> Template::batch_decode(std::span<const std::vector<int64_t>> rows,
                                                bool skip_special_tokens) const {
  return tokenizer_->batch_decode(rows, skip_special_tokens);
}

std::string Template::render(const Json& trajectory, bool add_generation_prompt) const {
  require(chat_.has_value(), Code::kInvalid, "text: use_chat_template is false, nothing to render");
  const Prepared prepared = prepare(trajectory, message_options());
  return chat_->render(conversation(prepared), add_generation_prompt);
}

MessageOptions Template::message_options() const {
  return {.default_system = options_.default_system,
          .takes_parts = chat_->takes_parts(),
          .reads_reasoning = chat_->reads_reasoning(),
          .takes_argument_text = chat_->takes_argument_text(),
          .absent_content = chat_->absent_content()};
}

Conversation Template::conversation(const Prepared& prepared) const {
  Conversation out{prepared.messages, prepared.tools, tokenizer_->special_tokens(), options_.now};
  out.variables["enable_thinking"] = options_.enable_thinking;
  for (const auto& [name, value] : prepared.variables) out.variables[name] = value;
  return out;
}

// The row with our roles in place of those of other forms of chats, which its message `first` has.
// Error kInvalid: the template does not render it as the same.
Json Template::with_usual_roles(const Json& trajectory, size_t first) const {
  const auto render = [this](const Json& row) {
    return chat_->render(conversation(prepare(row, message_options())), false);
  };
  Json out = trajectory;
  const Json given = out.at("messages").at(first).at("role");
  for (Json& message : out.at("messages").as_array()) {
    Json& role = message.at("role");
    role = usual_role(std::string_view(role.as_string()));
  }
  const std::string_view usual = out.at("messages").at(first).at("role").as_string();
  require(render(trajectory) == render(out), Code::kInvalid, "text: field 'messages[", first,
          "].role' is '", std::string_view(given.as_string()),
          "', which this chat template does not read as '", usual,
          "'; ShareGPTProcessor renames it, dataset.map('ShareGPTProcessor') or twinkle train "
          "--preprocessor ShareGPTProcessor");
  return out;
}

Template::Labelled Template::encode_chat(const Json& trajectory, bool add_generation_prompt) const {
  const Prepared prepared = prepare(trajectory, message_options());
  const Conversation said = conversation(prepared);
  if (add_generation_prompt) {
    const std::string text = chat_->render(said, true);
    Labelled out{tokenizer_->encode(text), {}};
    require_tokens(out.ids, text, prepared.messages);
    out.labels.assign(out.ids.size(), kIgnored);
    return out;
  }
  if (const auto first = other_role(trajectory))
    return encode_chat(with_usual_roles(trajectory, *first), false);
  refuse_weights(trajectory);
  refuse_weights_of_others(trajectory);
  const Turns turns = render_turns(*chat_, said, prepared);
  const auto offsets = turns.rule == Rule::kGeneration ? Offsets::kTrimmed : Offsets::kWhole;
  Encoding encoding = tokenizer_->encode_with_offsets(turns.text, offsets);
  require_tokens(encoding.ids, turns.text, prepared.messages);
  auto labels = label_tokens(turns.text, encoding, turns.written, turns.rule);
  require_trained(turns, prepared, encoding, labels);
  return {std::move(encoding.ids), std::move(labels)};
}

Template::Labelled Template::encode_plain(const Json& trajectory) const {
  const Prepared prepared = prepare(trajectory, {});
  const JsonArray& messages = prepared.messages.get_array();
  require(messages.size() == 1 && messages[0].at("role") == "user", Code::kInvalid,
          "text: with use_chat_template=false a row is one user message, this one has ",
          messages.size(), messages.size() == 1 ? " of another role" : " messages");
  const Json* content = find(messages[0], "content");
  require(content, Code::kInvalid, "text: field 'messages[0].content' is missing");
  const auto ids = tokenizer_->encode(plain_text(*content, 0), true);
  return {ids, ids};
}

std::vector<InputFeature> Template::fit(Labelled row) const {
  const size_t length = row.ids.size();
  const size_t limit = static_cast<size_t>(options_.max_length);
  if (limit == 0 || length <= limit) return {piece(row.ids, row.labels, 0, length)};
  switch (options_.truncation) {
    case Truncation::kLeft:
      return {piece(row.ids, row.labels, length - limit, length)};
    case Truncation::kRight:
      return {piece(row.ids, row.labels, 0, limit)};
    case Truncation::kDelete:
      return {};
    case Truncation::kSplit: {
      std::vector<InputFeature> out;
      for (size_t from = 0; from < length; from += limit)
        out.push_back(piece(row.ids, row.labels, from, std::min(from + limit, length)));
      return out;
    }
    case Truncation::kRaise:
      break;
  }
  fail(Code::kInvalid, "text: the row has ", length, " tokens, max_length is ", limit,
       "; shorten it, raise max_length, or set truncation_strategy");
}

}  // namespace twinkle::text
