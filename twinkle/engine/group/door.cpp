#include "twinkle/engine/group/door.h"

#include "twinkle/base/error.h"

namespace twinkle::engine {

Door::Entry Door::enter(const Operation& mine) {
  const Lock lock(mutex_);
  const std::vector<std::string> sent = group_.door->all_gather(to_bytes(mine));
  ++number_;
  std::vector<Operation> of_ranks;
  for (size_t r = 0; r < sent.size(); ++r) {
    if (sent[r].empty()) {
      const std::string why = "engine: rank " + std::to_string(r) + " has closed its engine";
      group_.close(why);
      fail(Code::kInternal, why);
    }
    of_ranks.push_back(from_bytes(sent[r]));
  }
  return {number_, joined(std::move(of_ranks), group_.rank(), number_)};
}

void Door::close() noexcept {
  const Lock lock(mutex_);
  try {
    for (const std::string& sent : group_.door->all_gather(std::string()))
      if (!sent.empty()) group_.close("engine: a rank has closed its engine");
  } catch (const std::exception&) {
    // It has been closed by an error already.
  }
}

}  // namespace twinkle::engine
