#include "twinkle/store/keys/audit.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <string>

#include "twinkle/base/file.h"

namespace twinkle::store {
namespace {

// True if a full disk, or a loss of power, left a part of a line at the end.
bool is_cut(int file) {
  const off_t size = ::lseek(file, 0, SEEK_END);
  char last = '\n';
  return size > 0 && ::pread(file, &last, 1, size - 1) == 1 && last != '\n';
}

}  // namespace

void append_audit(const std::filesystem::path& state, const JsonObject& line) {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  char time[32];
  std::strftime(time, sizeof(time), "%FT%TZ", ::gmtime_r(&now, &utc));
  JsonObject out{{"time", time}};
  for (const auto& [name, value] : line) out[name] = value;
  const FileHandle file(
      ::open((state / "audit.jsonl").c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
  require(file.get() >= 0, Code::kBusy,
          "store: cannot write the audit log: ", std::strerror(errno));
  ::flock(file.get(), LOCK_EX);  // no other is within a line
  std::string text = boost::json::serialize(out) + "\n";
  if (is_cut(file.get())) text.insert(text.begin(), '\n');
  const ssize_t written = ::write(file.get(), text.data(), text.size());
  require(written == std::ssize(text), Code::kBusy,
          "store: cannot write the audit log: ", std::strerror(written < 0 ? errno : ENOSPC));
}

}  // namespace twinkle::store
