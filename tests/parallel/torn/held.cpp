// Preloaded into a process of a script: its second save is kept before its first file for as long
// as there is a file $HELD, which this makes.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string_view>

namespace twinkle {

// In place of the one that is not there: twinkle/base/fault/fault.h.
void reach_fault_point(std::string_view name) {
  static std::atomic<int> left = 2;
  if (name != "before a save's files" || --left != 0) return;
  const char* const held = std::getenv("HELD");
  close(open(held, O_CREAT | O_WRONLY, 0644));
  while (access(held, F_OK) == 0) usleep(10'000);
}

}  // namespace twinkle
