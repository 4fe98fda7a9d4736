#include "twinkle/text/rust/chat_template.h"

#include <algorithm>

#include "twinkle/base/file.h"
#include "twinkle/base/parallel.h"
#include "twinkle/text/rust/foreign.h"

namespace twinkle::text {
namespace {

using Named = std::vector<std::pair<std::string, std::string>>;
constexpr const char* kDefault = "default";
constexpr const char* kToolUse = "tool_use";

constexpr int64_t kMaxTemplateBytes = int64_t{16} << 20;

std::string read_template(const std::filesystem::path& file) {
  require(is_there(file), Code::kNotFound, "text: cannot open ", file.string());
  return read_file(file, "text", kMaxTemplateBytes);
}

// "chat_template" of a JSON file: text, or a list of {name, template}.
void add_from_json(const std::filesystem::path& file, Named& out) {
  if (!is_there(file)) return;
  const Json config = read_json(file);
  const Json* field = find(config, "chat_template");
  if (!field) return;
  if (field->is_string()) {
    out.emplace_back(kDefault, field->get_string());
    return;
  }
  require(field->is_array(), Code::kInvalid, "text: field 'chat_template' of ", file.string(),
          " is neither a string nor a list of {name, template}");
  for (const Json& item : field->get_array())
    out.emplace_back(get<std::string>(item, "name"), get<std::string>(item, "template"));
}

bool holds(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// The error's text for a conversation that a template failed on.
std::string failed(const Json& messages) {
  const JsonArray& list = messages.get_array();
  const auto at = std::find_if(list.begin(), list.end(),
                               [](const Json& message) { return !find(message, "content"); });
  if (at == list.end()) return "the chat template failed";
  return "the chat template failed (a message of role " + get_or<std::string>(*at, "role", "none") +
         " has no content)";
}

// Messages that end with a tool call whose arguments are the text {"probe":1}.
JsonArray call_with(const JsonObject& content) {
  const JsonObject function{{"name", "f"}, {"arguments", R"({"probe":1})"}};
  const JsonObject call{{"type", "function"}, {"id", "123456789"}, {"function", function}};
  const JsonObject question{{"role", "user"}, {"content", "?"}};
  JsonObject reply{{"role", "assistant"}, {"tool_calls", JsonArray{call}}};
  reply.insert(content.begin(), content.end());
  return {question, reply};
}

// Asks the interrupt of the thread that renders.
twinkle_stop stop() {
  return {[](void*) { return Interrupt::asked(); }, nullptr};
}

bool is_given(const Json& tools) { return tools.is_array() && !tools.get_array().empty(); }

}  // namespace

void ChatTemplate::Close::operator()(twinkle_chat* handle) const { twinkle_chat_close(handle); }

ChatTemplate ChatTemplate::of_directory(const std::filesystem::path& directory) {
  Named found;
  if (const auto file = directory / "chat_template.jinja"; is_there(file))
    found.emplace_back(kDefault, read_template(file));
  std::error_code error;
  if (const auto folder = directory / "additional_chat_templates";
      is_there(folder) && !std::filesystem::is_regular_file(folder, error)) {
    for (const std::string& name : names_in(folder, error)) {
      const std::filesystem::path file = folder / name;
      if (file.extension() == ".jinja")
        found.emplace_back(file.stem().string(), read_template(file));
    }
    require(!error, Code::kInvalid, "text: cannot read the folder ", folder.string(), ": ",
            error.message(), "; mend or remove it");
  }
  if (found.empty()) add_from_json(directory / "chat_template.json", found);
  if (found.empty()) add_from_json(directory / "tokenizer_config.json", found);
  require(!found.empty(), Code::kNotFound, "text: ", directory.string(),
          " has no chat template (chat_template.jinja, or 'chat_template' in "
          "tokenizer_config.json); add one, or take texts as they are: 'twinkle sample' with "
          "--plain, use_chat_template=False in Python");
  return ChatTemplate(std::move(found));
}

ChatTemplate::ChatTemplate(std::string source) : ChatTemplate(Named{{kDefault, source}}) {}

ChatTemplate::ChatTemplate(Named sources) {
  for (auto& [name, text] : sources) {
    twinkle_chat* handle = nullptr;
    check(twinkle_chat_open(view(text), &handle), "chat template '" + name + "'");
    sources_.push_back({name, std::move(text), std::unique_ptr<twinkle_chat, Close>(handle)});
  }
  pick(false);
  // A template that does not know parts fails on a list, or prints it as a list.
  const JsonObject part{{"type", "text"}, {"text", "probe"}};
  const std::string parts =
      probe(false, {JsonObject{{"role", "user"}, {"content", JsonArray{part}}}});
  takes_parts_ = holds(parts, "probe") && !holds(parts, "'type'") && !holds(parts, "\"type\"");
  JsonObject reply{{"role", "assistant"}, {"content", "!"}};
  for (const char* name : {"thinking", "reasoning_content", "reasoning"}) reply[name] = "probe";
  reads_reasoning_ =
      std::any_of(sources_.begin(), sources_.end(),
                  [](const Source& s) { return holds(s.text, "reasoning_content"); }) ||
      holds(probe(false, {JsonObject{{"role", "user"}, {"content", "?"}}, reply}), "probe");
  const std::string with_nothing = probe(true, call_with({})),
                    with_null = probe(true, call_with({{"content", nullptr}})),
                    with_text = probe(true, call_with({{"content", ""}}));
  if (with_nothing.empty() && holds(with_null, "probe"))
    absent_content_ = nullptr;
  else if (with_nothing.empty() && holds(with_text, "probe"))
    absent_content_ = "";
  for (const std::string& text : {with_nothing, with_null, with_text}) {
    takes_argument_text_ |= holds(text, R"({"probe":1})");
    writes_calls_ |= holds(text, "probe");
  }
  for (const Source& source : sources_) writes_calls_ |= holds(source.text, "tool_calls");
}

// As in transformers: "tool_use" when there are tools and such a template, else "default".
const ChatTemplate::Source& ChatTemplate::pick(bool with_tools) const {
  const auto named = [&](std::string_view name) {
    return std::find_if(sources_.begin(), sources_.end(),
                        [&](const Source& s) { return s.name == name; });
  };
  auto it = with_tools ? named(kToolUse) : sources_.end();
  if (it == sources_.end()) it = named(kDefault);
  require(it != sources_.end(), Code::kInvalid,
          "text: none of the chat templates is named 'default'");
  return *it;
}

std::vector<Rendering> ChatTemplate::render(const Conversation& conversation,
                                            std::span<const RenderRequest> requests) const {
  const bool with_tools = is_given(conversation.tools);
  JsonObject context = conversation.variables;
  context["messages"] = conversation.messages;
  context["tools"] = with_tools ? conversation.tools : Json();
  context.emplace("documents", nullptr);
  if (conversation.now) context["__twinkle_now"] = *conversation.now;
  std::vector<twinkle_request> raw;
  for (const RenderRequest& r : requests)
    raw.push_back({r.num_messages, r.add_generation_prompt, r.blocks, r.turns});
  std::vector<Owned<twinkle_rendering, twinkle_rendering_free>> owned(requests.size());
  std::vector<twinkle_rendering> out(requests.size());
  char* error =
      twinkle_chat_render(pick(with_tools).handle.get(), view(boost::json::serialize(context)),
                          raw.data(), raw.size(), stop(), out.data());
  if (error) {
    const OwnedText owned(error);
    Interrupt::check();
    fail(Code::kInvalid, "text: ", failed(conversation.messages), ": ", owned.get());
  }
  std::vector<Rendering> renderings(out.size());
  for (size_t i = 0; i < out.size(); ++i) {
    owned[i].value = out[i];
    renderings[i].text.assign(out[i].text, out[i].size);
    for (size_t j = 0; j < out[i].num_generated; ++j)
      renderings[i].generated.push_back({out[i].generated[2 * j], out[i].generated[2 * j + 1]});
    renderings[i].tools.assign(out[i].tools, out[i].tools + out[i].num_tools);
    for (size_t j = 0; j < out[i].num_turns; ++j) {
      const Span turn{out[i].turns[2 * j], out[i].turns[2 * j + 1]};
      renderings[i].turns.push_back(turn.begin == SIZE_MAX ? std::nullopt : std::optional(turn));
    }
  }
  return renderings;
}

std::string ChatTemplate::render(const Conversation& conversation,
                                 bool add_generation_prompt) const {
  const RenderRequest request{.add_generation_prompt = add_generation_prompt};
  return std::move(render(conversation, {&request, 1}).front().text);
}

bool ChatTemplate::has_generation(bool with_tools) const {
  return twinkle_chat_has_generation(pick(with_tools).handle.get());
}

std::string ChatTemplate::probe(bool with_tools, const JsonArray& messages) const {
  const JsonObject schema{{"type", "object"}, {"properties", JsonObject()}};
  const JsonObject function{{"name", "f"}, {"description", "f"}, {"parameters", schema}};
  const JsonArray tools{JsonObject{{"type", "function"}, {"function", function}}};
  JsonObject context{
      {"messages", messages}, {"tools", with_tools ? Json(tools) : Json()}, {"documents", nullptr}};
  for (const char* token : {"bos_token", "eos_token", "pad_token", "unk_token"})
    context[token] = "<s>";
  const twinkle_request request{SIZE_MAX, false, false, false};
  Owned<twinkle_rendering, twinkle_rendering_free> out;
  const OwnedText error(twinkle_chat_render(pick(with_tools).handle.get(),
                                            view(boost::json::serialize(context)), &request, 1,
                                            stop(), &out.value));
  Interrupt::check();
  return error ? std::string() : std::string(out.value.text, out.value.size);
}

}  // namespace twinkle::text
