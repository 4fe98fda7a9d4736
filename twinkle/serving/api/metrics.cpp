#include "twinkle/serving/api/operator.h"

#include <sstream>
#include <string_view>

namespace twinkle::server::api {
namespace {

constexpr size_t kMaxTenants = 100;  // that have numbers of their own

}  // namespace

std::string metrics_text(core::Core& core, const Service& service) {
  const engine::Stats engine = core.backend().stats();
  const engine::ParkingStats parking = core.backend().parking();
  std::ostringstream out;
  const auto head = [&](std::string_view name, std::string_view type, std::string_view help) {
    out << "# HELP " << name << ' ' << help << "\n# TYPE " << name << ' ' << type << '\n';
  };
  const auto one = [&](std::string_view name, std::string_view type, std::string_view help,
                       auto value) {
    head(name, type, help);
    out << name << ' ' << value << '\n';
  };
  head("twinkle_requests_total", "counter", "Requests answered since the start.");
  for (const auto& [of, number] : service.requests)
    out << "twinkle_requests_total{route=\"" << of.first << "\",status=\"" << of.second << "\"} "
        << number << '\n';
  one("twinkle_promises_open", "gauge", "Accepted requests whose result is not there yet.",
      core.domain().num_open());
  one("twinkle_operations_waiting", "gauge", "Operations that wait for the engine's room.",
      core.queues().num_waiting());
  one("twinkle_polls_held", "gauge", "Polls that wait for a result.", core.futures().num_held());
  one("twinkle_result_bytes", "gauge", "Bytes of results in memory.", core.futures().num_bytes());
  one("twinkle_engine_operations", "gauge", "Operations queued in the engine or running.",
      engine.num_queued);
  one("twinkle_runs_parked", "gauge", "Runs whose state waits in a file for their next request.",
      parking.num_parked);
  one("twinkle_parking_failures_total", "counter",
      "Parkings that the disk refused; those runs stayed in memory.", parking.num_failures);
  one("twinkle_training_tokens_total", "counter", "Tokens that training batches have run.",
      engine.batches.num_tokens);
  one("twinkle_training_seconds_total", "counter", "Time of training.", engine.training_seconds);
  one("twinkle_sampling_seconds_total", "counter", "Time of sampling.", engine.sampling_seconds);
  one("twinkle_prefix_tokens_total", "counter",
      "Tokens of prompts whose keys and values were there already.",
      core.backend().sampling().num_shared_tokens);
  one("twinkle_requests_held", "gauge", "Accepted requests that a tenant's rates hold.",
      core.queues().num_held());
  const std::vector<UsageLine> tenants = core.domain().usage().by_tenant(kMaxTenants);
  head("twinkle_tenant_requests_total", "counter", "Operations that ended, of a tenant.");
  for (const UsageLine& t : tenants)
    out << "twinkle_tenant_requests_total{tenant=\"" << t.tenant << "\"} " << t.requests << '\n';
  head("twinkle_tenant_tokens_total", "counter", "Tokens of a tenant.");
  for (const UsageLine& t : tenants)
    for (const auto& [kind, number] :
         {std::pair("trained", t.used.trained), std::pair("prompt", t.used.prompt),
          std::pair("generated", t.used.generated)})
      out << "twinkle_tenant_tokens_total{tenant=\"" << t.tenant << "\",kind=\"" << kind << "\"} "
          << number << '\n';
  head("twinkle_tenant_compute_seconds_total", "counter", "A tenant's share of the engine's time.");
  for (const UsageLine& t : tenants)
    out << "twinkle_tenant_compute_seconds_total{tenant=\"" << t.tenant << "\"} " << t.used.seconds
        << '\n';
  one("twinkle_journal_refused", "gauge", "1 while the disk refuses what is to be journalled.",
      core.log().trouble().empty() ? 0 : 1);
  one("twinkle_states_taken_total", "counter",
      "States that took the place of the journal's records since the start.", core.num_states());
  one("twinkle_states_given_up_total", "counter", "States that could not be taken.",
      core.num_states_given_up());
  return out.str();
}

}  // namespace twinkle::server::api
