#include "twinkle/serving/log/backup.h"

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
#include "twinkle/serving/log/log.h"
#include "twinkle/serving/log/state_file.h"
#include "twinkle/store/keys/keys.h"
#include "twinkle/store/segment.h"

namespace twinkle::server::core {

namespace fs = std::filesystem;

namespace {

constexpr int kMaxTries = 10;
constexpr const char *kSnapshots = "snapshots", *kCheckpoints = "checkpoints";

// False: what it was to be done to has gone. Error kInvalid: the system refuses.
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

// A file that goes while it is copied is left out; whoever needs it sees that it is not there. So
// are entries of `from` of the names `without`.
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
    // A name that begins with '.' is half written, or half removed.
    if (name.string().starts_with('.') || name == "lock" || without.contains(name.string()))
      continue;
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

// Nothing: a journal that was copied, or read, while its records gave way to a state lacks some.
std::optional<Domain> whole_domain_in(const fs::path& journal) {
  try {
    return domain_in(journal);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Without the snapshots of these runs there is no start.
bool has_snapshots(const fs::path& state, const Domain& of_journal) {
  return std::ranges::all_of(of_journal.runs(), [&](const auto& run) {
    const std::string& folder = run.second.snapshot.folder;
    return folder.empty() || !run.second.lost.empty() || is_there(state / kSnapshots / folder);
  });
}

// The folders below the state that are not there, and that a start can do without.
std::set<fs::path> missing_in(const fs::path& state, const Domain& of_journal) {
  std::set<fs::path> out;
  const auto add = [&](const fs::path& folder) {
    if (!is_there(state / folder)) out.insert(folder);
  };
  for (const auto& [id, run] : of_journal.runs())
    for (const std::string& folder : run.snapshot.versions) add(fs::path(kSnapshots) / folder);
  for (const auto& [path, checkpoint] : of_journal.checkpoints()) add(checkpoint.folder);
  return out;
}

std::vector<fs::path> below(const fs::path& state, const std::set<fs::path>& folders) {
  std::vector<fs::path> out;
  for (const fs::path& folder : folders) out.push_back(state / folder);
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
  require(!has(kSnapshots) && !has(kCheckpoints), Code::kInvalid, "server: ", whole,
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

void require_whole(const fs::path& state, const Domain& of_journal) {
  for (const char* kept : {kSnapshots, kCheckpoints}) {
    std::error_code ignored;
    require(!of_journal.starts().empty() || names_in(state / kept, ignored).empty(), Code::kInvalid,
            "server: ", (state / kept).string(), " has runs, but the journal in ",
            (state / kJournal).string(),
            " holds nothing: put the journal back, restore a backup (twinkle restore), or move ",
            (state / kept).string(), " away to start anew");
  }
  for (const auto& [id, run] : of_journal.runs()) {
    if (run.snapshot.folder.empty() || !run.lost.empty()) continue;
    const fs::path folder = state / kSnapshots / run.snapshot.folder;
    const std::string why = trouble_of(folder);
    require(why.empty(), Code::kInvalid, "server: the snapshot of the run '", id, "' in ",
            folder.string(), " cannot be read: ", why,
            "; put the folder back as it was, or restore a backup (twinkle restore)");
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
    store::require_none_lost(state / kJournal);  // the copy would not show it
    if (!is_whole) continue;
    if (tries + 1 < kMaxTries && !whole_domain_in(journal)) continue;
    const Domain copied_domain = domain_in(journal);
    copy_tree(state / kSnapshots, copy.staging() / kSnapshots, copied, {}, How::kLinked);
    if (!has_snapshots(copy.staging(), copied_domain) || !has_snapshots(state, copied_domain))
      continue;
    copy_tree(state, copy.staging(), copied, {kJournal, kSnapshots, kParked});
    // A missing folder was deleted meanwhile, or by hand: then the server still names it.
    const std::set<fs::path> missing = missing_in(copy.staging(), copied_domain);
    const std::optional<Domain> now =
        missing.empty() ? std::nullopt : whole_domain_in(state / kJournal);
    if (!missing.empty() && (!now || !std::ranges::includes(missing_in(state, *now), missing)))
      continue;
    copied.missing = below(state, missing);
    copy.commit();
    return copied;
  }
  require_whole(state, domain_in(state / kJournal));  // it may be that one is not there
  fail(Code::kBusy, "server: the journal or folders in ", state.string(), " were replaced ",
       kMaxTries,
       " times while they were copied; try again, or serve with more --again-seconds and "
       "--journal-bytes");
}

Copied restore(const fs::path& from, const fs::path& state) {
  require(is_there(from / kJournal), Code::kInvalid, "server: ", from.string(),
          " is no backup: it has no journal");
  require_new(state);
  require_outside(state, from);
  const Domain of_journal = domain_in(from / kJournal);
  require(has_snapshots(from, of_journal), Code::kInvalid, "server: ", from.string(),
          " lacks a snapshot that its journal names; take another backup");
  require_whole(from, of_journal);
  AtomicDirectory copy(state);
  Copied copied{.missing = below(from, missing_in(from, of_journal))};
  copy_tree(from, copy.staging(), copied);
  copy.commit();
  return copied;
}

}  // namespace twinkle::server::core
