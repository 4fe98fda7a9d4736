// The tokenizer of a model directory (tokenizer.json and the special tokens of its configuration
// files), by the crate in rust/text. Knows no messages. Immutable after construction: any number of
// threads may use one.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/base/json.h"

struct twinkle_tokenizer;

namespace twinkle::text {

// The bytes that a token's offsets cover: its whole text, or, as `transformers` shows them, without
// the leading blanks of a word where the tokenizer's post-processor says so.
enum class Offsets { kWhole, kTrimmed };

struct Encoding {
  std::vector<int64_t> ids;
  std::vector<uint32_t> begins, ends;  // bytes of the text, [begin, end) per token
};

class Tokenizer {
 public:
  // Reads the files in a model's directory, or next to its one file (.gguf). Error kNotFound: no
  // tokenizer.json there; kInvalid: a broken file, with its name and cause.
  explicit Tokenizer(const std::filesystem::path& model);

  // Token ids of UTF-8 text. `add_special_tokens`: what the post-processor adds (such as BOS).
  // Special tokens written out in the text become their ids. Error kInvalid: no UTF-8.
  std::vector<int64_t> encode(std::string_view text, bool add_special_tokens = false) const;
  Encoding encode_with_offsets(std::string_view text, Offsets offsets) const;
  // One row per text, on all cores. Error: of the lowest failing row, with its index.
  std::vector<std::vector<int64_t>> batch_encode(std::span<const std::string> texts,
                                                 bool add_special_tokens = false) const;

  // Error kInvalid: an id outside [0, 2^32). Ids that no token has are left out.
  std::string decode(std::span<const int64_t> ids, bool skip_special_tokens = false) const;
  std::vector<std::string> batch_decode(std::span<const std::vector<int64_t>> rows,
                                        bool skip_special_tokens = false) const;

  std::optional<int64_t> id(std::string_view token) const;  // none: not in the vocabulary
  std::optional<std::string> token(int64_t id) const;       // as the vocabulary spells it
  int64_t vocab_size() const;                               // tokens, added ones included

  std::optional<int64_t> bos_id() const { return special_id("bos_token"); }
  std::optional<int64_t> eos_id() const { return special_id("eos_token"); }
  std::optional<int64_t> pad_id() const { return special_id("pad_token"); }

  // "bos_token" -> "<|im_start|>" and so on, for those that the directory names; chat templates
  // read them.
  const JsonObject& special_tokens() const { return special_tokens_; }
  const std::filesystem::path& directory() const { return directory_; }

 private:
  struct Close {
    void operator()(twinkle_tokenizer* handle) const;
  };

  std::optional<int64_t> special_id(std::string_view name) const;

  std::filesystem::path directory_;
  JsonObject special_tokens_;
  std::unique_ptr<twinkle_tokenizer, Close> handle_;
};

}  // namespace twinkle::text
