#include "twinkle/server/history/backup.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/fault/fault.h"
#include "twinkle/base/file.h"
#include "twinkle/io/atomic.h"
#include "twinkle/server/history/state_file.h"
#include "twinkle/store/keys/keys.h"
#include "twinkle/store/segment.h"

namespace twinkle::server {

namespace fs = std::filesystem;

namespace {

constexpr int kMaxTries = 10;
constexpr const char* kSnapshots = "snapshots";

// Whether it was done; false: what it was to be done to has gone. Error kInvalid: the system
// refuses.
bool done(const std::error_code& error, const char* action, const fs::path& path) {
  if (error == std::errc::no_such_file_or_directory) return false;
  require(
      !error, Code::kInvalid, "server: cannot ", action, " ", path.string(), ": ", error.message(),
      error == std::errc::no_space_on_device ? "; free space there, or name another folder" : "");
  return true;
}

// The copy has the file's permissions before it has any of its bytes. Not by std::filesystem, which
// tells of a full disk as "Input/output error". Error kNotFound: it has gone.
void copy_bytes(const fs::path& from, const fs::path& to) {
  constexpr int64_t kAtATime = int64_t{4} << 20;
  const File file(from, "server");
  AtomicFile copy(to, Commits::kWithFolder);
  std::error_code error;
  const fs::perms perms = fs::status(from, error).permissions();
  constexpr fs::perms kOwners = fs::perms::owner_read | fs::perms::owner_write;
  fs::permissions(to, perms == fs::perms::unknown ? kOwners : perms, error);
  std::string bytes;
  for (int64_t at = 0; at < file.size(); at += std::ssize(bytes)) {
    bytes.resize(static_cast<size_t>(std::min(kAtATime, file.size() - at)));
    file.read_at(at, std::as_writable_bytes(std::span(bytes)));
    copy.write(bytes);
  }
  copy.commit();
}

// False: it has gone.
bool is_copied(const fs::path& from, const fs::path& to) {
  try {
    copy_bytes(from, to);
    return true;
  } catch (const Error& e) {
    if (e.code != Code::kNotFound) throw;
    return false;
  }
}

// Files that nobody changes any more may be links, which take no time, where the file system is
// one.
enum class How { kCopied, kLinked };

// False, and nothing, if it is not there.
bool copy_file(const fs::path& from, const fs::path& to, Copied& copied, How how = How::kCopied) {
  std::error_code error;
  fs::create_directories(to.parent_path(), error);
  done(error, "make", to.parent_path());
  if (how == How::kLinked) fs::create_hard_link(from, to, error);
  if ((how == How::kCopied || error) && !is_copied(from, to)) return false;
  ++copied.num_files;
  copied.num_bytes += static_cast<int64_t>(fs::file_size(to, error));
  return true;
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

// The state first: what follows it is there, unless another takes its place meanwhile. Then
// segments go, and where they are the last, no gap tells it. False: so it was, and the copy may
// lack what was acknowledged before it began.
bool copy_journal(const fs::path& from, const fs::path& to, Copied& copied) {
  const auto state = [&]() -> std::optional<uint64_t> {
    if (!is_there(state_file(from))) return std::nullopt;
    return StateReader(from).state().sequence;
  };
  const std::optional<uint64_t> before = state();
  copy_file(state_file(from), state_file(to), copied);
  for (const store::Segment& segment : store::segments_in(from)) {
    fault("before a segment's copy");
    if (!copy_file(segment.path, to / segment.path.filename(), copied)) return false;
  }
  return state() == before;
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

// Of the snapshots that a journal names.
bool has_all(const fs::path& state, const History::Summary& of_journal) {
  return std::ranges::all_of(of_journal.snapshots, [&](const auto& of_run) {
    return is_there(state / kSnapshots / of_run.second.folder);
  });
}

// Folders of their versions that are not there. A start needs none.
std::vector<fs::path> missing_versions(const fs::path& state, const History::Summary& of_journal) {
  std::vector<fs::path> out;
  for (const auto& [run, snapshot] : of_journal.snapshots)
    for (const std::string& folder : snapshot.versions)
      if (!is_there(state / kSnapshots / folder)) out.push_back(state / kSnapshots / folder);
  return out;
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

void require_state(const fs::path& state) {
  const std::string whole = fs::absolute(state).string();
  require(is_there(state), Code::kInvalid, "server: there is no folder ", whole,
          "; name the server's with --state");
  if (is_there(state / kJournal)) return;
  const auto has = [&](const char* name) {
    std::error_code error;
    return !names_in(state / name, error).empty();
  };
  require(!has(kSnapshots) && !has("checkpoints"), Code::kInvalid, "server: ", whole,
          " has runs, but no journal; put it back, or restore a backup (twinkle restore)");
  const fs::path keys = store::KeyFile(fs::absolute(state)).path();
  require(!is_there(keys), Code::kInvalid, "server: no server has run on ", whole,
          " yet, so that it has keys alone: copy ", keys.string(), " itself");
  fail(Code::kInvalid, "server: ", whole, " is no state of a server: it has no journal");
}

// Empty, or why nothing can be loaded of it.
std::string trouble_of(const fs::path& snapshot) {
  std::error_code error;
  const bool is_empty = names_in(snapshot, error).empty();
  if (error) return error.message();
  return is_empty ? "it is empty" : "";
}

}  // namespace

std::string unreadable(const std::string& run, const fs::path& snapshot, const std::string& why) {
  return "server: the snapshot of the run '" + run + "' in " + snapshot.string() +
         " cannot be read: " + why +
         "; put the folder back as it was, or restore a backup (twinkle restore)";
}

void require_whole(const fs::path& state, const History::Summary& of_journal) {
  for (const char* kept : {kSnapshots, "checkpoints"}) {
    std::error_code ignored;
    require(!of_journal.starts.empty() || names_in(state / kept, ignored).empty(), Code::kInvalid,
            "server: ", (state / kept).string(), " has runs, but the journal in ",
            (state / kJournal).string(),
            " holds nothing: put the journal back, restore a backup (twinkle restore), or move ",
            (state / kept).string(), " away to start anew");
  }
  for (const auto& [run, snapshot] : of_journal.snapshots) {
    const fs::path folder = state / kSnapshots / snapshot.folder;
    const std::string why = trouble_of(folder);
    require(why.empty(), Code::kInvalid, unreadable(run, folder, why));
  }
}

Copied backup(const fs::path& state, const fs::path& to) {
  require_state(state);
  require_new(to);
  require_outside(to, state);
  for (int tries = 0; tries < kMaxTries; ++tries) {
    AtomicDirectory copy(to);
    Copied copied;
    // The journal first: what it names is there, and stays but for snapshots that were replaced.
    const fs::path journal = copy.staging() / kJournal;
    const bool is_whole = copy_journal(state / kJournal, journal, copied);
    store::require_none_lost(state / kJournal);  // of which the copy would not tell
    if (!is_whole) continue;
    if (tries + 1 < kMaxTries && !is_whole_journal(journal)) continue;
    copy_tree(state / kSnapshots, copy.staging() / kSnapshots, copied, {}, How::kLinked);
    const History::Summary copied_journal = summary_of(journal);
    if (!has_all(copy.staging(), copied_journal) || !has_all(state, copied_journal)) continue;
    copied.missing = missing_versions(state, copied_journal);
    if (missing_versions(copy.staging(), copied_journal).size() > copied.missing.size()) continue;
    copy_tree(state, copy.staging(), copied, {kJournal, kSnapshots, kParked});
    copy.commit();
    return copied;
  }
  require_whole(state, summary_of(state / kJournal));  // it may be that one is not there
  fail(Code::kBusy, "server: the journal or snapshots in ", state.string(), " were replaced ",
       kMaxTries,
       " times while they were copied; try again, or serve with a longer --snapshot-seconds and "
       "more --journal-bytes");
}

Copied restore(const fs::path& from, const fs::path& state) {
  require(is_there(from / kJournal), Code::kInvalid, "server: ", from.string(),
          " is no backup: it has no journal");
  require_new(state);
  require_outside(state, from);
  const History::Summary of_journal = summary_of(from / kJournal);
  require(has_all(from, of_journal), Code::kInvalid, "server: ", from.string(),
          " lacks a snapshot that its journal names; take another backup");
  require_whole(from, of_journal);
  AtomicDirectory copy(state);
  Copied copied{.missing = missing_versions(from, of_journal)};
  copy_tree(from, copy.staging(), copied);
  copy.commit();
  return copied;
}

}  // namespace twinkle::server
