// log.jsonl of a run: an object a line, of steps and of validations; and the reporter, a process of
// Python's that gets the same lines, draws loss.png and writes to trackers. The training never
// depends on it: where it ends, or does not read, that is said once.
#pragma once
#include <fstream>
#include <optional>
#include <string>

#include "twinkle/base/json.h"
#include "twinkle/cli/run/progress.h"
#include "twinkle/cli/run/python_module.h"
#include "twinkle/cli/run/run_folder.h"

namespace twinkle::cli {

// Trackers are there, and no other names are given. Error kInvalid: with the remedy.
void check_trackers(const std::string& report_to);

class RunLog {
 public:
  // Keeps the lines of a log that is there up to step `kept`. `report_to`: trackers.
  RunLog(const RunFolder& folder, int64_t kept, const std::string& report_to);

  // Adds a line. A failure to write or to report is said by `progress`, once.
  void write(const JsonObject& line, Progress& progress);
  // Waits for the last picture.
  void finish(Progress& progress);

  double seconds() const { return seconds_; }  // the last kept line's; 0: none

 private:
  void give_up_reports(const std::string& why, Progress& progress);

  const std::string file_;
  double seconds_ = 0;
  std::ofstream out_;
  bool is_broken_ = false;
  std::optional<PythonModule> reporter_;
};

}  // namespace twinkle::cli
