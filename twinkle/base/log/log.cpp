#include "twinkle/base/log/log.h"

#include <spdlog/async_logger.h>
#include <spdlog/details/thread_pool.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>

#include "twinkle/base/error.h"

namespace twinkle {
namespace {

constexpr size_t kLines = 8192;  // that wait to be written

spdlog::level::level_enum level_of(Level level) {
  return spdlog::level::from_str(level_names()[static_cast<size_t>(level)]);
}

}  // namespace

const std::vector<std::string>& level_names() {
  static const std::vector<std::string> kNames{"debug", "info", "warning", "error", "off"};
  return kNames;
}

Level level_named(const std::string& name) {
  const auto found = std::ranges::find(level_names(), name);
  require(found != level_names().end(), Code::kInvalid, "base: the log's level is '", name,
          "', it must be debug, info, warning, error or off");
  return static_cast<Level>(found - level_names().begin());
}

class Log::Impl {
 public:
  explicit Impl(Level least)
      : writer(std::make_shared<spdlog::details::thread_pool>(kLines, 1)),
        logger(std::make_shared<spdlog::async_logger>(
            "twinkle", std::make_shared<spdlog::sinks::stderr_sink_mt>(), writer,
            spdlog::async_overflow_policy::overrun_oldest)) {
    logger->set_level(level_of(least));
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
  }

  const std::shared_ptr<spdlog::details::thread_pool> writer;
  const std::shared_ptr<spdlog::async_logger> logger;
};

Log::Log(Level least) : impl_(std::make_unique<Impl>(least)) {}
Log::~Log() = default;

bool Log::takes(Level level) const { return impl_->logger->should_log(level_of(level)); }

void Log::write(Level level, std::string_view text) {
  std::string line(text);
  std::ranges::replace_if(line, [](char c) { return c < ' ' || c > '~'; }, '?');
  impl_->logger->log(level_of(level), spdlog::string_view_t(line));
}

}  // namespace twinkle
