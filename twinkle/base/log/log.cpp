#include "twinkle/base/log/log.h"

#include <spdlog/async_logger.h>
#include <spdlog/details/thread_pool.h>
#include <spdlog/sinks/base_sink.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"
#include "twinkle/base/log/write.h"

namespace twinkle {
namespace {

constexpr size_t kLines = 8192;          // that wait to be written
constexpr std::chrono::seconds kEnd{1};  // for what is left at the end
// A line's, while the log goes on: its thread waits for who reads it.
constexpr std::chrono::hours kPatience{24 * 365};

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
  // Standard error, whose reader may have stopped.
  class Stderr : public spdlog::sinks::base_sink<std::mutex> {
   public:
    // From here on no line is waited for beyond kEnd in all. Any thread.
    void end() {
      end_ = (Clock::now() + kEnd).time_since_epoch();
      ::eventfd_write(ends_.get(), 1);
    }

   private:
    using Clock = std::chrono::steady_clock;

    void sink_it_(const spdlog::details::log_msg& message) override {
      spdlog::memory_buf_t line;
      formatter_->format(message, line);
      std::string_view left(line.data(), line.size());
      if (end_.load() == Clock::duration::max())
        left.remove_prefix(write_within(STDERR_FILENO, left, kPatience, ends_.get()));
      const Clock::duration time = end_.load() - Clock::now().time_since_epoch();
      if (!left.empty() && end_.load() != Clock::duration::max())
        write_within(STDERR_FILENO, left,
                     std::chrono::duration_cast<std::chrono::milliseconds>(time));
    }
    void flush_() override {}

    const FileHandle ends_{::eventfd(0, EFD_CLOEXEC)};
    std::atomic<Clock::duration> end_ = Clock::duration::max();
  };

 public:
  explicit Impl(Level least)
      : sink(std::make_shared<Stderr>()),
        writer(std::make_shared<spdlog::details::thread_pool>(kLines, 1)),
        logger(std::make_shared<spdlog::async_logger>(
            "twinkle", sink, writer, spdlog::async_overflow_policy::overrun_oldest)) {
    logger->set_level(level_of(least));
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
  }

  ~Impl() { sink->end(); }

  const std::shared_ptr<Stderr> sink;
  const std::shared_ptr<spdlog::details::thread_pool> writer;
  const std::shared_ptr<spdlog::async_logger> logger;
};

Log::Log(Level least) : impl_(std::make_unique<Impl>(least)) {}
Log::~Log() = default;

void Log::set_least(Level least) { impl_->logger->set_level(level_of(least)); }

bool Log::takes(Level level) const { return impl_->logger->should_log(level_of(level)); }

void Log::write(Level level, std::string_view text) {
  std::string line(text);
  std::ranges::replace_if(line, [](char c) { return c < ' ' || c > '~'; }, '?');
  impl_->logger->log(level_of(level), spdlog::string_view_t(line));
}

}  // namespace twinkle
