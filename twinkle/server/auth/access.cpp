#include "twinkle/server/auth/access.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/store/keys/sha256.h"

namespace twinkle::server {
namespace {

// 401 ends the SDK's work at once; RFC 9110, 11.6.1, wants the header.
Response unauthorized(const std::string& text) {
  Response out = refusal(401, "server: " + text);
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
  return unauthorized("the key " + caller.key_id + " is revoked; ask the operator for another");
}

Access::Access(store::KeyFile file, AccessOptions options)
    : file_(std::move(file)), options_(std::move(options)) {
  if (!options_.now) options_.now = system_now;
  looked_ = options_.now();
  read(0);
}

std::variant<Caller, Response> Access::enter(const std::string& key, Scope scope, int64_t mark) {
  if (scope == Scope::kPublic) return Caller{};
  // Not the text itself: it may be another server's key, and owners are written down.
  if (!file_) return Caller{.owner = "open:" + store::sha256(key).substr(0, 32)};
  const int64_t now = options_.now();
  if (now != looked_) look(now, mark);
  require(is_read_, Code::kBusy,
          "server: the keys of this server cannot be read at present; its operator was told");
  if (key.empty())
    return unauthorized("the header x-api-key is missing; send a key of this server");
  const auto found = known_.find(store::sha256(key));
  if (found == known_.end())
    return unauthorized("the key in x-api-key is not known here; ask the operator for one");
  const auto& [k, revoked_at] = found->second;
  Caller caller{.owner = k.tenant, .key_id = k.id, .revoked_at = revoked_at};
  if (k.revoked != 0 && !revoked_at) return revoked(caller);
  if (k.expires != 0 && k.expires <= now)
    return unauthorized("the key " + k.id + " has expired; ask the operator for another");
  if (const char* const name = lacks(k, scope))
    return refusal(403, "server: the key " + k.id + " lacks the scope '" + name +
                            "'; ask the operator for a key that has it");
  return caller;
}

store::Quota Access::quota(const std::string& owner, int64_t mark, const std::string& key_id) {
  if (!file_) return {};
  if (const int64_t now = options_.now(); now != looked_) look(now, mark);
  const auto found = quotas_.find(owner);
  store::Quota out = found == quotas_.end() ? store::Quota{} : found->second;
  if (const auto own = weights_.find(key_id); own != weights_.end()) out.weight = own->second;
  if (const auto own = priorities_.find(key_id); own != priorities_.end())
    out.priority = own->second;
  return out;
}

void Access::look(int64_t now, int64_t mark) {
  looked_ = now;
  if (is_read_ && state_of(file_->path()) == seen_) return;
  const bool was_read = std::exchange(is_read_, false);
  try {
    read(mark);
    is_read_ = true;
  } catch (const Error& e) {
    if (was_read && options_.warn)
      options_.warn(std::string(e.what()) + "; all requests are answered 503 until it is mended");
  }
}

void Access::read(int64_t mark) {
  seen_ = state_of(file_->path());  // first: a change during the reading is seen the next time
  std::map<std::string, Known> known;
  store::KeyTable table = file_->read_table();
  for (const store::Key& key : table.keys) {
    Known& now = known[key.sha256] = {key};
    const auto before = known_.find(key.sha256);
    if (key.revoked == 0 || before == known_.end()) continue;
    now.revoked_at = before->second.key.revoked == 0 ? mark : before->second.revoked_at;
  }
  known_ = std::move(known);
  quotas_.clear();
  for (const store::Quota& quota : table.tenants) quotas_[quota.tenant] = quota;
  weights_ = std::move(table.weights);
  priorities_ = std::move(table.priorities);
}

}  // namespace twinkle::server
