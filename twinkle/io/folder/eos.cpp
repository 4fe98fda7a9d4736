#include "twinkle/io/folder/eos.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <system_error>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"

namespace twinkle {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxTokenizerBytes = int64_t{256} << 20;  // as text::Tokenizer's

// The list `added_tokens` of a tokenizer.json, without the vocabulary, which is large.
Json added_tokens(const fs::path& file) {
  const std::string text = read_file(file, "engine", kMaxTokenizerBytes);
  constexpr std::string_view kName = "\"added_tokens\"";
  size_t at = text.find(kName);
  if (at != text.npos) at = text.find_first_not_of(" \t\r\n:", at + kName.size());
  if (at == text.npos || text[at] != '[') return nullptr;
  boost::json::stream_parser parser;
  boost::system::error_code error;
  parser.write_some(text.data() + at, text.size() - at, error);
  return error || !parser.done() ? Json() : parser.release();
}

// The id of the token that ends a reply in the tokenizer's files; none: they name no such token.
std::optional<int64_t> tokenizers_eos(const fs::path& folder) {
  Json eos;
  for (const char* name : {"special_tokens_map.json", "tokenizer_config.json"}) {
    if (!is_there(folder / name)) continue;
    const Json config = read_json(folder / name);
    const Json* token = find(config, "eos_token");
    if (token && token->is_object()) token = find(*token, "content");
    if (token && token->is_string()) eos = *token;
  }
  if (eos.is_null() || !is_there(folder / "tokenizer.json")) return std::nullopt;
  const Json tokens = added_tokens(folder / "tokenizer.json");
  if (!tokens.is_array()) return std::nullopt;
  for (const Json& token : tokens.get_array()) {
    const Json *text = find(token, "content"), *id = find(token, "id");
    if (text && *text == eos && id && id->is_int64()) return id->get_int64();
  }
  return std::nullopt;
}

}  // namespace

std::vector<int32_t> read_eos(const fs::path& path, const Json& config, int64_t vocab_size) {
  std::vector<int32_t> out;
  const auto add_id = [&](int64_t id) {
    if (id < vocab_size) out.push_back(static_cast<int32_t>(id));
  };
  const auto add = [&](const Json& from, const std::string& where) {
    const Json* eos = find(from, "eos_token_id");
    if (!eos) return;
    const JsonArray ids = eos->is_array() ? eos->get_array() : JsonArray{*eos};
    for (const Json& id : ids) {
      constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max();
      require(id.is_int64() && id.get_int64() >= 0 && id.get_int64() <= kMaxId, Code::kInvalid,
              "io: ", where, ": eos_token_id is ", boost::json::serialize(*eos),
              ", expected an integer from 0 to ", kMaxId,
              ", or a list of them; fetch it again, or take the field out");
      add_id(id.get_int64());
    }
  };
  std::error_code ignored;
  const fs::path folder = fs::is_regular_file(path, ignored) ? path.parent_path() : path;
  add(config, "the config of " + path.string());
  const auto generation = folder / "generation_config.json";
  if (is_there(generation)) add(read_json(generation), generation.string());
  if (const auto id = tokenizers_eos(folder); id && *id >= 0) add_id(*id);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::string with_eos(const std::string& text, const std::vector<int32_t>& eos_ids) {
  std::optional<Json> config = json_in(text);
  if (!config || !config->is_object() || eos_ids.empty()) return text;
  Json& ids = config->get_object()["eos_token_id"];
  const Json all =
      eos_ids.size() == 1 ? Json(eos_ids[0]) : Json(JsonArray(eos_ids.begin(), eos_ids.end()));
  if (ids == all) return text;
  ids = all;
  return pretty(*config);
}

std::string generation_config(const Json& config, const std::vector<int32_t>& eos_ids) {
  JsonObject out;
  for (const char* name : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (const Json* id = find(config, name)) out[name] = *id;
  const std::string given = pretty(out), all = with_eos(given, eos_ids);
  return all == given ? "" : all;
}

}  // namespace twinkle
