// The byte-level BPE of a GGUF file as the files that tokenizers and transformers read.
#include <array>
#include <string>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/io/gguf/gguf.h"

namespace twinkle {
namespace {

constexpr int64_t kNoText = 3;  // GGUF's type of a token that is not text

// All but the vocabulary. Digits stand alone, which is SmolLM's split.
constexpr std::string_view kBpe = R"({
  "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
  "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
    {"type": "Digits", "individual_digits": true},
    {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}]},
  "post_processor": null,
  "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
              "use_regex": true},
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": false, "vocab": {}, "merges": []}})";

std::string bpe_key(std::string_view name) { return std::string("tokenizer.ggml.").append(name); }

void require_smollm(const Json& metadata, const std::string& file) {
  for (const auto& [name, right] : {std::pair{"model", "gpt2"}, {"pre", "smollm"}}) {
    const std::string found = get_or<std::string>(metadata, bpe_key(name), "");
    require(found == right, Code::kInvalid, "io: ", file, ": ", bpe_key(name), " is '", found,
            "', it must be '", right, "'");
  }
  for (const char* name : {"add_bos_token", "add_eos_token", "add_space_prefix"})
    require(!get_or(metadata, bpe_key(name), false), Code::kInvalid, "io: ", file, ": ",
            bpe_key(name), " is true, it must be false");
}

// A token that is not text, as tokenizer.json lists it.
Json added_token(int64_t id, const Json& token) {
  return {{"id", id},        {"content", token},    {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

}  // namespace

JsonObject gguf_bpe(const std::filesystem::path& path) {
  const GgufFile file(path);
  const Json metadata = file.metadata();
  require_smollm(metadata, path.string());
  const JsonArray& tokens = metadata.at(bpe_key("tokens")).as_array();
  const JsonArray& types = metadata.at(bpe_key("token_type")).as_array();
  Json tokenizer = parse_json(kBpe, "tokenizer.json");
  JsonArray& added = tokenizer.at("added_tokens").as_array();
  JsonObject& vocab = tokenizer.at("model").at("vocab").as_object();
  for (int64_t id = 0; id < std::ssize(tokens); ++id) {
    const Json& token = tokens[id];
    vocab[token.as_string()] = id;
    if (types.at(id) == kNoText) added.push_back(added_token(id, token));
  }
  JsonArray& merges = tokenizer.at("model").at("merges").as_array();
  for (const Json& merge : metadata.at(bpe_key("merges")).as_array()) {
    const std::string pair(merge.as_string());
    const size_t blank = pair.find(' ');
    merges.push_back(JsonArray{pair.substr(0, blank), pair.substr(blank + 1)});
  }
  JsonObject config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                    {"clean_up_tokenization_spaces", false},
                    {"add_prefix_space", false},
                    {"model_max_length", get<int64_t>(metadata, "llama.context_length")},
                    {"chat_template", get<std::string>(metadata, "tokenizer.chat_template")}};
  JsonObject ends;
  for (const auto& [ours, theirs] :
       {std::pair{"bos", "bos"}, {"eos", "eos"}, {"pad", "padding"}, {"unk", "unknown"}}) {
    const auto id = get_or<int64_t>(metadata, bpe_key(theirs) + "_token_id", -1);
    if (id < 0) continue;
    config[std::string(ours) + "_token"] = tokens.at(static_cast<size_t>(id));
    if (std::string_view(ours) != "unk") ends[std::string(ours) + "_token_id"] = id;
  }
  return {{"tokenizer.json", std::move(tokenizer)},
          {"tokenizer_config.json", std::move(config)},
          {"generation_config.json", std::move(ends)}};
}

}  // namespace twinkle
