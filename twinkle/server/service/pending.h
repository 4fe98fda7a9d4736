// An operation that the engine has not been given. What the journal has written down waits as a few
// words, and is made of its request again when its turn comes: so what was accepted is bounded by
// the disk and not by memory.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "twinkle/engine/protocol/operation.h"
#include "twinkle/engine/protocol/result.h"
#include "twinkle/server/history/records.h"
#include "twinkle/server/http/message.h"
#include "twinkle/server/listener.h"
#include "twinkle/server/tenants/usage.h"

namespace twinkle::server {

// The answer of a promise from the operation's result.
using Answered = std::function<Response(const engine::Result&)>;

struct Ready {
  engine::Operation operation;
  Answered answer;
};

// Where an operation is when it is not in memory.
struct Source {
  uint64_t sequence = 0;  // of its command in the journal; 0: nowhere, it stays in memory
  int64_t bytes = 0;      // of the command's body or of the operation, whichever has more
  std::function<Ready(const Command&)> make = {};  // the same each time; holds a few words
};

struct Pending {
  // What an end changes; before the promise is settled.
  using OnEnd = std::function<void(const Ended&)>;

  Pending(std::string request_id, Ready ready, Source source = {}, OnEnd on_end = {})
      : request_id(std::move(request_id)),
        tenant(engine::tenant_of(ready.operation)),
        source(std::move(source)),
        on_end(std::move(on_end)) {
    become(std::move(ready));
  }

  // Of another operation of the same tenant.
  void become(Ready other) {
    const engine::Operation& o = other.operation;
    steps = std::holds_alternative<engine::Step>(o);
    accumulates = steps || std::holds_alternative<engine::ForwardBackward>(o);
    const auto* sample = std::get_if<engine::Sample>(&o);
    samples = sample != nullptr;
    const auto* create = std::get_if<engine::Create>(&o);
    const auto* load = std::get_if<engine::Load>(&o);
    creates = create != nullptr;
    reads = create ? create->directory : load ? load->directory : "";
    publishes = std::holds_alternative<engine::Publish>(o);
    saves = std::holds_alternative<engine::Save>(o);
    used = used_by(o);
    version = sample ? sample->version : 0;
    // A Save changes folders alone, and a recorded one has made its own.
    changes_engine = !samples && !saves && !std::holds_alternative<engine::Forward>(o);
    ready = std::move(other);
  }

  // Keeps the words alone, if the journal has the rest.
  void let_go() {
    if (source.sequence > 0) ready.reset();
  }

  std::string request_id, tenant;
  bool accumulates = false;  // or steps: its failure breaks the window
  bool steps = false, samples = false, changes_engine = false;
  bool creates = false, publishes = false, saves = false;
  std::string reads;         // the folder of a checkpoint, or empty
  int64_t version = 0;       // that a Sample samples
  bool is_unread = false;    // its record could not be read so far, which was told
  bool came_before = false;  // this start, whose limits may be lower
  std::string owner;         // in whose share of the engine's room it is; empty: of nobody's
  bool is_rated = true;      // the owner's rates may hold it
  bool may_go = false;       // as far as they say
  int64_t held = 0;          // bytes of the engine's memory, with its result's
  Used used;                 // without what its end adds
  std::optional<Ready> ready = {};
  Source source;
  std::string key_id;                  // of a Sample with ...
  std::shared_ptr<Listener> listener;  // ... one, which has no promise
  engine::SampleHooks hooks;           // likewise
  OnEnd on_end;
  std::function<void()> on_given = {};  // the engine has just been given it
  std::function<void()> on_place = {};  // its place there has just become free
};

}  // namespace twinkle::server
