// A tokenizer's metadata, from tokenizer.json and tokenizer_config.json as transformers writes
// them. The names of splits are those of llama.cpp's convert_hf_to_gguf.py.
#include <algorithm>
#include <map>
#include <optional>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"
#include "twinkle/io/gguf/gguf_writer.h"

namespace twinkle {
namespace {

namespace fs = std::filesystem;

enum TokenType : int32_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };

constexpr std::string_view kWords = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|";
constexpr std::string_view kRest = "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

std::string expression(std::string_view numbers) {
  return std::string(kWords).append(numbers).append(kRest);
}

// One word for each step of the pre-tokenizer, in order.
std::string split_of(const Json& step) {
  if (step.is_null()) return "";
  const auto type = get<std::string>(step, "type");
  if (type == "Sequence") {
    std::string out;
    for (const Json& one : step.at("pretokenizers").as_array())
      out += (out.empty() ? "" : ", ") + split_of(one);
    return out;
  }
  if (type == "ByteLevel")
    return get_or(step, "add_prefix_space", false) ? "ByteLevel with a prefix"
           : get_or(step, "use_regex", true)       ? "ByteLevel of words"
                                                   : "ByteLevel";
  if (type == "Digits" && get_or(step, "individual_digits", false)) return "digits";
  const Json* pattern = find(step, "pattern");
  const Json* regex = pattern ? find(*pattern, "Regex") : nullptr;
  return type == "Split" && regex ? "split by " + std::string(regex->as_string()) : type;
}

std::string name_of_split(const Json& tokenizer, const std::string& file) {
  const Json* step = find(tokenizer, "pre_tokenizer");
  const std::string split = step ? split_of(*step) : "";
  for (const auto& [known, name] :
       {std::pair<std::string, const char*>{"ByteLevel of words", "gpt-2"},
        {"digits, ByteLevel of words", "smollm"},
        {"split by " + expression("\\p{N}") + ", ByteLevel", "qwen2"},
        {"split by " + expression("\\p{N}{1,3}") + ", ByteLevel", "llama-bpe"}})
    if (split == known) return name;
  fail(Code::kInvalid, "io: ", file, ": pre_tokenizer is '", split,
       "'; known are those of GPT-2, SmolLM, Llama 3 and Qwen2: convert the model with llama.cpp's "
       "convert_hf_to_gguf.py");
}

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  std::map<std::string, int64_t, std::less<>> ids;

  void put(const std::string& token, int64_t id, TokenType type, const std::string& file) {
    require(id >= 0 && id < std::ssize(tokens), Code::kInvalid, "io: ", file, ": token '", token,
            "' has id ", id, ", the model's embedding has ", tokens.size(), " rows");
    tokens[static_cast<size_t>(id)] = token;
    types[static_cast<size_t>(id)] = type;
    ids.insert_or_assign(token, id);
  }

  void put_added(const Json& token, int64_t id, const std::string& file) {
    put(get<std::string>(token, "content"), id,
        get_or(token, "special", false) ? kControl : kUserDefined, file);
  }
};

Vocabulary vocabulary_of(const Json& tokenizer, const Json& config, int64_t vocab_size,
                         const std::string& file) {
  Vocabulary out;
  for (int64_t id = 0; id < vocab_size; ++id)
    out.tokens.push_back("[PAD" + std::to_string(id) + "]");
  out.types.assign(out.tokens.size(), kUnused);
  for (const auto& [token, id] : tokenizer.at("model").at("vocab").as_object())
    out.put(std::string(token), id.to_number<int64_t>(), kNormal, file);
  if (const Json* added = find(config, "added_tokens_decoder"))
    for (const auto& [id, token] : added->as_object())
      out.put_added(token, std::stoll(std::string(id)), file);
  if (const Json* added = find(tokenizer, "added_tokens"))
    for (const Json& token : added->as_array())
      out.put_added(token, get<int64_t>(token, "id"), file);
  return out;
}

// "a b", as tokenizer.json had them before it had pairs.
std::vector<std::string> merges_of(const Json& model) {
  std::vector<std::string> out;
  for (const Json& merge : model.at("merges").as_array()) {
    if (merge.is_string()) {
      out.emplace_back(merge.get_string());
      continue;
    }
    const JsonArray& pair = merge.as_array();
    out.push_back(std::string(pair.at(0).as_string()) + " " + std::string(pair.at(1).as_string()));
  }
  return out;
}

