#include "twinkle/text/turns.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

namespace twinkle::text {
namespace {

size_t common(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                             a.begin());
}

bool is_letter(unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c >= 0x80; }

// How much of the generation prompt the turn's text begins with. A prompt that opens a <think>
// which the turn lacks matches in part: then up to the last blank or tag that both share.
// Nothing where both share a word of what follows, and go on otherwise: the header is another.
std::optional<size_t> prompt_length(std::string_view prompt, std::string_view turn) {
  const size_t same = common(prompt, turn);
  if (same == prompt.size()) return same;
  const size_t cut = prompt.substr(0, same).find_last_of("\n >");
  const size_t length = cut == prompt.npos ? 0 : cut + 1;
  const auto rest = prompt.begin() + static_cast<ptrdiff_t>(length);
  const auto word = std::find_if(rest, prompt.end(), is_letter);
  const auto word_end = std::find_if_not(word, prompt.end(), is_letter);
  if (prompt.begin() + static_cast<ptrdiff_t>(same) >= word_end) return std::nullopt;
  return length;
}

bool is_blank(unsigned char c) { return std::isspace(c) != 0; }

bool overlap(const Span& a, const Span& b) { return a.begin < b.end && b.begin < a.end; }

// Renders one conversation, and finds its replies in the text of the whole.
class Finder {
 public:
  Finder(const ChatTemplate& chat, const Conversation& conversation, const Prepared& prepared,
         const Turns& turns)
      : chat_(chat),
        conversation_(conversation),
        prepared_(prepared),
        text_(turns.text),
        rule_(turns.rule) {}

  // Those whose place the marks show, with the generation prompts that they begin with.
  std::vector<Reply> marked(const Rendering& marks) const {
    std::vector<Reply> out;
    if (marks.text != text_) return out;
    for (const size_t i : prepared_.trained)
      if (marks.turns[i]) out.push_back({i, *marks.turns[i]});
    return out;
  }

  // `replies` behind their prompts; without those whose prompt cannot be determined.
  std::vector<Reply> behind_prompts(const std::vector<Reply>& replies) const {
    // Some templates have no prompt after a tool's result: one for each role before a reply.
    std::map<std::string, std::vector<Reply>> by_role;
    for (const Reply& reply : replies) by_role[role_before(reply.message)].push_back(reply);
    std::map<std::string, std::optional<std::string>> prompts;
    for (const auto& [role, of_role] : by_role) {
      auto& found = prompts[role];
      for (const Reply& reply : {of_role.front(), of_role.back()})
        if (!found && reply.message > 0) found = beyond(reply.message, reply.place.begin);
      if (!found) found = beyond(SIZE_MAX, text_.size());
    }
    // Between the message before and the prompt.
    std::map<std::string, std::optional<std::string>> said;
    std::vector<Reply> out;
    for (Reply reply : replies) {
      const std::string role = role_before(reply.message);
      if (!prompts.at(role)) continue;
      const auto [begin, end] = reply.place;
      std::string_view prompt = *prompts.at(role);
      std::string_view turn = std::string_view(text_).substr(begin, end - begin);
      bool is_certain = turn.starts_with(prompt);
      if (!is_certain && reply.message > 0) {
        if (!said.contains(role)) said[role] = beyond(reply.message, begin, false);
        const std::optional<std::string>& between = said[role];
        is_certain = between && turn.starts_with(*between);
        if (is_certain) {
          prompt.remove_prefix(std::min(between->size(), prompt.size()));
          turn.remove_prefix(between->size());
          reply.place.begin += between->size();
        } else if (between && prompt.starts_with(*between)) {
          continue;  // A footer, which the conversation before has and the whole has elsewhere.
        }
      }
      const std::optional<size_t> length = prompt_length(prompt, turn);
      if (!length) continue;
      is_certain |= *length == prompt.size() || (*length > 0 && !is_letter(prompt[*length]));
      if (!is_certain) continue;
      reply.place.begin += *length;
      out.push_back(reply);
    }
    return out;
  }

  // Cuts off what a template writes only between two messages: a rendering for each pair of roles
  // around a reply. Leaves out replies that end otherwise than the first of their kind.
  void cut_ends(std::vector<Reply>& replies) const {
    std::map<std::pair<std::string, std::string>, std::string> ends;
    std::erase_if(replies, [&](Reply& reply) {
      if (reply.message + 1 == prepared_.messages.get_array().size()) return false;
      const std::pair key(role_before(reply.message), role_before(reply.message + 2));
      if (!ends.contains(key)) ends[key] = end_of_another(reply);
      const std::string& end = ends.at(key);
      const auto [from, to] = reply.place;
      if (!std::string_view(text_).substr(from, to - from).ends_with(end)) return true;
      reply.place.end -= end.size();
      return false;
    });
  }

