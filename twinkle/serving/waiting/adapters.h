// Weights that are sampled and trained by nobody: the base model, and the weights of checkpoints
// and of versions that lie on the disk, each a tenant of the engine that is made when it is first
// needed and let go of when nobody asks for it any more. Used by the service's thread alone.
#pragma once
#include <cstdint>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "twinkle/server/loop.h"
#include "twinkle/server/service/backend.h"
#include "twinkle/server/worker.h"
#include "twinkle/serving/domain/task.h"
#include "twinkle/serving/waiting/queues.h"

namespace twinkle::server::core {

class Adapters {
 public:
  // Checks of quiet() without a request, after which the weights of a folder are let go of.
  static constexpr int64_t kChecks = 4;

  Adapters(Backend& backend, Loop& loop, Worker& disk, std::filesystem::path state)
      : backend_(backend), loop_(loop), disk_(disk), state_(std::move(state)) {}

  // The engine's tenant of the base model, or of this folder below the state's.
  static std::string of_base(const std::string& owner) { return "base:" + owner; }
  static std::string of_folder(const std::string& folder) { return "sampler:" + folder; }

  // The engine has been given the tenant: `create` with its name and a folder below the state's, or
  // none. Error kBusy: there is no room for it now; kInvalid, kNotFound: its folder cannot be read.
  Task<> ready(engine::Create create, std::string owner);
  // Why the engine could not make it, where that has just been tried, or null. Its samples fail by
  // that, and the next ready() tries again.
  std::exception_ptr failure(const std::string& tenant) const {
    const auto found = made_.find(tenant);
    return found == made_.end() ? nullptr : found->second->error;
  }

  // Has the engine forget the folders that nobody has asked for in so many calls: they are read
  // again. `is_wanted`: of a tenant for which a request waits.
  template <class IsWanted>
  void let_go_of_quiet(const IsWanted& is_wanted) {
    for (auto it = made_.begin(); it != made_.end();) {
      auto& [tenant, made] = *it;
      made->quiet = std::exchange(made->asked, false) ? 0 : made->quiet + 1;
      const bool goes = made->state == Made::kGiven && !made->error && !made->folder.empty() &&
                        made->quiet >= kChecks && !is_wanted(tenant) && remove(tenant);
      it = goes ? made_.erase(it) : std::next(it);
    }
  }
  // The folder is removed from the disk.
  void forget(const std::string& folder) {
    if (made_.contains(of_folder(folder)) && remove(of_folder(folder)))
      made_.erase(of_folder(folder));
  }

 private:
  struct Made {
    std::string folder;
    enum {
      kReading,
      kGiven,
      kFailed
    } state = kReading;        // kFailed: it is read again when asked for
    std::exception_ptr error;  // kGiven: the engine could not make it
    bool asked = true;         // for, since the last check, ...
    int64_t quiet = 0;         // ... and checks since it was
    std::vector<Later<bool>> waiting;
  };

  bool remove(const std::string& tenant);
  Task<> give(engine::Create create, std::string owner, std::shared_ptr<Made> made);

  Backend& backend_;
  Loop& loop_;
  Worker& disk_;
  const std::filesystem::path state_;
  std::map<std::string, std::shared_ptr<Made>> made_;  // by tenant
};

}  // namespace twinkle::server::core
