// A group of torch.distributed whose ranks a Watch knows.
#pragma once
#include <memory>
#include <string>

#include "twinkle/mesh/comm.h"
#include "twinkle/mesh/watch.h"

namespace twinkle::mesh {

// As c10d_comm of the name alone. `watch` tells whose end an error is, and what has ended on other
// ranks in the scope of this group, its name up to the last '/': a call that waits is left then. So
// is one whose thread is interrupted (base/parallel.h), but for sends and receives: the group ends.
std::unique_ptr<Comm> c10d_comm(const std::string& name, std::shared_ptr<Watch> watch);

}  // namespace twinkle::mesh