  // Adds the missing ones by the rule of prefix differences, two renderings each.
  void complete(std::vector<Reply>& replies) const {
    std::vector<Reply> out;
    auto known = replies.begin();
    for (const size_t i : prepared_.trained) {
      const bool is_known = known != replies.end() && known->message == i;
      out.push_back(is_known ? *known++ : Reply{i, by_prefixes(i)});
      if (out.size() > 1 && out.back().place.begin < out[out.size() - 2].place.end) not_found(i);
    }
    replies = std::move(out);
  }

  // Adds the missing ones where a template has as many generation blocks as replies.
  void pair(std::vector<Reply>& replies, const std::vector<Span>& blocks) const {
    std::vector<size_t> written;
    for (size_t i = 0; i < prepared_.messages.get_array().size(); ++i)
      if (role_before(i + 1) == "assistant") written.push_back(i);
    if (blocks.size() != written.size()) return;
    std::vector<Reply> out;
    auto known = replies.begin();
    for (size_t n = 0; n < blocks.size(); ++n) {
      const Reply paired{written[n], blocks[n]};
      const bool is_known = known != replies.end() && known->message == paired.message;
      if (is_known && !overlap(known->place, paired.place)) return;
      if (std::binary_search(prepared_.trained.begin(), prepared_.trained.end(), paired.message))
        out.push_back(is_known ? *known : paired);
      if (is_known) ++known;
    }
    replies = std::move(out);
  }

  // A template that lists the tools within a reply shows no place of what the assistant wrote.
  void refuse_tools(const std::vector<Reply>& replies, const Rendering& marks) const {
    if (marks.text != text_) return;
    for (const auto& [message, place] : replies)
      for (const size_t at : marks.tools)
        if (place.begin <= at && at < place.end)
          not_found(message, "the chat template lists the tools within it");
  }

 private:
  // The role of the message before turn i; empty where it is the first.
  std::string role_before(size_t i) const {
    return i == 0 ? std::string() : get<std::string>(prepared_.messages.at(i - 1), "role");
  }

  std::string render(size_t num_messages, bool add_generation_prompt) const {
    const RenderRequest request{.num_messages = num_messages,
                                .add_generation_prompt = add_generation_prompt};
    return std::move(chat_.render(conversation_, {&request, 1}).front().text);
  }

  // The generation prompt: what the conversation before a turn, rendered with it, has beyond that
  // turn's start. Where that conversation reads otherwise than within the whole: what the whole
  // one has more with it.
  std::optional<std::string> beyond(size_t num_messages, size_t start,
                                    bool add_generation_prompt = true) const {
    const std::string with = render(num_messages, add_generation_prompt);
    if (with.size() < start || with.compare(0, start, text_, 0, start) != 0) return std::nullopt;
    return with.substr(start);
  }

  // The end of the reply's place, which is written because another message follows.
  std::string end_of_another(const Reply& reply) const {
    const std::string with = render(reply.message + 1, false);
    const auto [begin, end] = reply.place;
    const bool ends_within = begin < with.size() && with.size() < end && text_.starts_with(with);
    return ends_within ? text_.substr(with.size(), end - with.size()) : "";
  }

  Span by_prefixes(size_t i) const {
    const std::string with = render(i + 1, false);
    if (!text_.starts_with(with)) not_found(i);
    const auto behind = [&](size_t at, std::string_view prompt) {
      const auto length = prompt_length(prompt, std::string_view(with).substr(at));
      if (!length || (i == 0 && *length == 0 && !prompt.empty())) not_found(i);
      return Span{at + *length, with.size()};
    };
    if (i == 0) {  // The conversation before is empty: a preamble may stand before the prompt.
      const std::string prompt = beyond(SIZE_MAX, text_.size()).value_or("");
      const size_t at = with.find(prompt);
      return behind(at == with.npos ? 0 : at, prompt);
    }
    const std::string before = render(i, true);
    if (with.starts_with(before)) return {before.size(), with.size()};
    // The turn may lack the end of the prompt, and nothing else.
    const std::string said = render(i, false);
    if (!with.starts_with(said) || !before.starts_with(said)) not_found(i);
    return behind(said.size(), std::string_view(before).substr(said.size()));
  }

