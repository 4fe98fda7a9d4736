// Who may come in: everybody, whose text of x-api-key then tells owners apart, or the holders of
// keys, each for its tenant. Knows no route. Used by the service's thread alone.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>

#include "twinkle/server/http/message.h"
#include "twinkle/store/keys/keys.h"

namespace twinkle::server {

// What a route asks of a key; of kPublic nothing, not even that there is one.
enum class Scope { kPublic, kAny, kTrain, kSample, kMetrics };

struct Caller {
  std::string owner;   // of what it sees and makes
  std::string key_id;  // for logs; empty where keys are not asked for
  // Of a key that was revoked while the server ran: the `mark` of Access::enter at that time. What
  // began before it may be asked for, nothing else.
  std::optional<int64_t> revoked_at = {};
};

// The answer to a key that is revoked: 401.
Response revoked(const Caller& caller);

struct AccessOptions {
  std::function<int64_t()> now;                  // seconds since 1970; none: the system's clock
  std::function<void(const std::string&)> warn;  // told once when the file can't be read any more
};

class Access {
 public:
  Access() = default;  // everybody
  // Those with a key of this file, which is read again after a change, seen within a second. Errors
  // as of KeyFile::read.
  explicit Access(store::KeyFile file, AccessOptions options = {});

  // The caller, or its refusal: 401 for a key that is absent, unknown, expired, or was revoked
  // before the server began; 403 for one without the scope. `mark` counts what was begun. Error
  // kBusy: the file cannot be read, and until it can nobody comes in.
  std::variant<Caller, Response> enter(const std::string& key, Scope scope, int64_t mark);

  // What this owner may use, as the file says now, with the weight and priority of its key where
  // that has its own; without keys: Quota's defaults.
  store::Quota quota(const std::string& owner, int64_t mark, const std::string& key_id = {});

  // False from a look at the file that failed to one that does not.
  bool is_read() const { return is_read_; }

 private:
  struct Known {
    store::Key key;
    std::optional<int64_t> revoked_at = {};
  };

  void look(int64_t now, int64_t mark);
  void read(int64_t mark);

  std::optional<store::KeyFile> file_;  // none: everybody
  AccessOptions options_;
  int64_t looked_ = 0;                // when the file was looked at, in seconds
  std::array<int64_t, 4> seen_ = {};  // its inode, size and time when it was read
  bool is_read_ = true;
  std::map<std::string, Known> known_;          // by the SHA-256 of the key's text
  std::map<std::string, store::Quota> quotas_;  // by tenant
  std::map<std::string, double> weights_;       // by id: of keys that have their own
  std::map<std::string, int32_t> priorities_;   // likewise
};

}  // namespace twinkle::server
