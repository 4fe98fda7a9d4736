#include "twinkle/text/rust/tokenizer.h"

#include <limits>
#include <utility>

#include "twinkle/base/encoding/text_fault.h"
#include "twinkle/base/file.h"
#include "twinkle/text/rows.h"
#include "twinkle/text/rust/foreign.h"
#include "twinkle/text/rust/tokenizer_settings.h"

namespace twinkle::text {
namespace {

constexpr int64_t kMaxTokenizerBytes = int64_t{256} << 20;  // the largest in use have 35 MB

std::string read_tokenizer(const std::filesystem::path& file) {
  require(is_there(file), Code::kNotFound, "text: cannot open ", file.string(),
          ", a model directory holds a tokenizer.json");
  std::string text = read_file(file, "text", kMaxTokenizerBytes);
  require(!is_lfs_pointer(text), Code::kInvalid, "text: ", file.string(), " is ", kLfsPointer);
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  return text;
}

std::filesystem::path folder_of(const std::filesystem::path& model) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(model, ignored) ? model.parent_path() : model;
}

}  // namespace

void Tokenizer::Close::operator()(twinkle_tokenizer* handle) const {
  twinkle_tokenizer_close(handle);
}

Tokenizer::Tokenizer(const std::filesystem::path& model) : directory_(folder_of(model)) {
  const auto file = directory_ / "tokenizer.json";
  const std::string text = read_tokenizer(file);
  TokenizerSettings settings = tokenizer_settings(directory_);
  special_tokens_ = std::move(settings.special_tokens);
  twinkle_tokenizer* handle = nullptr;
  const std::string changes = boost::json::serialize(
      JsonObject{{"added", std::move(settings.added)}, {"applied", std::move(settings.applied)}});
  check(twinkle_tokenizer_open(view(text), view(changes), &handle), file.string());
  handle_.reset(handle);
}

std::vector<int64_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  Owned<twinkle_encoding, twinkle_encoding_free> out;
  check(twinkle_tokenizer_encode(handle_.get(), view(text), add_special_tokens, false, &out.value),
        "cannot tokenise");
  return {out.value.ids, out.value.ids + out.value.size};
}

Encoding Tokenizer::encode_with_offsets(std::string_view text, Offsets offsets) const {
  require(text.size() < std::numeric_limits<uint32_t>::max(), Code::kInvalid, "text: a text of ",
          text.size(), " bytes, the limit is 4 GiB");
  Owned<twinkle_encoding, twinkle_encoding_free> out;
  check(twinkle_tokenizer_encode(handle_.get(), view(text), false, offsets == Offsets::kTrimmed,
                                 &out.value),
        "cannot tokenise");
  const auto& v = out.value;
  return {.ids = {v.ids, v.ids + v.size},
          .begins = {v.begins, v.begins + v.size},
          .ends = {v.ends, v.ends + v.size}};
}

std::vector<std::vector<int64_t>> Tokenizer::batch_encode(std::span<const std::string> texts,
                                                          bool add_special_tokens) const {
  std::vector<std::vector<int64_t>> out(texts.size());
  for_each_row(texts.size(), [&](size_t i) { out[i] = encode(texts[i], add_special_tokens); });
  return out;
}

std::string Tokenizer::decode(std::span<const int64_t> ids, bool skip_special_tokens) const {
  std::vector<uint32_t> narrow;
  narrow.reserve(ids.size());
  for (const int64_t id : ids) {
    require(id >= 0 && id <= std::numeric_limits<uint32_t>::max(), Code::kInvalid,
            "text: token id ", id, " is outside [0, 2^32)");
    narrow.push_back(static_cast<uint32_t>(id));
  }
  Owned<twinkle_rendering, twinkle_rendering_free> out;
  check(twinkle_tokenizer_decode(handle_.get(), narrow.data(), narrow.size(), skip_special_tokens,
                                 &out.value),
        "cannot decode");
  return {out.value.text, out.value.size};
}

std::vector<std::string> Tokenizer::batch_decode(std::span<const std::vector<int64_t>> rows,
                                                 bool skip_special_tokens) const {
  std::vector<std::string> out(rows.size());
  for_each_row(rows.size(), [&](size_t i) { out[i] = decode(rows[i], skip_special_tokens); });
  return out;
}

std::optional<int64_t> Tokenizer::id(std::string_view token) const {
  const int64_t id = twinkle_tokenizer_id(handle_.get(), view(token));
  return id < 0 ? std::nullopt : std::optional(id);
}

std::optional<std::string> Tokenizer::token(int64_t id) const {
  if (id < 0 || id > std::numeric_limits<uint32_t>::max()) return std::nullopt;
  const OwnedText text(twinkle_tokenizer_token(handle_.get(), static_cast<uint32_t>(id)));
  return text ? std::optional<std::string>(text.get()) : std::nullopt;
}

int64_t Tokenizer::vocab_size() const {
  return static_cast<int64_t>(twinkle_tokenizer_size(handle_.get()));
}

std::optional<int64_t> Tokenizer::special_id(std::string_view name) const {
  const auto* text = special_tokens_.if_contains(name);
  return text ? id(std::string_view(text->get_string())) : std::nullopt;
}

}  // namespace twinkle::text