  [[noreturn]] void not_found(size_t i) const {
    not_found(i,
              "the chat template renders the conversation up to it differently than within the "
              "whole");
  }

  [[noreturn]] void not_found(size_t i, std::string_view cause) const {
    fail(Code::kInvalid, "text: the text that the assistant wrote in messages[",
         i - prepared_.num_added, "] cannot be found: ", cause,
         rule_ == Rule::kPrefix
             ? "; put {% generation %} tags around the assistant's text"
             : "; make it one {% generation %} block for each of the assistant's messages, or "
               "train all of them");
  }

  const ChatTemplate& chat_;
  const Conversation& conversation_;
  const Prepared& prepared_;
  const std::string& text_;
  const Rule rule_;
};

std::vector<Span> generated_spans(const std::vector<Span>& blocks, const Turns& turns,
                                  bool of_replies) {
  std::vector<Span> out;
  for (const Span& block : blocks) {
    const auto overlaps = [&block](const Reply& reply) { return overlap(block, reply.place); };
    if (block.begin < block.end &&
        (!of_replies || std::any_of(turns.replies.begin(), turns.replies.end(), overlaps)))
      out.push_back(block);
  }
  return out;
}

}  // namespace

Turns render_turns(const ChatTemplate& chat, const Conversation& conversation,
                   const Prepared& prepared) {
  const Json& tools = conversation.tools;
  const bool with_tools = tools.is_array() && !tools.get_array().empty();
  const bool has_blocks = chat.has_generation(with_tools);
  std::vector<RenderRequest> requests{{}, {.turns = true}};
  if (has_blocks) requests.push_back({.blocks = true});
  auto renderings = chat.render(conversation, requests);
  Turns out{.text = renderings[0].text};
  if (has_blocks && renderings[2].text == out.text) out.rule = Rule::kGeneration;
  const Finder finder(chat, conversation, prepared, out);
  out.replies = finder.marked(renderings[1]);
  if (out.rule == Rule::kGeneration) {
    std::vector<Span>& blocks = renderings[2].generated;
    std::sort(blocks.begin(), blocks.end(),
              [](const Span& a, const Span& b) { return a.begin < b.begin; });
    if (prepared.is_limited) {
      finder.pair(out.replies, blocks);
      finder.complete(out.replies);
    }
    out.written = generated_spans(blocks, out, prepared.is_limited);
    return out;
  }
  out.replies = finder.behind_prompts(out.replies);
  finder.cut_ends(out.replies);
  finder.complete(out.replies);
  finder.refuse_tools(out.replies, renderings[1]);
  for (const Reply& reply : out.replies) out.written.push_back(reply.place);
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
  // True for " yes" where the prompt ends in a space, but not for blanks alone.
  const auto joins_blanks = [&](size_t at, const Span& span) {
    size_t said = encoding.begins[at];
    while (said < encoding.ends[at] && is_blank(text[said])) ++said;
    return said < encoding.ends[at] && span.begin <= said && said < span.end;
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
    const size_t from = token > 0 && joins_blanks(token - 1, span) ? token - 1 : token;
    while (token < size && encoding.begins[token] < span.end) ++token;
    take(from, token);
  }
  return labels;
}

void require_trained(const Turns& turns, const Prepared& prepared, const Encoding& encoding,
                     const std::vector<int64_t>& labels) {
  const auto is_trained = [](int64_t label) { return label != kIgnored; };
  const auto require_labels = [&](size_t message, const Span& place, ptrdiff_t from, ptrdiff_t to) {
    const bool found =
        from < to && std::any_of(labels.begin() + from, labels.begin() + to, is_trained);
    const char* cause = "the chat template's {% generation %} blocks leave it out";
    if (turns.rule == Rule::kPrefix)
      cause = place.begin == place.end
                  ? "the chat template writes nothing of it after the generation prompt"
                  : "the tokenizer makes one token of it and the end of the generation prompt";
    require(found, Code::kInvalid, "text: messages[", message - prepared.num_added,
            "] has no trained token: ", cause,
            "; give it a content, take it out, or leave it out of user_data.key_rounds");
  };
  const std::vector<uint32_t>&begins = encoding.begins, &ends = encoding.ends;
  for (const auto& [message, place] : turns.replies)
    require_labels(message, place,
                   std::upper_bound(ends.begin(), ends.end(), place.begin) - ends.begin(),
                   std::lower_bound(begins.begin(), begins.end(), place.end) - begins.begin());
  if (!prepared.trained.empty())
    require_labels(prepared.trained.front(), {}, 0, std::ssize(labels));
}

}  // namespace twinkle::text
