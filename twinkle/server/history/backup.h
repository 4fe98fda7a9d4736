// Copies of a service's state, from a server that runs, and back.
#pragma once
#include <cstdint>
#include <filesystem>

namespace twinkle::server {

// Below a state: where the engine parks runs, which no start needs.
inline constexpr const char* kParked = "parked";

struct Copied {
  int64_t num_files = 0, num_bytes = 0;
};

// Copies what a start on `state` would find now: the journal up to here, and all that it names.
// Nothing is stopped; `to` appears whole or not at all. Error kInvalid: no state, `to` is there,
// the system refuses; kBusy: snapshots were replaced faster than they could be copied.
Copied backup(const std::filesystem::path& state, const std::filesystem::path& to);

// Makes a new state of a backup, which stays. Error kInvalid: it is no backup, lacks a snapshot or
// its journal is damaged, `state` is there, the system refuses.
Copied restore(const std::filesystem::path& from, const std::filesystem::path& state);

}  // namespace twinkle::server
