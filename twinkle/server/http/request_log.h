// The log's line of a request: method, path, status, milliseconds, its id, the response's bytes,
// and who asked for which promise; nothing of keys' texts, bodies and queries.
#pragma once
#include "twinkle/base/log/log.h"
#include "twinkle/server/http/message.h"

namespace twinkle::server {

// 429, 503: kWarning; other 5xx: kError; polls, heartbeats, probes and files of the hub that went
// well, and such files that are not there: kDebug; else kInfo.
void note_request(Log& log, const Head& head, const Told& told);

}  // namespace twinkle::server
