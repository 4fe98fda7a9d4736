// A group whose ranks are threads of one process: for tests, and to try a mesh out without
// processes. Refuses what would end a process in other groups: ranks that call different things, or
// with sizes that do not fit.
#pragma once
#include <memory>
#include <vector>

#include "twinkle/mesh/comm.h"

namespace twinkle::mesh {

// One for each rank. `timeout_s`: how long a call waits for the others.
std::vector<std::unique_ptr<Comm>> thread_comms(int size, double timeout_s = 60);

}  // namespace twinkle::mesh
