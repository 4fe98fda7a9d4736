#include "twinkle/server/http/request_log.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace twinkle::server {
namespace {

constexpr size_t kMaxPath = 300;

// What clients send all the time.
bool is_routine(const std::string& path) {
  constexpr std::array kEnds{"/retrieve_future", "/session_heartbeat", "/telemetry", "/healthz"};
  return std::ranges::any_of(kEnds, [&](const char* end) { return path.ends_with(end); });
}

Level level_of(const Head& head, int status) {
  if (status == 429 || status == 503) return Level::kWarning;
  if (status >= 500) return Level::kError;
  const bool is_well = status < 400 || status == 408;
  return is_well && is_routine(head.path) ? Level::kDebug : Level::kInfo;
}

}  // namespace

void note_request(Log& log, const Head& head, int status, std::chrono::microseconds time) {
  const Level level = level_of(head, status);
  if (!log.takes(level)) return;
  std::array<char, 64> end{};
  std::snprintf(end.data(), end.size(), " %d %.1f ms", status,
                static_cast<double>(time.count()) / 1000);
  log.write(level, head.method + " " + head.path.substr(0, kMaxPath) + end.data());
}

}  // namespace twinkle::server
