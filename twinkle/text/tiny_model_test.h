// A model directory that the tests write themselves: a byte-level tokenizer with a handful of
// merges and special tokens, so that ids can be worked out by hand.
#pragma once
#include <filesystem>
#include <fstream>
#include <string>

#include "twinkle/base/json.h"

#include "twinkle/base/error_for_test.h"

namespace twinkle::text {

// GPT-2's printable stand-in for a byte, as UTF-8.
inline std::string byte_letter(int byte) {
  const auto printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

constexpr const char* kTinyChat =
    "{% for message in messages %}"
    "{{ '<s>' + message['role'] + '\\n' + message['content'] + '</s>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<s>assistant\\n' }}{% endif %}";

// Removed with all its files at the end of the test. Ids: byte b is b, "\n\n" 256, " a" 257, <s>
// 258, </s> 259.
class TinyModel {
 public:
  explicit TinyModel(const std::string& chat_template = kTinyChat) {
    std::string pattern = (std::filesystem::temp_directory_path() / "twinkle-text-XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
    write("tokenizer.json", boost::json::serialize(tokenizer()));
    JsonObject config{{"bos_token", "<s>"},
                      {"eos_token", JsonObject{{"content", "</s>"}, {"lstrip", false}}}};
    if (!chat_template.empty()) config["chat_template"] = chat_template;
    write("tokenizer_config.json", boost::json::serialize(config));
  }
  TinyModel(const TinyModel&) = delete;
  TinyModel& operator=(const TinyModel&) = delete;
  ~TinyModel() { std::filesystem::remove_all(directory_); }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(directory_ / name, std::ios::binary) << text;
  }
  void remove(const std::string& name) const { std::filesystem::remove(directory_ / name); }
  const std::filesystem::path& directory() const { return directory_; }

 private:
  static JsonObject tokenizer() {
    JsonObject vocabulary;
    for (int byte = 0; byte < 256; ++byte) vocabulary[byte_letter(byte)] = byte;
    const std::string line = byte_letter('\n'), blank = byte_letter(' ');
    vocabulary[line + line] = 256;
    vocabulary[blank + "a"] = 257;
    const JsonArray merges{Json(line + " " + line), Json(blank + " a")};
    JsonArray added;
    for (const auto& [id, text] : {std::pair{258, "<s>"}, {259, "</s>"}})
      added.push_back(JsonObject{{"id", id},
                                 {"content", text},
                                 {"single_word", false},
                                 {"lstrip", false},
                                 {"rstrip", false},
                                 {"normalized", false},
                                 {"special", true}});
    const JsonObject byte_level{{"type", "ByteLevel"},
                                {"add_prefix_space", false},
                                {"trim_offsets", true},
                                {"use_regex", true}};
    return {{"version", "1.0"},
            {"truncation", JsonObject{{"direction", "Right"},
                                      {"max_length", 4},
                                      {"strategy", "LongestFirst"},
                                      {"stride", 0}}},
            {"padding", nullptr},
            {"added_tokens", added},
            {"normalizer", nullptr},
            {"pre_tokenizer", byte_level},
            {"post_processor", byte_level},
            {"decoder", byte_level},
            {"model", JsonObject{{"type", "BPE"},
                                 {"vocab", vocabulary},
                                 {"merges", merges},
                                 {"dropout", nullptr},
                                 {"unk_token", nullptr},
                                 {"continuing_subword_prefix", nullptr},
                                 {"end_of_word_suffix", nullptr},
                                 {"fuse_unk", false},
                                 {"byte_fallback", false},
                                 {"ignore_merges", false}}}};
  }

  std::filesystem::path directory_;
};

}  // namespace twinkle::text
