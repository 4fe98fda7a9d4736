// What the log says of a request: method, path, status, milliseconds; nothing of keys, bodies and
// queries.
#pragma once
#include <chrono>

#include "twinkle/base/log/log.h"
#include "twinkle/server/http/message.h"

namespace twinkle::server {

// 429, 503: kWarning; other 5xx: kError; polls, heartbeats and the like that went well: kDebug;
// else kInfo.
void note_request(Log& log, const Head& head, int status, std::chrono::microseconds time);

}  // namespace twinkle::server
