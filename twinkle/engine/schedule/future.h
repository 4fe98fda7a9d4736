// The outcome of an operation as a future, for callers that wait.
#pragma once
#include <cstdint>
#include <future>
#include <memory>
#include <utility>

#include "twinkle/engine/protocol/result.h"
#include "twinkle/engine/schedule/held_bytes.h"

namespace twinkle::engine {

// The result of one operation, and the id to cancel it by. A caller that shares the future keeps
// `room` until the result is taken.
struct Future : std::future<Result> {
  int64_t id = 0;
  std::shared_ptr<HeldBytes::Room> room = {};  // the result's share of max_queued_bytes

  Result get() {
    const auto until_taken = std::move(room);
    return std::future<Result>::get();
  }
};

}  // namespace twinkle::engine
