// Tinker's HTTP protocol on the core: each route turns a request into commands and what they gave
// into an answer. docs/tinker.md has the protocol.
#pragma once
#include <span>
#include <string>

#include "twinkle/serving/api/call.h"
#include "twinkle/serving/api/router.h"

namespace twinkle::server::tinker {

inline constexpr const char* kScheme = "tinker://";

std::span<const api::Route> routes();

// The answer to a request that was accepted: its future, and its run.
Response ack(const std::string& request_id);
inline Response ack(const std::string& run, int64_t seq_id) {
  return ack(core::request_id(run, seq_id));
}

// A run that the session's client numbers so.
core::Run new_run(const api::Call& call, const core::Session& session, int64_t seq);
// The run and number of a JSON request, whose key is the caller's. `note`: answers.h.
core::Numbered numbered_of(const api::Call& call, std::string note);
// The checkpoint that the request names there. Errors as of Call::checkpoint.
const core::Checkpoint& checkpoint_of(const api::Call& call, const char* field, bool own = false);

// When a checkpoint expires by the request's ttl_seconds, in ms since 1970; 0: never. Error
// kInvalid: it is no number of seconds.
int64_t expires_of(const Json& body, int64_t now_ms);

// Error kInvalid: it is below 0; no model of this name is served, with those that are; another
// optimizer than adamw is asked for.
void require_number(const char* field, int64_t number);
void require_model(const api::Call& call, const std::string& name);
void require_adamw(const Json& body);

}  // namespace twinkle::server::tinker
