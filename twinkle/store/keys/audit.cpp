#include "twinkle/store/keys/audit.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <string>

#include "twinkle/base/file.h"

namespace twinkle::store {

void append_audit(const std::filesystem::path& state, const JsonObject& line) {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  char time[32];
  std::strftime(time, sizeof(time), "%FT%TZ", ::gmtime_r(&now, &utc));
  JsonObject out{{"time", time}};
  for (const auto& [name, value] : line) out[name] = value;
  const std::string text = boost::json::serialize(out) + "\n";
  // In one write, which others that append do not cut in two.
  const FileHandle file(
      ::open((state / "audit.jsonl").c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
  const bool ok = file.get() >= 0 && ::write(file.get(), text.data(), text.size()) ==
                                         static_cast<ssize_t>(text.size());
  require(ok, Code::kBusy, "store: cannot write the audit log: ", std::strerror(errno));
}

}  // namespace twinkle::store
