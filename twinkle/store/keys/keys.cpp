#include "twinkle/store/keys/keys.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/base/fields/json_codec.h"
#include "twinkle/base/file.h"
#include "twinkle/io/atomic.h"
#include "twinkle/io/folder/private.h"
#include "twinkle/store/keys/sha256.h"

namespace twinkle::store {

namespace fs = std::filesystem;

namespace {

constexpr size_t kKeyBytes = 32, kIdBytes = 4, kMaxName = 64;

// Held while the file is read and replaced, so that two who change it do not lose a key. The file
// itself is no lock: it is another one after each change.
FileHandle locked(fs::path file) {
  const fs::path lock = file.replace_extension(".lock");
  FileHandle out(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  require(out.get() >= 0 && ::flock(out.get(), LOCK_EX) == 0, Code::kInvalid, "store: cannot lock ",
          lock.string(), ": ", std::strerror(errno));
  return out;
}

// Seconds of computing in a minute: with this a request that took one waits for 17 hours.
constexpr double kLeastSeconds = 0.001;

// As the engine takes it.
void check_weight(double weight) {
  require(weight >= 0.001 && weight <= 1000, Code::kInvalid, "store: the weight is ", weight,
          ", it must be from 0.001 to 1000");
}

Quota change_quota(KeyTable& table, const std::string& tenant, const ChangeQuota& change) {
  const auto found = std::ranges::find(table.tenants, tenant, &Quota::tenant);
  const bool is_new = found == table.tenants.end();
  Quota& quota = is_new ? table.tenants.emplace_back(Quota{.tenant = tenant}) : *found;
  change(quota);
  check(quota);
  return quota;
}

}  // namespace

void check(const Key& key) {
  const std::string& name = key.tenant;
  require(is_plain_name(name, kMaxName), Code::kInvalid, "store: the tenant '", name,
          "' must be 1 to ", kMaxName, " letters, digits, '.', '_' and '-'");
  require(!key.scopes.empty(), Code::kInvalid,
          "store: the key has no scope; give train, sample, metrics or several");
  for (const std::string& scope : key.scopes)
    require(std::ranges::find(kScopes, scope) != kScopes.end(), Code::kInvalid, "store: scope '",
            scope,
            "' is not known, there are train, sample and metrics; give --scope once for each");
  require(key.expires == 0 || key.expires > key.created, Code::kInvalid,
          "store: the key would expire before it is made; choose a later time");
}

void check(const Quota& quota) {
  check_weight(quota.weight);
  const double seconds = quota.compute_seconds_per_minute;
  require(seconds == 0 || (std::isfinite(seconds) && seconds >= kLeastSeconds), Code::kInvalid,
          "store: compute_seconds_per_minute is ", seconds, ", it must be at least ", kLeastSeconds,
          ", or 0, which is without a limit");
  for (const auto& [name, value] :
       {std::pair("tokens_per_minute", quota.tokens_per_minute),
        std::pair("max_runs", quota.max_runs), std::pair("max_adapters", quota.max_adapters),
        std::pair("max_disk", quota.max_disk)})
    require(value >= 0, Code::kInvalid, "store: ", name, " is ", value,
            ", it must be at least 0, which is without a limit");
}

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

KeyTable KeyFile::read_table() const {
  const fs::path whole = fs::absolute(path_);
  require(is_there(whole.parent_path()), Code::kNotFound, "store: the folder ",
          whole.parent_path().string(),
          " does not exist; name the server's with --state, or, of a new one, make it by 'twinkle "
          "keys create'");
  require(is_there(path_), Code::kNotFound, "store: ", whole.string(),
          " does not exist; 'twinkle keys create' makes it");
  KeyTable out;
  JsonFields("store: " + path_.string()).take(read_json(path_), out);
  return out;
}

KeyFile::Created KeyFile::create(Key wanted, const ChangeQuota& change,
                                 const Standing& standing) const {
  check(wanted);
  if (standing.weight) check_weight(*standing.weight);
  std::error_code error;
  make_private_folders(path_.parent_path(), error);
  require(!error, Code::kInvalid, "store: cannot make the folder ", path_.parent_path().string(),
          ": ", error.message());
  const FileHandle lock = locked(path_);
  KeyTable table = is_there(path_) ? read_table() : KeyTable();
  const std::string text = "tml-" + random_hex(kKeyBytes);
  wanted.sha256 = sha256(text);
  do wanted.id = random_hex(kIdBytes);
  while (std::ranges::find(table.keys, wanted.id, &Key::id) != table.keys.end());
  table.keys.push_back(wanted);
  if (standing.weight) table.weights[wanted.id] = *standing.weight;
  if (standing.priority) table.priorities[wanted.id] = *standing.priority;
  if (change) change_quota(table, wanted.tenant, change);
  write(table);
  return {text, std::move(wanted)};
}

std::vector<Key> KeyFile::revoke(const std::function<bool(const Key&)>& which, int64_t now) const {
  read();  // without a file there is no folder to lock in, perhaps
  const FileHandle lock = locked(path_);
  KeyTable table = read_table();
  std::vector<Key> out;
  for (Key& key : table.keys) {
    if (key.revoked != 0 || !which(key)) continue;
    key.revoked = now;
    out.push_back(key);
  }
  if (!out.empty()) write(table);
  return out;
}

Quota KeyFile::limit(const std::string& tenant, const ChangeQuota& change) const {
  read();  // as above
  const FileHandle lock = locked(path_);
  KeyTable table = read_table();
  require(std::ranges::find(table.keys, tenant, &Key::tenant) != table.keys.end(), Code::kNotFound,
          "store: the tenant '", tenant, "' has no key in ", path_.string(),
          "; 'twinkle keys create' makes one");
  Quota out = change_quota(table, tenant, change);
  write(table);
  return out;
}

void KeyFile::write(const KeyTable& table) const {
  write_file_atomically(path_, pretty(JsonOf::of(table)));
  // Hashes of 256 random bits open nothing meanwhile; whose keys they are is nobody else's matter.
  fs::permissions(path_, fs::perms::owner_read | fs::perms::owner_write);
}

}  // namespace twinkle::store
