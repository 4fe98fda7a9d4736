// The lines of a descriptor, a terminal or a pipe.
#pragma once
#include <optional>
#include <string>

namespace twinkle::cli {

class Lines {
 public:
  // `wake`: a descriptor that ends the wait once it is readable; -1: none.
  explicit Lines(int fd, int wake = -1) : fd_(fd), wake_(wake) {}

  // The next line without its end, or an empty one, and nothing of the line that was begun, where
  // `wake` ended the wait. None: there is no more. Error kInvalid: the system refuses.
  std::optional<std::string> next();

 private:
  int fd_, wake_;
  std::string held_;  // read, but not taken
  bool ended_ = false;
};

}  // namespace twinkle::cli
