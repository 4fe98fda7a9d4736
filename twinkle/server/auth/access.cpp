#include "twinkle/server/auth/access.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/store/keys/sha256.h"

namespace twinkle::server {
namespace {

constexpr std::chrono::milliseconds kEvery{500};

// 401 ends the SDK's work at once; RFC 9110, 11.6.1, wants the header.
Response unauthorized(const char* reason, const std::string& text) {
  Response out = refusal(401, "server: " + text);
  out.reason = reason;
  out.headers.emplace_back("WWW-Authenticate", "ApiKey");
  return out;
}

// Zeros where there is no such file.
std::array<int64_t, 4> state_of(const std::filesystem::path& file) {
  struct stat s = {};
  if (::stat(file.c_str(), &s) != 0) return {};
  return {static_cast<int64_t>(s.st_ino), s.st_size, s.st_mtim.tv_sec, s.st_mtim.tv_nsec};
}

// The name of the scope that the key lacks, or null.
const char* lacks(const store::Key& key, Scope scope) {
  if (scope == Scope::kPublic || scope == Scope::kAny) return nullptr;
  const auto place = static_cast<size_t>(scope) - static_cast<size_t>(Scope::kTrain);
  const char* const name = store::kScopes[place];
  return std::ranges::find(key.scopes, name) == key.scopes.end() ? name : nullptr;
}

int64_t system_now() {
  const auto time = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(time).count();
}

}  // namespace

Response revoked(const Caller& caller) {
  return unauthorized("revoked",
                      "the key " + caller.key_id + " is revoked; ask the operator for another");
}

Access::Access(store::KeyFile file, AccessOptions options)
    : file_(std::move(file)), options_(std::move(options)) {
  if (!options_.now) options_.now = system_now;
  take(look(*file_, std::nullopt), 0);
}

void Access::watch(Threads threads, std::function<int64_t()> mark) {
  if (!file_) return;
  threads.loop.after(kEvery, [this, threads, mark = std::move(mark)] {
    const auto found = std::make_shared<Look>();
    // What could not be read is read again, though it did not change.
    const auto seen = is_read_ ? std::optional(seen_) : std::nullopt;
    threads.disk.run([found, seen, file = *file_] { *found = look(file, seen); }, threads.loop,
                     [this, threads, mark, found](const std::exception_ptr& error) {
                       if (error)
                         refuse_all(error);
                       else
                         take(*found, mark());
                       watch(threads, mark);
                     });
  });
}

std::variant<Caller, Response> Access::enter(const std::string& key, Scope scope) const {
  if (scope == Scope::kPublic) return Caller{};
  if (!file_) return whose(key);
  require(is_read_, Code::kBusy,
          "server: the keys of this server cannot be read at present; its operator was told");
  if (key.empty())
    return unauthorized(
        "absent",
        "the key is missing; send one of this server, as x-api-key: KEY or Authorization: Bearer "
        "KEY");
  const auto found = known_.find(store::sha256(key));
  if (found == known_.end())
    return unauthorized("unknown", "the key is not known here; ask the operator for one");
  const auto& [k, revoked_at] = found->second;
  Caller caller{.owner = k.tenant, .key_id = k.id, .revoked_at = revoked_at};
  if (k.revoked != 0 && !revoked_at) return revoked(caller);
  if (k.expires != 0 && k.expires <= options_.now())
    return unauthorized("expired",
                        "the key " + k.id + " has expired; ask the operator for another");
  if (const char* const name = lacks(k, scope)) {
    Response out = refusal(403, "server: the key " + k.id + " lacks the scope '" + name +
                                    "'; ask the operator for a key that has it");
    out.reason = "scope";
    return out;
  }
  return caller;
}

bool Access::has_scope(const std::string& key_id, Scope scope) const {
  return !file_ || std::ranges::any_of(known_, [&](const auto& one) {
    const store::Key& key = one.second.key;
    return key.id == key_id && !lacks(key, scope);
  });
}

Caller Access::whose(const std::string& key) const {
  // Not the text itself: it may be another server's key, and owners are written down.
  if (!file_) return {.owner = "open:" + store::sha256(key).substr(0, 32)};
  const auto found = known_.find(store::sha256(key));
  if (found == known_.end()) return {};
  return {.owner = found->second.key.tenant, .key_id = found->second.key.id};
}

store::Quota Access::quota(const std::string& owner, const std::string& key_id) const {
  const auto found = quotas_.find(owner);
  store::Quota out = found == quotas_.end() ? store::Quota{} : found->second;
  if (const auto own = weights_.find(key_id); own != weights_.end()) out.weight = own->second;
  if (const auto own = priorities_.find(key_id); own != priorities_.end())
    out.priority = own->second;
  return out;
}

Access::Look Access::look(const store::KeyFile& file, const std::optional<State>& seen) {
  Look out{.state = state_of(file.path())};
  if (out.state != seen) out.table = file.read_table();
  return out;
}

void Access::take(const Look& look, int64_t mark) {
  if (!std::exchange(is_read_, true) && options_.warn)
    options_.warn("server: " + file_->path().string() + " can be read again: keys are let in");
  seen_ = look.state;
  if (!look.table) return;
  std::map<std::string, Known> known;
  for (const store::Key& key : look.table->keys) {
    Known& now = known[key.sha256] = {key};
    const auto before = known_.find(key.sha256);
    if (key.revoked == 0 || before == known_.end()) continue;
    now.revoked_at = before->second.key.revoked == 0 ? mark : before->second.revoked_at;
  }
  known_ = std::move(known);
  quotas_.clear();
  for (const store::Quota& quota : look.table->tenants) quotas_[quota.tenant] = quota;
  weights_ = look.table->weights;
  priorities_ = look.table->priorities;
}

void Access::refuse_all(const std::exception_ptr& error) {
  if (!std::exchange(is_read_, false) || !options_.warn) return;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    options_.warn(std::string(e.what()) +
                  "; until it is mended nobody comes in: requests are answered 503, polls 429");
  }
}

}  // namespace twinkle::server
