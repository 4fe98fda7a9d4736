// All that this protocol needs of the service. The service's thread alone.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "twinkle/engine/protocol/operation.h"
#include "twinkle/server/auth/access.h"
#include "twinkle/server/listener.h"
#include "twinkle/server/loop.h"
#include "twinkle/server/service/backend.h"
#include "twinkle/server/worker.h"

namespace twinkle::server::openai {

class Core {
 public:
  virtual ~Core() = default;
  virtual Loop& loop() = 0;
  virtual Worker& texts() = 0;  // for templates and tokenizers, which take long
  virtual const ModelFacts& model() const = 0;
  virtual int64_t max_result_bytes() const = 0;
  // Paths of the caller's checkpoints.
  virtual std::vector<std::string> checkpoints(const Caller& caller) const = 0;
  // The engine's tenant that samples a served name or a checkpoint of the caller. Error kNotFound:
  // it is neither.
  virtual std::string tenant_of(const std::string& model, const Caller& caller) = 0;
  // Has its tenant read where it must be, and gives it to the engine within the caller's quotas.
  // Errors are told by on_end: kBusy, where there is no room now. `id` is new.
  virtual void sample(const Caller& caller, const std::string& id, engine::Sample sample,
                      std::shared_ptr<Listener> listener) = 0;
  // Nobody wants it any more. Nothing, where it has ended.
  virtual void cancel(const std::string& id) = 0;
};

}  // namespace twinkle::server::openai
