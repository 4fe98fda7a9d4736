// Leader-to-follower commands: each call of its Executor that changes anything,
// as bytes, and how operations have ended. Operations are named by the numbers under which the
// ranks have entered them: all have them. One build sends and reads these, nothing keeps them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "twinkle/base/fields.h"

namespace twinkle::engine {

struct Command {
  // kNews: nothing to run.
  enum Kind : int32_t {
    kNews,
    kRun,
    kBatch,
    kStart,
    kStep,
    kFirstPart,  // a Save's; its remainder is known by a number, as the id of `work`
    kWrite,      // begin what that left; without a folder: drop it
    kClose
  };

  // Before the call: an operation was committed, or undone.
  struct Finish {
    int64_t id = 0;
    bool commit = false;
    static constexpr auto fields() {
      return std::tuple{field(1, "id", &Finish::id), field(2, "commit", &Finish::commit)};
    }
  };
  // How the operation that ranks have submitted as their `number`th has ended.
  struct Told {
    int64_t number = 0;
    int64_t id = 0;      // id of the result that the follower has, or, with `result`, of none
    int32_t code = -1;   // code of the error; -1: there is none
    std::string error;   // its text
    std::string result;  // as to_bytes() gives it, of what the leader alone has run
    static constexpr auto fields() {
      return std::tuple{field(1, "number", &Told::number), field(2, "id", &Told::id),
                        field(3, "code", &Told::code), field(4, "error", &Told::error),
                        field(5, "result", &Told::result)};
    }
  };
  // As Work is, of what the ranks have entered as their `number`th.
  struct Run {
    int64_t id = 0, number = 0;
    uint64_t first = 0, last = 0;
    int64_t num_tokens = 0;
    static constexpr auto fields() {
      return std::tuple{field(1, "id", &Run::id), field(2, "number", &Run::number),
                        field(3, "first", &Run::first), field(4, "last", &Run::last),
                        field(5, "num_tokens", &Run::num_tokens)};
    }
  };

  int32_t kind = kNews;
  std::vector<Finish> finished;
  std::vector<Told> told;
  std::vector<Run>
      work;           // items of a batch; for kRun and kStart one item, whose sequences don't count
  double weight = 1;  // for kStart: the Share
  int32_t priority = 0;
  std::string folder;  // for kWrite

  static constexpr auto fields() {
    return std::tuple{
        field(1, "kind", &Command::kind),     field(2, "finished", &Command::finished),
        field(3, "told", &Command::told),     field(4, "work", &Command::work),
        field(5, "weight", &Command::weight), field(6, "priority", &Command::priority),
        field(7, "folder", &Command::folder)};
  }
};

std::string to_bytes(const Command& command);
Command command_from_bytes(const std::string& bytes);

}  // namespace twinkle::engine
