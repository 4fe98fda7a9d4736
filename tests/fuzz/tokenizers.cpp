// tokenizer.json of a model, and texts through it.
#include <unistd.h>

#include <fstream>

#include "tests/fuzz/fuzz.h"
#include "twinkle/base/error.h"
#include "twinkle/text/rust/tokenizer.h"

namespace twinkle::fuzz {
namespace {

// Its directory goes with it.
class Directory {
 public:
  explicit Directory(const std::string& json) {
    std::filesystem::create_directories(path_);
    std::ofstream(path_ / "tokenizer.json", std::ios::binary) << json;
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  ~Directory() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  const std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("twinkle-fuzz-" + std::to_string(::getpid()));
};

void read_tokenizers(const std::string& bytes) {
  const Directory directory(bytes);
  const text::Tokenizer tokenizer(directory.path());
  for (const std::string text :
       {"ab ab", "", "<s>a\n\n\xc3\xa9 \xe2\x96\x81 12", "aaaaaaaaaaaaaa"}) {
    const auto encoding = tokenizer.encode_with_offsets(text, text::Offsets::kTrimmed);
    tokenizer.decode(tokenizer.encode(text, true), true);
    for (const int64_t id : encoding.ids) tokenizer.token(id);
  }
}

std::string of(const std::string& model, const std::string& more) {
  return R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [{"id": 5,
  "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
  "special": true}], "normalizer": null, "pre_tokenizer": {"type": "ByteLevel",
  "add_prefix_space": false, "trim_offsets": true, "use_regex": true}, "post_processor": null,
  "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true}, "model": )" +
         model + more + "}";
}

}  // namespace

Reader tokenizers() {
  const std::string bpe =
      R"({"type": "BPE", "dropout": null, "unk_token": "a", "continuing_subword_prefix": null,
  "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
  "vocab": {"a": 0, "b": 1, "ab": 2, "Ċ": 3, "<0x61>": 4}, "merges": [["a", "b"]]})";
  return {.name = "tokenizers",
          .corpus = {of(bpe, ""),
                     of(R"({"type": "WordLevel", "vocab": {"a": 0, "<unk>": 1}, "unk_token":
  "<unk>"})",
                        ""),
                     of(R"({"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix":
  "##", "max_input_chars_per_word": 9, "vocab": {"a": 0, "##b": 1}})",
                        ""),
                     of(R"({"type": "Unigram", "unk_id": 0, "byte_fallback": false, "vocab":
  [["<unk>", 0.0], ["a", -1.5], ["ab", -2.0]]})",
                        ""),
                     of(bpe, R"(, "normalizer": {"type": "Sequence", "normalizers": [{"type":
  "NFC"}, {"type": "Replace", "pattern": {"Regex": " +"}, "content": "x"}]}, "post_processor":
  {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
  {"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
  "special_tokens": {"<s>": {"id": "<s>", "ids": [5], "tokens": ["<s>"]}}}, "pre_tokenizer":
  {"type": "Split", "pattern": {"Regex": "(a+)+b|\\p{L}+"}, "behavior": "Isolated", "invert":
  false})")},
          .words = {"\"vocab\": {", "\"merges\": [", "\"type\": ", "\"Metaspace\"", "\"Strip\"",
                    "\"start\": 9999999999", "\"Precompiled\"", "\"Digits\"", "\"Fuse\"",
                    "{\"Regex\": \"", "(.*)*", "[^a]{99}{99}", "null", "-1", "4294967295", "[[[["},
          .read = read_tokenizers};
}

}  // namespace twinkle::fuzz
