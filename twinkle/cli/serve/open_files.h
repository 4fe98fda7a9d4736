// How many connections a process may have open: each is a file, of which the system allows so many.
#pragma once
#include <cstdint>

namespace twinkle::cli {

// Files that are no connections: the journal's, those of checkpoints and of the model, the log's.
inline constexpr int64_t kOtherFiles = 64;

// The limit that shells give to processes becomes the higher one that each may ask for, which is
// returned.
int64_t raise_limit_of_files();
// `wanted`, or as many as leave kOtherFiles of so many files. Error kInvalid: none would be left.
int64_t connections_within(int64_t files, int64_t wanted);

}  // namespace twinkle::cli
