#include "twinkle/text/rust/shared_tokenizer.h"

#include <sys/stat.h>
#include <map>
#include <utility>
#include <vector>

#include "twinkle/base/guarded.h"

namespace twinkle::text {
namespace {

// Its path, and what changes with its files.
std::string key_of(const std::filesystem::path& model) {
  std::error_code ignored;
  const auto whole = std::filesystem::absolute(model, ignored);
  const auto folder =
      std::filesystem::is_regular_file(whole, ignored) ? whole.parent_path() : whole;
  std::string out = folder.string();
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                           "added_tokens.json"}) {
    struct stat s = {};
    if (::stat((folder / name).c_str(), &s) != 0) s = {};
    for (const int64_t n : {int64_t(s.st_dev), int64_t(s.st_ino), int64_t(s.st_size),
                            int64_t(s.st_mtim.tv_sec), int64_t(s.st_mtim.tv_nsec)})
      out += '\n' + std::to_string(n);
  }
  return out;
}

struct Opened {
  Mutex mutex;
  std::map<std::string, std::weak_ptr<const Tokenizer>> by_key GUARDED_BY(mutex);
};

Opened& opened() {
  static auto* out = new Opened;  // threads may outlive statics
  return *out;
}

}  // namespace

std::shared_ptr<const Tokenizer> shared_tokenizer(const std::filesystem::path& model) {
  const std::string key = key_of(model);
  Opened& all = opened();
  {
    const Lock lock(all.mutex);
    if (const auto it = all.by_key.find(key); it != all.by_key.end()) {
      if (auto open = it->second.lock()) return open;
    }
  }
  auto out = std::make_shared<const Tokenizer>(model);
  const Lock lock(all.mutex);
  std::erase_if(all.by_key, [](const auto& old) { return old.second.expired(); });
  all.by_key[key] = out;
  return out;
}

std::function<std::string(std::span<const int32_t>)> decoder_of(const std::string& model) {
  return [tokenizer = shared_tokenizer(model)](std::span<const int32_t> ids) {
    return tokenizer->decode(std::vector<int64_t>(ids.begin(), ids.end()));
  };
}

}  // namespace twinkle::text
