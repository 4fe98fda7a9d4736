// Lines on standard error, with time and level. Written by a thread of its own, so that nobody
// waits for whoever reads them; where that one is too slow the oldest lines are lost, and at the
// end those that nobody takes within a second. Any thread.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace twinkle {

enum class Level { kDebug, kInfo, kWarning, kError, kOff };

// "debug", "info", "warning", "error", "off".
const std::vector<std::string>& level_names();
// Error kInvalid: none of these.
Level level_named(const std::string& name);

class Log {
 public:
  explicit Log(Level least);  // that is written
  ~Log();                     // writes what is left, within that second

  // From here on.
  void set_least(Level least);
  bool takes(Level level) const;
  // One line, whatever the text is: what ASCII cannot print becomes '?'.
  void write(Level level, std::string_view text);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace twinkle
