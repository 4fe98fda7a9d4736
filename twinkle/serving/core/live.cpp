// Samples that are asked for and heard at once, and kept by nobody.
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/serving/core/core.h"

namespace twinkle::server::core {

Task<std::shared_ptr<Queued>> Core::queue_live(Sampler sampler, engine::Sample sample,
                                               engine::SampleHooks hooks) {
  const Place place = co_await place_of(sampler);
  sample.tenant = place.tenant;
  sample.version = place.version;
  backend_.validate(sample);
  const auto queued = std::make_shared<Queued>();
  queued->id = request_id(sampler.id, 0);
  queued->tenant = place.tenant;
  queued->owner = sampler.owner;
  queued->version = place.version;
  queued->operation = std::move(sample);
  queued->op = op_of(*queued->operation, 0, 0);
  queued->hooks = std::move(hooks);
  queues_.require_room(*queued);
  co_return queued;
}

Task<engine::Outcome> Core::carry_out_live(Sampler sampler, std::shared_ptr<Queued> queued) {
  samples_[queued->id] = queued;
  engine::Outcome outcome = co_await queues_.run(queued);
  samples_.erase(queued->id);
  Used used = outcome.error && outcome.seconds == 0 ? Used{} : queued->op.used;
  used.generated = outcome.error ? outcome.generated : generated_in(outcome.result);
  used.seconds = outcome.seconds;
  domain_.count(sampler.owner, sampler.key_id, queued->id, used);
  queues_.spend(sampler.owner, used.generated, used.seconds);
  co_return outcome;
}

void Core::cancel(const std::string& sampler) {
  const auto found = samples_.find(request_id(sampler, 0));
  if (found != samples_.end()) queues_.cancel(*found->second);
}

}  // namespace twinkle::server::core
