// A module of Python's in a process of its own: `python -m twinkle.NAME ...`, for what is Python's
// business, such as plots and the user's own functions. The interpreter is $TWINKLE_PYTHON, which
// the console script sets, else python3. Lines go to its standard input; it answers in lines on its
// standard output. It ignores Ctrl-C and a closed terminal, and ends with this process. Not
// thread-safe.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/base/file.h"

namespace twinkle::cli {

enum class Answers { kLines, kNone };  // kNone: its standard output is this process's error

class PythonModule {
 public:
  // `arguments` begin with the module's name. Error kInternal: the system starts no process.
  explicit PythonModule(std::vector<std::string> arguments, Answers answers = Answers::kLines);
  ~PythonModule();  // ends it
  PythonModule(const PythonModule&) = delete;
  PythonModule& operator=(const PythonModule&) = delete;

  // False: it has ended, or does not read within the limit.
  bool send(std::string_view text, std::chrono::milliseconds limit);
  // Its next line without the end; nothing: it has ended, or the limit has passed.
  std::optional<std::string> receive(std::chrono::milliseconds limit);
  // Ends its input and waits. Its exit status; -1: a signal ended it, this process's where the
  // limit has passed.
  int finish(std::chrono::milliseconds limit);

 private:
  pid_t child_ = -1;  // -1: it is gone
  FileHandle socket_;
  std::string read_;  // bytes of a line that is not whole yet
};

}  // namespace twinkle::cli
