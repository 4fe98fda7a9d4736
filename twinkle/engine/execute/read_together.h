// Files that every rank of a group reads for itself: an error of one is that of all, by its rank,
// and folders of one name on several machines must hold the same. The engine's thread.
#pragma once
#include <filesystem>
#include <functional>
#include <string>

#include "twinkle/engine/checkpoint/load.h"
#include "twinkle/mesh/comm.h"

namespace twinkle::engine {

// Ranks may read different parts of the files: what one finds in its own, all of them throw, after
// "engine: rank 1: ", unless all have found the same.
void read_together(mesh::Comm& comm, const std::function<void()>& read);

// The same, of an adapter or a checkpoint in `folder`, of which all ranks must have read the same.
// Error kInvalid, too: names the folder and a rank whose folder is another.
Loaded read_alike(mesh::Comm& comm, const std::filesystem::path& folder,
                  const std::function<Loaded()>& read);

}  // namespace twinkle::engine
