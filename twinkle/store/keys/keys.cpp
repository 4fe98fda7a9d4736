#include "twinkle/store/keys/keys.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/base/fields/json_codec.h"
#include "twinkle/base/file.h"
#include "twinkle/io/atomic.h"
#include "twinkle/store/keys/sha256.h"

namespace twinkle::store {

namespace fs = std::filesystem;

namespace {

constexpr size_t kKeyBytes = 32, kIdBytes = 4, kMaxName = 64;

struct Keys {
  std::vector<Key> keys;
  static constexpr auto fields() { return std::tuple{field(1, "keys", &Keys::keys)}; }
};

// Held while the file is read and replaced, so that two who change it do not lose a key. The file
// itself is no lock: it is another one after each change.
FileHandle locked(fs::path file) {
  const fs::path lock = file.replace_extension(".lock");
  FileHandle out(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  require(out.get() >= 0 && ::flock(out.get(), LOCK_EX) == 0, Code::kInvalid, "store: cannot lock ",
          lock.string(), ": ", std::strerror(errno));
  return out;
}

void check(const Key& key) {
  const std::string& name = key.tenant;
  require(is_plain_name(name, kMaxName), Code::kInvalid, "store: the tenant '", name,
          "' must be 1 to ", kMaxName, " letters, digits, '.', '_' and '-'");
  require(!key.scopes.empty(), Code::kInvalid,
          "store: the key has no scope; give train, sample, metrics or several");
  for (const std::string& scope : key.scopes)
    require(std::ranges::find(kScopes, scope) != kScopes.end(), Code::kInvalid, "store: scope '",
            scope, "' is not known, there are train, sample and metrics");
  require(key.expires == 0 || key.expires > key.created, Code::kInvalid,
          "store: the key would expire before it is made; choose a later time");
}

}  // namespace

std::string random_hex(size_t num_bytes) {
  std::array<unsigned char, kKeyBytes> bytes;
  require(::getentropy(bytes.data(), num_bytes) == 0, Code::kInternal,
          "store: the system gives no random numbers: ", std::strerror(errno));
  std::string out;
  for (const unsigned char b : std::span(bytes).first(num_bytes)) {
    out += "0123456789abcdef"[b >> 4];
    out += "0123456789abcdef"[b & 15];
  }
  return out;
}

bool is_plain_name(std::string_view text, size_t most) {
  return !text.empty() && text.size() <= most && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

std::vector<Key> KeyFile::read() const {
  require(is_there(path_), Code::kNotFound, "store: ", path_.string(),
          " does not exist; 'twinkle keys create' makes it");
  Keys out;
  JsonFields("store: " + path_.string()).take(read_json(path_), out);
  return std::move(out.keys);
}

KeyFile::Created KeyFile::create(Key wanted) const {
  check(wanted);
  std::error_code error;
  fs::create_directories(path_.parent_path(), error);
  require(!error, Code::kInvalid, "store: cannot make the folder ", path_.parent_path().string(),
          ": ", error.message());
  const FileHandle lock = locked(path_);
  std::vector<Key> keys = is_there(path_) ? read() : std::vector<Key>();
  const std::string text = "tml-" + random_hex(kKeyBytes);
  wanted.sha256 = sha256(text);
  do wanted.id = random_hex(kIdBytes);
  while (std::ranges::find(keys, wanted.id, &Key::id) != keys.end());
  keys.push_back(wanted);
  write(keys);
  return {text, std::move(wanted)};
}

std::vector<Key> KeyFile::revoke(const std::function<bool(const Key&)>& which, int64_t now) const {
  read();  // without a file there is no folder to lock in, perhaps
  const FileHandle lock = locked(path_);
  std::vector<Key> keys = read(), out;
  for (Key& key : keys) {
    if (key.revoked != 0 || !which(key)) continue;
    key.revoked = now;
    out.push_back(key);
  }
  if (!out.empty()) write(keys);
  return out;
}

void KeyFile::write(const std::vector<Key>& keys) const {
  write_file_atomically(path_, pretty(JsonOf::of(Keys{keys})));
}

}  // namespace twinkle::store
