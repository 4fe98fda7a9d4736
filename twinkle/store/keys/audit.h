// The audit log: who asked for what lasts, one JSON object a line in STATE/audit.jsonl. Any thread
// and any process; a file that is moved away is begun anew. What a full disk took a part of stays
// as it is, and the next line begins behind it.
#pragma once
#include <filesystem>

#include "twinkle/base/json.h"

namespace twinkle::store {

// Adds the line, with "time" (UTC) before what it says. Error kBusy: the system refuses.
void append_audit(const std::filesystem::path& state, const JsonObject& line);

}  // namespace twinkle::store
