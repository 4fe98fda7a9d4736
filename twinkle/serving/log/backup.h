// Copies of a service's state, from a server that runs, and back; and a check that a state, which
// may be a copy by other means, has what a start needs.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "twinkle/serving/domain/domain.h"

namespace twinkle::server::core {

// Below a state: its journal, and where the engine parks runs, which no start needs.
inline constexpr const char* kJournal = "journal";
inline constexpr const char* kParked = "parked";

struct Copied {
  int64_t num_files = 0, num_bytes = 0;
  // Folders of versions and checkpoints that were not there to copy: nothing but an operator
  // removes one that the journal names.
  std::vector<std::filesystem::path> missing = {};
};

// Error kInvalid: the journal holds nothing, but there are snapshots or checkpoints, which a start
// would take for nobody's; or a run's snapshot, which it names, is not there; each with the folder,
// what is missing and what to do. A version that is missing is missed by its samplers alone, and a
// checkpoint by what begins with it.
void require_whole(const std::filesystem::path& state, const Domain& of_journal);

// Copies what a start on `state` would find now: the journal up to here, and all that it names.
// Nothing is stopped; `to` appears whole or not at all. Error kInvalid: no state, `to` is there,
// the system refuses, a snapshot is not there; kInternal: the disk is full, or fails; kBusy:
// folders were replaced faster than they could be copied.
Copied backup(const std::filesystem::path& state, const std::filesystem::path& to);

// Makes a new state of a backup, which stays. Errors as of require_whole; kInvalid, too: it is no
// backup, its journal is damaged, `state` is there, the system refuses; kInternal: as of backup.
Copied restore(const std::filesystem::path& from, const std::filesystem::path& state);

}  // namespace twinkle::server::core
