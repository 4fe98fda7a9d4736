#include "twinkle/server/http/request_log.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

namespace twinkle::server {
namespace {

constexpr size_t kMaxPath = 300;

bool is_asked_all_the_time(const std::string& path) {
  constexpr std::array kEnds{
      "/retrieve_future", "/session_heartbeat", "/telemetry", "/healthz", "/readyz", "/metrics"};
  return std::ranges::any_of(kEnds, [&](const char* end) { return path.ends_with(end); });
}

// A proxy's root_path may stand before it.
bool is_of_hub(const std::string& path) { return path.find("/hf/") != std::string::npos; }

Level level_of(const Head& head, int status) {
  // Why a server is not ready is not said by the probes of those who wait for it.
  if (status == 503 && head.path.ends_with("/readyz")) return Level::kDebug;
  if (status == 429 || status == 503) return Level::kWarning;
  if (status >= 500) return Level::kError;
  // Clients of a hub ask for files that a model need not have.
  if (status == 404 && is_of_hub(head.path)) return Level::kDebug;
  const bool is_well = status < 400 || status == 408 || status == kGone;
  const bool is_routine = is_asked_all_the_time(head.path) || is_of_hub(head.path);
  return is_well && is_routine ? Level::kDebug : Level::kInfo;
}

}  // namespace

void note_request(Log& log, const Head& head, const Told& told) {
  const Level level = level_of(head, told.status);
  if (!log.takes(level)) return;
  std::array<char, 64> end{};
  std::snprintf(end.data(), end.size(), " %d %.1f ms", told.status,
                static_cast<double>(told.time.count()) / 1000);
  std::string line =
      head.method.substr(0, kMaxPath) + " " + head.path.substr(0, kMaxPath) + end.data();
  const std::string bytes = told.bytes > 0 ? std::to_string(told.bytes) : "";
  for (const auto& [name, value] :
       {std::pair(" id=", &head.id), std::pair(" peer=", &head.peer), std::pair(" bytes=", &bytes),
        std::pair(" tenant=", &told.tenant), std::pair(" key=", &told.key_id),
        std::pair(" promise=", &told.promise), std::pair(" reason=", &told.reason)})
    if (!value->empty()) line += name + value->substr(0, kMaxPath);
  log.write(level, line);
}

}  // namespace twinkle::server
