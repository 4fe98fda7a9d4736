// Files and folders that appear whole or not at all, whatever happens while they are written: an
// exception, a full disk, kill -9, loss of power. They are written next to the target as
// `.<name>.partial-<random>`, synced, and renamed. What a killed process leaves behind is removed
// by the next save to the same target; a lock on each partial shows that its process still lives,
// so that several may save to one target (the last commit wins). Knows no format. One object
// belongs to one thread.
#pragma once
#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#include "twinkle/base/file.h"

namespace twinkle {

// Who makes a file whole and durable: itself, or the AtomicDirectory in whose staging folder it is,
// whose commit syncs all files at once.
enum class Commits { kAlone, kWithFolder };

// One file. The target's folder must exist.
class AtomicFile {
 public:
  // Error kInvalid: the target is a folder, or its folder cannot be written to.
  explicit AtomicFile(const std::filesystem::path& target, Commits how = Commits::kAlone);
  ~AtomicFile();  // without commit, the partial file goes and the target stays as it was
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Appends. Error kInternal: the disk is full, read-only or broken; kInvalid: another refusal of
  // the system; both with the file and the bytes written so far. The same codes everywhere below.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);

  // Syncs what was written, so that commit() has less to wait for.
  void sync();
  // Syncs and replaces the target, or keeps it in its folder. Once only.
  void commit();

 private:
  const Commits how_;
  std::filesystem::path target_, partial_;  // one and the same with its folder
  FileHandle file_;
  size_t written_ = 0;  // bytes
};

void write_file_atomically(const std::filesystem::path& target, std::string_view text,
                           Commits how = Commits::kAlone);

// A folder of files that belong together. commit() replaces the target as a whole: files of the old
// one that were not written again are gone. Where the file system cannot exchange two folders at
// once (some network mounts), the old one waits as `.<name>.old` for the moment between two
// renames; the next AtomicDirectory puts it back after a crash there.
class AtomicDirectory {
 public:
  // Makes the target's parents and an empty staging folder. A target that is a symbolic link is
  // followed, also where it leads to nothing yet. Error kInvalid: the target is a file, or its
  // parent cannot be written to.
  explicit AtomicDirectory(const std::filesystem::path& target);
  ~AtomicDirectory();  // without commit, the staging folder goes and the target stays as it was
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  // Where to write the files, sub-folders too.
  const std::filesystem::path& staging() const { return staging_; }

  // Syncs every file, then puts the staging folder in the target's place. Once only.
  void commit();

 private:
  std::filesystem::path target_, staging_;
  FileHandle lock_;
};

// True if this name of a file or a folder, without its path, is one that they use beside a target
// while it is written; a killed process leaves it.
bool is_partial_name(std::string_view name);

// Checks an AtomicDirectory's target as far as possible without writing: a name or a path that is
// too long, a file on the way, a folder that cannot be accessed or written to. Error kInvalid: its
// text begins with `field`, the caller's name for the target.
void check_writable(const std::filesystem::path& target, std::string_view field);

}  // namespace twinkle
