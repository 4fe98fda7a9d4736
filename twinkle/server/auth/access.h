// Who may come in: everybody, whose text of x-api-key then tells owners apart, or the holders of
// keys, each for its tenant. Knows no route. Used by the service's thread alone.
#pragma once
#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>

#include "twinkle/server/http/message.h"
#include "twinkle/server/worker.h"
#include "twinkle/store/keys/keys.h"

namespace twinkle::server {

// What a route asks of a key; of kPublic nothing, not even that there is one.
enum class Scope { kPublic, kAny, kTrain, kSample, kMetrics };

struct Caller {
  std::string owner;   // of what it sees and makes
  std::string key_id;  // for logs; empty where keys are not asked for
  // Of a key that was revoked while the server ran: the `mark` of Access::watch at that time. What
  // began before it may be asked for, nothing else.
  std::optional<int64_t> revoked_at = {};
};

// The answer to a key that is revoked: 401.
Response revoked(const Caller& caller);

struct AccessOptions {
  std::function<int64_t()> now;  // seconds since 1970, for expiry; none: the system's clock
  std::function<void(const std::string&)> warn =
      {};  // once when the file can't be read, and when it can
};

class Access {
 public:
  Access() = default;  // everybody
  // Those with a key of this file. Errors as of KeyFile::read.
  explicit Access(store::KeyFile file, AccessOptions options = {});

  // From here on the file is looked at every half second, and read after a change, by a thread that
  // waits for the disk; a change so counts within a second. `mark` counts what was begun. This
  // outlives both threads' work.
  void watch(Threads threads, std::function<int64_t()> mark);

  // The caller, or its refusal: 401 for a key that is absent, unknown, expired, or was revoked
  // before the server began; 403 for one without the scope. Error kBusy: the file cannot be read,
  // and until it can nobody comes in.
  std::variant<Caller, Response> enter(const std::string& key, Scope scope) const;

  // True if the key of this id has the scope, or nobody is asked for a key.
  bool has_scope(const std::string& key_id, Scope scope) const;

  // Whose key it is, let in or not, for logs; of an unknown one nobody's.
  Caller whose(const std::string& key) const;

  // What this owner may use, as the file says now, with the weight and priority of its key where
  // that has its own; without keys: Quota's defaults.
  store::Quota quota(const std::string& owner, const std::string& key_id = {}) const;

  // Nobody is asked for a key.
  bool is_open() const { return !file_; }

  // False from a look at the file that failed to one that does not.
  bool is_read() const { return is_read_; }

 private:
  struct Known {
    store::Key key;
    std::optional<int64_t> revoked_at = {};
  };

  using State = std::array<int64_t, 4>;  // of the file: its inode, size and time
  struct Look {
    State state = {};  // before it was read: a change during the reading is seen the next time
    std::optional<store::KeyTable> table = {};  // nothing: as it was
  };

  static Look look(const store::KeyFile& file, const std::optional<State>& seen);
  void take(const Look& look, int64_t mark);
  void refuse_all(const std::exception_ptr& error);

  std::optional<store::KeyFile> file_;  // none: everybody
  AccessOptions options_;
  State seen_ = {};  // when it was read
  bool is_read_ = true;
  std::map<std::string, Known> known_;          // by the SHA-256 of the key's text
  std::map<std::string, store::Quota> quotas_;  // by tenant
  std::map<std::string, double> weights_;       // by id: of keys that have their own
  std::map<std::string, int32_t> priorities_;   // likewise
};

}  // namespace twinkle::server
