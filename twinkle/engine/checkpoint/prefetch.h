// What operations take from files, read on the thread that submits them: the engine's own never
// waits for a file system because of an adapter's folder. Who trains all weights is alone on the
// engine, which then reads for itself. Any thread.
#pragma once
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "twinkle/engine/checkpoint/load.h"
#include "twinkle/engine/schedule/executor.h"

namespace twinkle::engine {

// For an adapter's Load, or its Create from a directory.
struct PreparedAdapter : Prepared {
  Loaded loaded;
  std::exception_ptr error;  // why it could not be read; or null
};

class Prefetch {
 public:
  explicit Prefetch(const BaseModel& base) : base_(base) {}  // which outlives it

  // As Executor::prepare. A folder that a queued Save is still to write is left for run().
  std::shared_ptr<Prepared> prepare(const Operation& operation, const Reserve& reserve);

 private:
  // The folders of Saves that have not ended.
  struct Folders {
    std::mutex mutex;
    std::multiset<std::string> names;
  };
  struct PreparedSave;
  bool is_awaited(const std::string& directory) const;

  const BaseModel& base_;
  const std::shared_ptr<Folders> awaited_ = std::make_shared<Folders>();
};

}  // namespace twinkle::engine
