// guided: names the readers. guided READER SECONDS [FOLDER]: libFuzzer, which keeps cases that
// reach code that no other has reached, and changes those further; in FOLDER/READER, if it is
// given, for the next run too. A finding, as of tests/fuzz/fuzz.cpp, ends it with a status that is
// not 0, its case in crash-HASH or the like in FOLDER, or here. Without torch, and so of other
// readers no more than guided/readers.def has.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "tests/fuzz/fuzz.h"
#include "twinkle/base/error.h"

namespace twinkle::fuzz {

#define FUZZ(name) Reader name();
#include "tests/fuzz/guided/readers.def"
#undef FUZZ

namespace {

namespace fs = std::filesystem;

std::optional<Reader> chosen;

std::vector<Reader (*)()> makers() {
  return {
#define FUZZ(name) name,
#include "tests/fuzz/guided/readers.def"
#undef FUZZ
  };
}

void write(const fs::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// As libFuzzer's -dict reads them.
std::string dictionary(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) {
    out += '"';
    for (const char c : word) {
      char text[5];
      std::snprintf(text, sizeof text, "\\x%02X", static_cast<unsigned>(static_cast<uint8_t>(c)));
      out += text;
    }
    out += "\"\n";
  }
  return out;
}

// Goes on in a child; this process removes the scratch folder behind it and ends as it does.
void go_on_in_a_child() {
  const fs::path scratch = scratch_folder();
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    return;
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  fs::remove_all(scratch);
  ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

// libFuzzer's arguments of ours.
std::vector<std::string> driven(const std::string& seconds, const std::string& folder) {
  const fs::path seeds = scratch_folder() / "seeds";
  fs::create_directories(seeds);
  for (size_t i = 0; i < chosen->corpus.size(); ++i)
    write(seeds / std::to_string(i), chosen->corpus[i]);
  write(scratch_folder() / "words", dictionary(chosen->words));
  std::vector<std::string> out = {"-max_total_time=" + seconds,
                                  "-max_len=65536",
                                  "-timeout=10",
                                  "-rss_limit_mb=2048",
                                  "-print_final_stats=1",
                                  "-verbosity=0",
                                  "-dict=" + (scratch_folder() / "words").string()};
  if (!folder.empty()) {
    const fs::path kept = fs::path(folder) / chosen->name;
    fs::create_directories(kept);
    out.push_back("-artifact_prefix=" + folder + "/");
    out.push_back(kept.string());
  }
  out.push_back(seeds.string());
  return out;
}

[[noreturn]] void refuse() {
  std::fprintf(stderr, "guided: guided READER SECONDS [FOLDER]; guided names the readers\n");
  std::exit(2);
}

}  // namespace
}  // namespace twinkle::fuzz

// libFuzzer reads what this leaves of the command line.
extern "C" int LLVMFuzzerInitialize(int* count, char*** values) {
  using namespace twinkle::fuzz;
  static std::vector<std::string> arguments(*values + 1, *values + *count);
  for (const auto make : makers()) {
    Reader reader = make();
    if (arguments.empty()) std::printf("%s\n", reader.name.c_str());
    if (!arguments.empty() && reader.name == arguments[0]) chosen = std::move(reader);
  }
  if (arguments.empty()) std::exit(0);
  if (!chosen || arguments.size() < 2 || arguments.size() > 3) refuse();
  go_on_in_a_child();
  arguments = driven(arguments[1], arguments.size() > 2 ? arguments[2] : "");
  static std::vector<char*> pointers = {(*values)[0]};  // the program's name has to stay
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  *count = static_cast<int>(pointers.size());
  *values = pointers.data();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    twinkle::fuzz::chosen->read(std::string(reinterpret_cast<const char*>(data), size));
  } catch (const twinkle::Error&) {  // whatever else is thrown is a finding
  }
  return 0;
}
