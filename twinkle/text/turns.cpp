#include "twinkle/text/turns.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

namespace twinkle::text {
namespace {

constexpr size_t kNoStart = SIZE_MAX;

std::vector<Span> generated_spans(const Rendering& marked, const Prepared& prepared) {
  std::vector<Span> out;
  for (const auto& [begin, end] : marked.generated)
    if (begin < end) out.push_back({begin, end});
  std::sort(out.begin(), out.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  if (!prepared.key_rounds) return out;
  size_t next = 0, message = kNoStart;  // the message in whose bytes a span begins
  const std::vector<size_t>& starts = marked.starts;
  std::erase_if(out, [&](const Span& span) {
    for (; next < starts.size() && (starts[next] == kNoStart || starts[next] <= span.begin); ++next)
      if (starts[next] != kNoStart) message = next;
    return !std::binary_search(prepared.trained.begin(), prepared.trained.end(), message);
  });
  return out;
}

// Marks can be used when the text is the same without them and every turn to train, and all that
// follows the first of them, has one, in order.
bool marks_hold(const Rendering& plain, const Rendering& marked, size_t first) {
  if (plain.text != marked.text) return false;
  for (size_t i = first; i < marked.starts.size(); ++i) {
    if (marked.starts[i] == kNoStart) return false;
    if (i > first && marked.starts[i] < marked.starts[i - 1]) return false;
  }
  return true;
}

// How much of the generation prompt the turn's text begins with. A prompt that opens a <think>
// which the turn lacks matches in part: then up to the last line end or tag that both share.
size_t prompt_length(std::string_view prompt, std::string_view turn) {
  size_t same = 0;
  while (same < std::min(prompt.size(), turn.size()) && prompt[same] == turn[same]) ++same;
  if (same == prompt.size()) return same;
  const size_t cut = prompt.substr(0, same).find_last_of("\n>");
  return cut == prompt.npos ? 0 : cut + 1;
}

// The role of the message before turn i; empty where it is the first.
std::string role_before(const Prepared& prepared, size_t i) {
  return i == 0 ? std::string() : get<std::string>(prepared.messages.at(i - 1), "role");
}

// The generation prompt by the role of the message before: some templates have none after a tool's
// result.
using Prompts = std::map<std::string, std::string>;

std::vector<Span> marked_spans(const std::string& text, const std::vector<size_t>& starts,
                               const Prompts& prompts, const Prepared& prepared) {
  std::vector<Span> out;
  for (const size_t i : prepared.trained) {
    const size_t begin = starts[i];
    const size_t end = i + 1 < starts.size() ? starts[i + 1] : text.size();
    const size_t skip = prompt_length(prompts.at(role_before(prepared, i)),
                                      std::string_view(text).substr(begin, end - begin));
    if (begin + skip < end) out.push_back({begin + skip, end});
  }
  return out;
}

// The rule of prefix differences as it is written, two renderings per turn: for templates whose
// loop over the messages cannot be marked.
std::vector<Span> prefix_spans(const ChatTemplate& chat, const Conversation& conversation,
                               const std::string& text, const Prepared& prepared) {
  std::vector<RenderRequest> requests;
  for (const size_t i : prepared.trained) {
    requests.push_back({.num_messages = i, .add_generation_prompt = true});
    requests.push_back({.num_messages = i + 1});
  }
  const auto prefixes = chat.render(conversation, requests);
  std::vector<Span> out;
  for (size_t k = 0; k < prepared.trained.size(); ++k) {
    const std::string& before = prefixes[2 * k].text;
    const std::string& with = prefixes[2 * k + 1].text;
    require(
        text.starts_with(before) && text.starts_with(with), Code::kInvalid,
        "text: the text that message ", prepared.trained[k],
        " has generated cannot be found: the chat template renders the conversation up to it "
        "differently than within the whole; put {% generation %} tags around the assistant's text");
    if (before.size() < with.size()) out.push_back({before.size(), with.size()});
  }
  return out;
}

// The generation prompt: what the conversation before a turn, rendered with it, has beyond that
// turn's start. Where that conversation reads otherwise than within the whole: what the whole
// one has more with it.
std::optional<std::string> generation_prompt(const ChatTemplate& chat,
                                             const Conversation& conversation,
                                             const std::string& text, size_t turn, size_t start) {
  const auto beyond = [&](size_t num_messages, size_t at) -> std::optional<std::string> {
    const RenderRequest request{.num_messages = num_messages, .add_generation_prompt = true};
    const std::string with = chat.render(conversation, {&request, 1}).front().text;
    if (with.size() < at || with.compare(0, at, text, 0, at) != 0) return std::nullopt;
    return with.substr(at);
  };
  if (turn > 0)
    if (auto prompt = beyond(turn, start)) return prompt;
  return beyond(SIZE_MAX, text.size());
}

// One rendering per role: of the last turn that follows it. None: the prompt cannot be determined.
std::optional<Prompts> generation_prompts(const ChatTemplate& chat,
                                          const Conversation& conversation, const Rendering& marked,
                                          const Prepared& prepared) {
  Prompts out;
  for (auto turn = prepared.trained.rbegin(); turn != prepared.trained.rend(); ++turn) {
    const std::string role = role_before(prepared, *turn);
    if (out.contains(role)) continue;
    const auto prompt =
        generation_prompt(chat, conversation, marked.text, *turn, marked.starts[*turn]);
    if (!prompt) return std::nullopt;
    out[role] = *prompt;
  }
  return out;
}

}  // namespace

Turns render_turns(const ChatTemplate& chat, const Conversation& conversation,
                   const Prepared& prepared) {
  const Json& tools = conversation.tools;
  const bool with_tools = tools.is_array() && !tools.get_array().empty();
  const std::vector<RenderRequest> requests{{}, {.mark = true}};
  const auto renderings = chat.render(conversation, requests);
  const Rendering &plain = renderings[0], &marked = renderings[1];
  Turns out{.text = plain.text};
  if (chat.has_generation(with_tools) && marked.text == plain.text) {
    out.rule = Rule::kGeneration;
    out.written = generated_spans(marked, prepared);
    return out;
  }
  if (prepared.trained.empty()) return out;
  if (marks_hold(plain, marked, prepared.trained.front())) {
    if (const auto prompts = generation_prompts(chat, conversation, marked, prepared)) {
      out.written = marked_spans(out.text, marked.starts, *prompts, prepared);
      return out;
    }
  }
  out.written = prefix_spans(chat, conversation, out.text, prepared);
  return out;
}

std::vector<int64_t> label_tokens(const std::string& text, const Encoding& encoding,
                                  const std::vector<Span>& written, Rule rule) {
  const size_t size = encoding.ids.size();
  std::vector<int64_t> labels(size, kIgnored);
  const auto take = [&](size_t from, size_t to) {
    std::copy(encoding.ids.begin() + static_cast<ptrdiff_t>(from),
              encoding.ids.begin() + static_cast<ptrdiff_t>(to),
              labels.begin() + static_cast<ptrdiff_t>(from));
  };
  // The first token that ends after byte `at`: the first one of those that hold it.
  const auto holder = [&](size_t at) {
    return static_cast<size_t>(std::upper_bound(encoding.ends.begin(), encoding.ends.end(), at) -
                               encoding.ends.begin());
  };
  size_t token = 0;
  for (const Span& span : written) {
    if (rule == Rule::kGeneration) {
      size_t last = span.end - 1;
      while (last > span.begin && (static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
      const size_t from = holder(span.begin);
      size_t to = holder(last);
      if (to < size && encoding.begins[to] <= last) ++to;
      if (from < to) take(from, to);
      continue;
    }
    while (token < size && encoding.begins[token] < span.begin) ++token;
    const size_t from = token;
    while (token < size && encoding.begins[token] < span.end) ++token;
    take(from, token);
  }
  return labels;
}

}  // namespace twinkle::text
