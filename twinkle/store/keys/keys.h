// The keys of a server's tenants, in STATE/keys.json: `twinkle keys` changes the file, a running
// server reads it. A key's text is in no file, only its SHA-256: 256 random bits need no slower
// hash. A revoked key stays, so that logs which name it can be read. Any thread and any process.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "twinkle/base/fields.h"
#include "twinkle/store/keys/quota.h"

namespace twinkle::store {

// So many random bytes of the system, at most 32, as hexadecimal digits.
std::string random_hex(size_t num_bytes);
// 1 to `most` letters, digits, '.', '_' and '-'.
bool is_plain_name(std::string_view text, size_t most);

// The purposes of a key: training runs and their checkpoints; samplers; what the operator measures.
inline constexpr std::array<const char*, 3> kScopes = {"train", "sample", "metrics"};

// Times are seconds since 1970.
struct Key {
  std::string id;      // by which logs and `twinkle keys revoke` name it: 8 hexadecimal digits
  std::string tenant;  // who owns what is made with it
  std::string sha256;  // SHA-256 of the key's text
  std::vector<std::string> scopes;
  int64_t created = 0;
  int64_t expires = 0;  // 0: never
  int64_t revoked = 0;  // 0: not

  static constexpr auto fields() {
    return std::tuple{
        field(1, "id", &Key::id),           field(2, "tenant", &Key::tenant),
        field(3, "sha256", &Key::sha256),   field(4, "scopes", &Key::scopes),
        field(5, "created", &Key::created), field(6, "expires", &Key::expires),
        field(7, "revoked", &Key::revoked),
    };
  }
};

struct KeyTable {
  std::vector<Key> keys;       // in the order of their creation
  std::vector<Quota> tenants;  // that have one; others have Quota's defaults
  // Weights of keys that have their own, by id; others have their tenant's.
  std::map<std::string, double> weights;
  std::map<std::string, int32_t> priorities;

  static constexpr auto fields() {
    return std::tuple{field(1, "keys", &KeyTable::keys), field(2, "tenants", &KeyTable::tenants),
                      field(3, "weights", &KeyTable::weights),
                      field(4, "priorities", &KeyTable::priorities)};
  }
};

// engine::Create's, of the runs that a key makes; none: its tenant's.
struct Standing {
  std::optional<double> weight = {};
  std::optional<int32_t> priority = {};
};

// Error kInvalid: a tenant's name that is none, no scope or an unknown one, an end that is not
// after the beginning; a weight or another value out of its range.
void check(const Key& wanted);
void check(const Quota& quota);

class KeyFile {
 public:
  struct Created {
    std::string text;  // "tml-" and 64 hexadecimal digits; told once
    Key key;
  };

  explicit KeyFile(const std::filesystem::path& state) : path_(state / "keys.json") {}
  const std::filesystem::path& path() const { return path_; }

  // Error kNotFound: no such file; kInvalid: it is broken.
  KeyTable read_table() const;
  std::vector<Key> read() const { return read_table().keys; }
  // Adds a key of this tenant, scopes, created and expires, and changes the tenant's quota if that
  // is asked for; makes file and folder if there are none. Errors as of check(), before anything
  // is made.
  Created create(Key wanted, const ChangeQuota& change = {}, const Standing& standing = {}) const;
  // Changes the quota of a tenant, and returns it. Errors as of read() and create(); kNotFound: the
  // tenant has no key.
  Quota limit(const std::string& tenant, const ChangeQuota& change) const;
  // Revokes those of `which` that are not revoked, and returns them. Errors as of read().
  std::vector<Key> revoke(const std::function<bool(const Key&)>& which, int64_t now) const;

 private:
  void write(const KeyTable& table) const;

  std::filesystem::path path_;
};

}  // namespace twinkle::store
