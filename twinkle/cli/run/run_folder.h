// The folder of a run:
//   config.yaml  all options, as `twinkle train --config` takes them
//   log.jsonl    a line a step
//   loss.png     the same as a picture
//   adapter/     the result, or model/ of all weights
//   state/       what --resume continues from
// and folders of trackers. Knows nothing of a training.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

namespace twinkle::cli {

inline constexpr const char* kOutputs = "outputs";
inline constexpr const char* kLatest = "latest";  // a link in outputs/
inline constexpr const char* kTrainerState = "trainer_state.json";

struct RunFolder {
  std::filesystem::path path;

  std::filesystem::path config() const { return path / "config.yaml"; }
  std::filesystem::path log() const { return path / "log.jsonl"; }
  std::filesystem::path weights(bool full) const { return path / (full ? "model" : "adapter"); }
  std::filesystem::path state() const { return path / "state"; }
};

enum class Earlier { kRefuse, kReplace, kResume };

// Checks --output without writing, or changing what is there. `base`: the model's directory. Error
// kInvalid: it cannot be written, or holds a file that is no run's; kConflict: it holds a run;
// kNotFound: there is no state to resume.
void check_run_folder(const RunFolder& folder, const std::filesystem::path& base, bool full,
                      Earlier earlier);

// Makes outputs/NAME-1, -2, ... below the working directory, the first that is not there. Error
// kInvalid: the system refuses.
RunFolder new_run_folder(std::string_view data);
// outputs/latest leads to it from now on.
void link_latest(const RunFolder& folder);
// Removes a folder that holds no more than config.yaml and log.jsonl.
void remove_if_unused(const RunFolder& folder);
// The folder that outputs/latest leads to. Error kNotFound: there is none.
std::filesystem::path latest_run();

// Removes what an earlier run wrote.
void clear(const RunFolder& folder);

}  // namespace twinkle::cli
