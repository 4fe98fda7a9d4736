// Signals of a server, and how long it runs: until one ends it, or its parent is gone.
#pragma once
#include <csignal>
#include <functional>
#include <thread>

#include "twinkle/base/file.h"
#include "twinkle/base/log/log.h"

namespace twinkle::cli {

// Ctrl-C, SIGTERM and SIGHUP, which no other thread takes from here on. A limit on the size of
// files refuses a write, as a full disk does, and so does who has stopped to read the log.
sigset_t hold_signals();

// Returns true on a signal that ends the server, or when standard input ends, if that counts: a
// parent that is gone has closed its end of it. False: `other`, if there is one, can be read.
// SIGHUP, which a terminal that is closed sends, too, ends nothing: `hangup` is called.
bool wait_for_end(const sigset_t& signals, bool until_stdin_ends,
                  const std::function<void()>& hangup, int other = -1);

// Says so on standard output; who reads that no more does not hold the end up.
void say_end();

// While it lives, the end comes at once: a start, which may take minutes, has told nobody anything,
// and the next one finds what it leaves as after a kill.
class EndsAtOnce {
 public:
  EndsAtOnce(const sigset_t& signals, bool until_stdin_ends, Log& log);
  ~EndsAtOnce();
  EndsAtOnce(const EndsAtOnce&) = delete;
  EndsAtOnce& operator=(const EndsAtOnce&) = delete;

 private:
  const FileHandle is_over_;
  std::thread thread_;
};

}  // namespace twinkle::cli
