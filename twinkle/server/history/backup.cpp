#include "twinkle/server/history/backup.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <system_error>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"
#include "twinkle/server/history/history.h"

namespace twinkle::server {

namespace fs = std::filesystem;

namespace {

constexpr int kMaxTries = 10;
using OnProgress = std::function<void(const Copied&)>;

void require_done(const std::error_code& error, const char* action, const fs::path& path) {
  require(!error, Code::kInvalid, "server: cannot ", action, " ", path.string(), ": ",
          error.message());
}

void sync(const fs::path& path) {
  const FileHandle file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  require_done(file.get() >= 0 && ::fsync(file.get()) == 0
                   ? std::error_code()
                   : std::error_code(errno, std::system_category()),
               "sync", path);
}

// Files that go while they are copied are left out; whoever needs one sees that it is not there.
void copy_tree(const fs::path& from, const fs::path& to, Copied& copied,
               const OnProgress& on_progress) {
  std::error_code error;
  if (!fs::is_directory(from, error)) return;
  fs::create_directories(to, error);
  require_done(error, "make", to);
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(from, error), end; !error && it != end; it.increment(error))
    entries.push_back(it->path());
  for (const fs::path& path : entries) {
    if (path.extension() == ".old" || path.filename() == "lock") continue;
    const fs::path target = to / path.filename();
    if (fs::is_directory(path, error)) {
      copy_tree(path, target, copied, on_progress);
      continue;
    }
    fs::copy_file(path, target, fs::copy_options::overwrite_existing, error);
    if (error == std::errc::no_such_file_or_directory) continue;
    require_done(error, "copy to", target);
    sync(target);
    ++copied.num_files;
    copied.num_bytes += static_cast<int64_t>(fs::file_size(target, error));
    if (on_progress) on_progress(copied);
  }
  sync(to);
}

// The folders of snapshots that a start needs, below the state.
std::vector<fs::path> needed(const fs::path& state) {
  std::vector<fs::path> out;
  for (const auto& [run, snapshot] : summary_of(state / "journal").snapshots) {
    out.push_back(fs::path("snapshots") / snapshot.folder);
    for (const std::string& v : snapshot.versions) out.push_back(fs::path("snapshots") / v);
  }
  return out;
}

bool has_all(const fs::path& state, const fs::path& source) {
  for (const fs::path& folder : needed(state))
    if (!is_there(state / folder) || !is_there(source / folder)) return false;
  return true;
}

void require_new(const fs::path& to) {
  std::error_code error;
  require(!is_there(to) || fs::is_empty(to, error), Code::kInvalid, "server: ", to.string(),
          " is there; name a new folder");
}

// Under another name until it is whole.
void appear(const fs::path& staging, const fs::path& to) {
  std::error_code error;
  fs::remove(to, error);  // an empty folder
  fs::rename(staging, to, error);
  require_done(error, "rename the copy to", to);
  sync(fs::absolute(to).parent_path());
}

}  // namespace

Copied backup(const fs::path& state, const fs::path& to, const OnProgress& on_progress) {
  require(is_there(state / "journal"), Code::kInvalid, "server: ", state.string(),
          " is no state of a server: it has no journal");
  require_new(to);
  const fs::path staging = to.string() + ".partial";
  std::error_code error;
  Copied copied;
  for (int tries = 0; tries < kMaxTries; ++tries) {
    fs::remove_all(staging, error);
    require_done(error, "remove", staging);
    copied = {};
    // The journal first: what it names is there, and stays but for snapshots that were replaced.
    copy_tree(state / "journal", staging / "journal", copied, on_progress);
    for (fs::directory_iterator it(state, error), end; !error && it != end; it.increment(error)) {
      const fs::path& path = it->path();
      if (path.filename() == "journal") continue;
      if (it->is_directory()) {
        copy_tree(path, staging / path.filename(), copied, on_progress);
      } else {
        fs::copy_file(path, staging / path.filename(), error);
        require_done(error, "copy", path);
        ++copied.num_files;
      }
    }
    if (has_all(staging, state)) {
      appear(staging, to);
      return copied;
    }
  }
  fs::remove_all(staging, error);
  fail(Code::kBusy, "server: snapshots in ", state.string(), " were replaced ", kMaxTries,
       " times while they were copied; try again, or serve with a longer --snapshot-seconds");
}

Copied restore(const fs::path& from, const fs::path& state, const OnProgress& on_progress) {
  require(is_there(from / "journal"), Code::kInvalid, "server: ", from.string(),
          " is no backup: it has no journal");
  require_new(state);
  require(has_all(from, from), Code::kInvalid, "server: ", from.string(),
          " lacks a snapshot that its journal names; take another backup");
  const fs::path staging = state.string() + ".partial";
  std::error_code error;
  fs::remove_all(staging, error);
  require_done(error, "remove", staging);
  Copied copied;
  copy_tree(from, staging, copied, on_progress);
  appear(staging, state);
  return copied;
}

}  // namespace twinkle::server
