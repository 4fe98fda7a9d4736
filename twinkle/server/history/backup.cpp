#include "twinkle/server/history/backup.h"

#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"
#include "twinkle/io/atomic.h"
#include "twinkle/server/history/history.h"
#include "twinkle/server/history/state_file.h"

namespace twinkle::server {

namespace fs = std::filesystem;

namespace {

constexpr int kMaxTries = 10;

// Whether it was done; false: what it was to be done to has gone. Error kInvalid: the system
// refuses.
bool done(const std::error_code& error, const char* action, const fs::path& path) {
  if (error == std::errc::no_such_file_or_directory) return false;
  require(!error, Code::kInvalid, "server: cannot ", action, " ", path.string(), ": ",
          error.message());
  return true;
}

// Files that nobody changes any more may be links, which take no time, where the file system is
// one.
enum class How { kCopied, kLinked };

// Nothing, if it is not there.
void copy_file(const fs::path& from, const fs::path& to, Copied& copied, How how = How::kCopied) {
  std::error_code error;
  fs::create_directories(to.parent_path(), error);
  done(error, "make", to.parent_path());
  if (how == How::kLinked) fs::create_hard_link(from, to, error);
  if (how == How::kCopied || error) fs::copy_file(from, to, error);
  if (!done(error, "copy", from)) return;
  ++copied.num_files;
  copied.num_bytes += static_cast<int64_t>(fs::file_size(to, error));
}

// What goes while it is copied is left out; whoever needs it sees that it is not there. So are
// entries of `from` of the names `without`.
void copy_tree(const fs::path& from, const fs::path& to, Copied& copied,
               const std::set<std::string>& without = {}, How how = How::kCopied) {
  std::error_code error;
  std::vector<fs::directory_entry> entries;
  for (fs::directory_iterator it(from, error), end; !error && it != end; it.increment(error))
    entries.push_back(*it);
  if (!done(error, "read", from)) return;
  fs::create_directories(to, error);
  done(error, "make", to);
  for (const fs::directory_entry& entry : entries) {
    const fs::path name = entry.path().filename();
    if (name.extension() == ".old" || name == "lock" || without.contains(name.string())) continue;
    if (entry.is_directory(error)) {
      copy_tree(entry.path(), to / name, copied, {}, how);
      continue;
    }
    copy_file(entry.path(), to / name, copied, how);
  }
}

// A journal that was copied while its records gave way to a state lacks some.
bool is_whole_journal(const fs::path& journal) {
  try {
    summary_of(journal);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Of the snapshots that the journal in `state` names, all are in `state` and still in `source`.
bool has_all(const fs::path& state, const fs::path& source) {
  const auto is_whole = [&](const std::string& folder) {
    const fs::path path = fs::path("snapshots") / folder;
    return is_there(state / path) && is_there(source / path);
  };
  for (const auto& [run, snapshot] : summary_of(state / kJournal).snapshots) {
    if (!is_whole(snapshot.folder)) return false;
    for (const std::string& version : snapshot.versions)
      if (!is_whole(version)) return false;
  }
  return true;
}

void require_new(const fs::path& to) {
  std::error_code error;
  require(!is_there(to) || fs::is_empty(to, error), Code::kInvalid, "server: ", to.string(),
          " is there; name a new folder");
}

// The copy would be in the next one, and so on.
void require_outside(const fs::path& to, const fs::path& of) {
  std::error_code error;
  const fs::path folder = fs::weakly_canonical(of, error);
  for (fs::path at = fs::weakly_canonical(to, error); at.has_relative_path(); at = at.parent_path())
    require(at != folder, Code::kInvalid, "server: ", to.string(), " is in ", of.string(),
            ", of which it is to be a copy; name a folder outside of it");
}

}  // namespace

Copied backup(const fs::path& state, const fs::path& to) {
  require(is_there(state / kJournal), Code::kInvalid, "server: ", state.string(),
          " is no state of a server: it has no journal");
  require_new(to);
  require_outside(to, state);
  for (int tries = 0; tries < kMaxTries; ++tries) {
    AtomicDirectory copy(to);
    Copied copied;
    // The journal first: what it names is there, and stays but for snapshots that were replaced.
    // Of it, the state first: what follows it is there, unless another takes its place meanwhile.
    const fs::path from = state / kJournal, journal = copy.staging() / kJournal;
    copy_file(state_file(from), state_file(journal), copied);
    copy_tree(from, journal, copied, {state_file(from).filename().string()});
    if (tries + 1 < kMaxTries && !is_whole_journal(journal)) continue;
    copy_tree(state / "snapshots", copy.staging() / "snapshots", copied, {}, How::kLinked);
    if (!has_all(copy.staging(), state)) continue;
    copy_tree(state, copy.staging(), copied, {kJournal, "snapshots", kParked});
    copy.commit();
    return copied;
  }
  fail(Code::kBusy, "server: snapshots in ", state.string(), " were replaced ", kMaxTries,
       " times while they were copied; try again, or serve with a longer --snapshot-seconds and "
       "more --journal-bytes");
}

Copied restore(const fs::path& from, const fs::path& state) {
  require(is_there(from / kJournal), Code::kInvalid, "server: ", from.string(),
          " is no backup: it has no journal");
  require_new(state);
  require_outside(state, from);
  require(has_all(from, from), Code::kInvalid, "server: ", from.string(),
          " lacks a snapshot that its journal names; take another backup");
  AtomicDirectory copy(state);
  Copied copied;
  copy_tree(from, copy.staging(), copied);
  copy.commit();
  return copied;
}

}  // namespace twinkle::server
