#include "twinkle/server/metrics/metrics.h"

#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string_view>

#include "twinkle/server/service/services.h"

namespace twinkle::server {
namespace {

constexpr size_t kMaxTenants = 100;  // that have numbers of their own

// The text format, line by line.
class MetricLines {
 public:
  MetricLines() { out.precision(15); }  // counts of seconds grow, and must not stand still
  void head(std::string_view name, std::string_view type, std::string_view help) {
    out << "# HELP " << name << ' ' << help << "\n# TYPE " << name << ' ' << type << '\n';
  }
  void one(std::string_view name, std::string_view type, std::string_view help, auto value) {
    head(name, type, help);
    out << name << ' ' << value << '\n';
  }

  std::ostringstream out;
};

// Bytes of this process; 0 where the system does not tell.
int64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  int64_t all = 0, resident = 0;
  in >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

void write_tenants(MetricLines& lines, const Usage& usage) {
  const std::vector<UsageLine> tenants = usage.by_tenant(kMaxTenants);
  lines.head("twinkle_tenant_requests_total", "counter", "Operations that ended, of a tenant.");
  for (const UsageLine& t : tenants)
    lines.out << "twinkle_tenant_requests_total{tenant=\"" << t.tenant << "\"} " << t.requests
              << '\n';
  lines.head("twinkle_tenant_tokens_total", "counter", "Tokens of a tenant.");
  for (const UsageLine& t : tenants)
    for (const auto& [kind, number] :
         {std::pair("trained", t.used.trained), std::pair("prompt", t.used.prompt),
          std::pair("generated", t.used.generated)})
      lines.out << "twinkle_tenant_tokens_total{tenant=\"" << t.tenant << "\",kind=\"" << kind
                << "\"} " << number << '\n';
  lines.head("twinkle_tenant_compute_seconds_total", "counter",
             "A tenant's share of the engine's time.");
  for (const UsageLine& t : tenants)
    lines.out << "twinkle_tenant_compute_seconds_total{tenant=\"" << t.tenant << "\"} "
              << t.used.seconds << '\n';
}

void write_engine(MetricLines& lines, const Backend& backend) {
  const engine::Stats engine = backend.stats();
  const engine::ParkingStats parking = backend.parking();
  lines.one("twinkle_engine_operations", "gauge", "Operations queued in the engine or running.",
            engine.num_queued);
  lines.one("twinkle_runs_parked", "gauge",
            "Runs whose state waits in a file for their next request.", parking.num_parked);
  lines.one("twinkle_parking_failures_total", "counter",
            "Parkings that the disk refused; those runs stayed in memory.", parking.num_failures);
  lines.one("twinkle_training_tokens_total", "counter", "Tokens that training batches have run.",
            engine.batches.num_tokens);
  lines.one("twinkle_training_seconds_total", "counter", "Time of training.",
            engine.training_seconds);
  lines.one("twinkle_sampling_seconds_total", "counter", "Time of sampling.",
            engine.sampling_seconds);
  lines.one("twinkle_prefix_tokens_total", "counter",
            "Tokens of prompts whose keys and values were there already.",
            backend.sampling().num_shared_tokens);
}

}  // namespace

void Metrics::count(const std::string& route, int status,
                    std::chrono::steady_clock::time_point came) {
  ++requests_[{route, status}];
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - came;
  times_[route].add(time.count());
}

std::string Metrics::text(const Services& s) const {
  MetricLines lines;
  lines.head("twinkle_build_info", "gauge", "1; the program that serves, by its labels.");
  lines.out << "twinkle_build_info{version=\"" << build.version << "\",build=\"" << build.id
            << "\",torch=\"" << build.torch << "\"} 1\n";
  lines.one("process_resident_memory_bytes", "gauge", "Memory of the process that is in RAM.",
            resident_bytes());
  lines.head("twinkle_requests_total", "counter", "Requests answered since the start.");
  for (const auto& [of, number] : requests_)
    lines.out << "twinkle_requests_total{route=\"" << of.first << "\",status=\"" << of.second
              << "\"} " << number << '\n';
  lines.head("twinkle_request_seconds", "histogram", "Time from a request's head to its response.");
  for (const auto& [route, times] : times_)
    times.write(lines.out, "twinkle_request_seconds", "route=\"" + route + '"');
  lines.one("twinkle_promises_open", "gauge", "Accepted requests whose result is not there yet.",
            s.promises.num_open());
  lines.one("twinkle_operations_waiting", "gauge", "Operations that wait for the engine's room.",
            s.operations.num_waiting());
  lines.one("twinkle_polls_held", "gauge", "Polls that wait for a result.", s.promises.num_held());
  lines.one("twinkle_result_bytes", "gauge", "Bytes of results in memory.", s.promises.num_bytes());
  write_engine(lines, s.backend);
  operations.write(lines.out);
  lines.one("twinkle_requests_held", "gauge", "Accepted requests that a tenant's rates hold.",
            s.rates.num_held());
  write_tenants(lines, s.usage);
  lines.one("twinkle_journal_refused", "gauge",
            "1 while the disk refuses what is to be journalled.",
            s.history.trouble().empty() ? 0 : 1);
  lines.one("twinkle_states_taken_total", "counter",
            "States that took the place of the journal's records since the start.",
            s.truncation.num_taken());
  lines.one("twinkle_states_given_up_total", "counter", "States that could not be taken.",
            s.truncation.num_given_up());
  return lines.out.str();
}

}  // namespace twinkle::server
