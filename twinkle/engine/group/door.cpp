#include "twinkle/engine/group/door.h"

#include <optional>

#include "twinkle/base/error.h"
#include "twinkle/engine/memory/text_of_error.h"

namespace twinkle::engine {

std::vector<std::string> Door::meet(const std::string& place, const std::string& bytes) const {
  std::optional<mesh::Watch::Waiting> waiting;
  if (group_.watch) waiting.emplace(*group_.watch, place);
  return group_.door->all_gather(bytes);
}

Door::Entry Door::enter(const Operation& mine) {
  const Lock lock(mutex_);
  const std::string name = "operation " + std::to_string(number_ + 1) + ", " + name_of(mine);
  const std::string bytes = to_bytes(mine);
  try {
    const std::vector<std::string> sent = meet(name, bytes);
    std::vector<Operation> of_ranks;
    for (size_t r = 0; r < sent.size(); ++r) {
      if (sent[r].empty()) {
        const std::string why = "engine: rank " + std::to_string(r) + " has closed its engine";
        group_.close(why);
        fail(Code::kInternal, why);
      }
      of_ranks.push_back(from_bytes(sent[r]));
    }
    ++number_;
    return {number_, name, joined(std::move(of_ranks), group_.rank(), number_)};
  } catch (const Error&) {
    std::rethrow_exception(named(std::current_exception(), name));
  } catch (...) {
    // The others have this operation by its number, and this rank has not.
    group_.close("engine: " + name + ": " + text_of(std::current_exception()));
    throw;
  }
}

void Door::close() noexcept {
  const Lock lock(mutex_);
  try {
    for (const std::string& sent : meet(mesh::Watch::kEnd, std::string()))
      if (!sent.empty()) group_.close("engine: a rank has closed its engine");
  } catch (...) {
    // It has been closed by an error already.
  }
}

}  // namespace twinkle::engine