// The text of a special token in tokenizer_config.json, which has it plain or as an object.
std::string special(const Json& config, const std::string& name) {
  const Json* value = find(config, name);
  if (value && value->is_object()) value = find(*value, "content");
  return value && value->is_string() ? std::string(value->get_string()) : "";
}

// True if what the tokenizer adds around a text begins, or ends, with this token.
bool adds(const Json* processor, const std::string& token, bool at_end) {
  if (!processor || processor->is_null() || token.empty()) return false;
  const auto type = get_or<std::string>(*processor, "type", "");
  if (type == "Sequence") {
    const JsonArray& all = processor->at("processors").as_array();
    return std::ranges::any_of(all, [&](const Json& one) { return adds(&one, token, at_end); });
  }
  if (type != "TemplateProcessing") return false;
  const JsonArray& single = processor->at("single").as_array();
  if (single.empty()) return false;
  const Json* piece = find(at_end ? single.back() : single.front(), "SpecialToken");
  return piece && get_or<std::string>(*piece, "id", "") == token;
}

std::string chat_template_of(const fs::path& folder, const Json& config) {
  if (is_there(folder / "chat_template.jinja")) return read_file(folder / "chat_template.jinja");
  const Json* value = find(config, "chat_template");
  if (!value) return "";
  if (value->is_string()) return std::string(value->get_string());
  if (!value->is_array()) return "";
  for (const Json& one : value->get_array())
    if (get_or<std::string>(one, "name", "") == "default") return get<std::string>(one, "template");
  return "";
}

}  // namespace

GgufMetadata gguf_tokenizer(const fs::path& folder, int64_t vocab_size) {
  const std::string file = (folder / "tokenizer.json").string();
  const Json tokenizer = read_json(file);
  const Json config = is_there(folder / "tokenizer_config.json")
                          ? read_json(folder / "tokenizer_config.json")
                          : Json(JsonObject());
  const Json& model = tokenizer.at("model");
  const std::string type = get_or<std::string>(model, "type", "BPE");
  const bool of_bytes = !get_or(model, "byte_fallback", false);
  require(type == "BPE" && of_bytes, Code::kInvalid, "io: ", file, ": the tokenizer is ", type,
          of_bytes ? "" : " with byte_fallback",
          ", it must be a byte-level BPE: convert the model with llama.cpp's "
          "convert_hf_to_gguf.py");
  const std::string split = name_of_split(tokenizer, file);
  Vocabulary vocabulary = vocabulary_of(tokenizer, config, vocab_size, file);
  GgufMetadata out{{"tokenizer.ggml.model", std::string("gpt2")}, {"tokenizer.ggml.pre", split}};
  out.emplace_back("tokenizer.ggml.add_space_prefix", false);
  for (const auto& [ours, theirs] :
       {std::pair{"bos", "bos"}, {"eos", "eos"}, {"pad", "padding"}, {"unk", "unknown"}}) {
    const std::string token = special(config, std::string(ours) + "_token");
    const auto found = vocabulary.ids.find(token);
    if (!token.empty() && found != vocabulary.ids.end())
      out.emplace_back("tokenizer.ggml." + std::string(theirs) + "_token_id",
                       static_cast<uint32_t>(found->second));
  }
  const Json* processor = find(tokenizer, "post_processor");
  out.emplace_back("tokenizer.ggml.add_bos_token",
                   adds(processor, special(config, "bos_token"), false));
  out.emplace_back("tokenizer.ggml.add_eos_token",
                   adds(processor, special(config, "eos_token"), true));
  if (std::string text = chat_template_of(folder, config); !text.empty())
    out.emplace_back("tokenizer.chat_template", std::move(text));
  out.emplace_back("tokenizer.ggml.tokens", std::move(vocabulary.tokens));
  out.emplace_back("tokenizer.ggml.token_type", std::move(vocabulary.types));
  out.emplace_back("tokenizer.ggml.merges", merges_of(model));
  return out;
}

}  // namespace twinkle
