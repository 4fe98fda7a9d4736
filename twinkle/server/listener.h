// Who hears a Sample as it runs, in place of a promise: nothing of it is kept or journalled. Called
// on the service's thread.
#pragma once
#include <span>

#include "twinkle/engine/schedule/accepted.h"
#include "twinkle/engine/schedule/hooks.h"

namespace twinkle::server {

class Listener {
 public:
  virtual ~Listener() = default;
  // True: it wants its tokens as they come; else they are in the result alone.
  virtual bool wants_tokens() const = 0;
  // It waits for the engine, which may yet refuse it.
  virtual void on_accepted() = 0;
  virtual void on_tokens(std::span<const engine::TokenEvent> events) = 0;
  // Its end, once, and nothing more. Errors are those that a client may be told.
  virtual void on_end(engine::Outcome outcome) = 0;
};

}  // namespace twinkle::server
