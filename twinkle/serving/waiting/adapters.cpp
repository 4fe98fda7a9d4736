#include "twinkle/serving/waiting/adapters.h"

#include <memory>
#include <optional>
#include <utility>

#include "twinkle/base/error.h"

namespace twinkle::server::core {

bool Adapters::remove(const std::string& tenant) {
  try {
    // It comes behind the Samples that have been given it.
    backend_.submit(backend_.check(engine::Delete{tenant}), [](const engine::Outcome&) {});
    return true;
  } catch (const Error&) {
    return false;  // there is no room; the next check tries again
  }
}

// Ends when the engine has been given it: Samples come behind it there.
Task<> Adapters::give(engine::Create create, std::string owner, std::shared_ptr<Made> made) {
  const auto accepted = std::make_shared<std::optional<engine::Accepted>>();
  if (!create.directory.empty()) create.directory = (state_ / create.directory).string();
  auto check = [this, accepted, create]() mutable {
    accepted->emplace(backend_.check(std::move(create), engine::Beyond::kAlone));
  };
  if (create.directory.empty())
    check();
  else
    co_await on(disk_, loop_, check, std::move(owner));
  backend_.submit(std::move(**accepted), [this, made](const engine::Outcome& outcome) {
    loop_.post([made, error = outcome.error] { made->error = error; });
  });
}

Task<> Adapters::ready(engine::Create create, std::string owner) {
  const std::string tenant = create.tenant;
  const auto made = std::make_shared<Made>();
  made->folder = create.directory;
  const auto found = made_.find(tenant);
  const std::shared_ptr<Made> known = found == made_.end() ? nullptr : found->second;
  if (known && known->state == Made::kGiven && !known->error) {
    known->asked = true;
    co_return;
  }
  if (known && known->state == Made::kReading) {
    const Later<bool> later;
    known->waiting.push_back(later);
    co_await later;
    co_return;
  }
  made_[tenant] = made;
  std::exception_ptr error;
  try {
    co_await give(std::move(create), std::move(owner), made);
    made->state = Made::kGiven;
  } catch (const Error& e) {
    made->state = Made::kFailed;
    error = std::current_exception();
    if (e.code == Code::kBusy)
      error = std::make_exception_ptr(
          Error(Code::kBusy,
                "server: the engine has no room for the checkpoint of this sampler now; come "
                "again"));
  } catch (...) {
    made->state = Made::kFailed;
    error = std::current_exception();
  }
  for (const Later<bool>& later : std::exchange(made->waiting, {})) {
    if (error)
      later.fail(error);
    else
      later.set(true);
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace twinkle::server::core
