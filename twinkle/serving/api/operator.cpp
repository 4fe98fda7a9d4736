// For the operator: whether the service is alive, whether it can work, and what it counts.
#include "twinkle/serving/api/operator.h"

#include <array>
#include <charconv>
#include <set>

#include "twinkle/base/error.h"
#include "twinkle/serving/core/quotas.h"

namespace twinkle::server::api {
namespace {

// 23.0, where boost would write 2.3E1.
std::string plain(double seconds) {
  std::array<char, 64> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), seconds,
                                 std::chars_format::fixed);
  std::string text(digits.data(), end.ptr);
  if (text.find('.') == text.npos) text += ".0";
  return text;
}

// A line for each tenant with limits of amounts: what it has, next to those.
JsonArray amounts(const core::Core& core) {
  std::set<std::string> owners;
  for (const auto& [id, run] : core.domain().runs()) owners.insert(run.owner);
  JsonArray out;
  for (const std::string& owner : owners) {
    const store::Quota quota = core.quota_of(owner);
    JsonObject line{{"tenant", owner}};
    // A count goes through all runs: where nothing limits it none is made.
    const auto add = [&](const char* name, int64_t limit, const auto& has) {
      if (limit == 0) return;
      line[name] = has();
      line[std::string("max_") + name] = limit;
    };
    add("runs", quota.max_runs, [&] { return core::num_runs(core, owner); });
    add("adapters", quota.max_adapters, [&] { return core.domain().num_adapters(owner); });
    add("disk", quota.max_disk, [&] { return core.domain().num_disk_bytes(owner); });
    if (line.size() > 1) out.push_back(std::move(line));
  }
  return out;
}

Task<Response> healthz(Call&) { co_return json({{"status", "ok"}}); }

Task<Response> readyz(Call& call) {
  const auto later = [](const char* why) {
    Response out = refusal(503, why);
    out.headers.emplace_back("Retry-After", "1");
    return out;
  };
  if (!call.core.log().trouble().empty())
    co_return later("server: the disk refuses what is to be journalled");
  if (!call.service.access.is_read()) co_return later("server: the keys cannot be read");
  co_return json({{"status", "ready"}});
}

Task<Response> usage(Call& call) {
  std::string out = R"({"usage":[)";
  for (const UsageLine& line : call.core.domain().usage().lines()) {
    std::string text =
        boost::json::serialize(JsonObject{{"tenant", line.tenant},
                                          {"key", line.key},
                                          {"run", line.run},
                                          {"requests", line.requests},
                                          {"trained_tokens", line.used.trained},
                                          {"prompt_tokens", line.used.prompt},
                                          {"generated_tokens", line.used.generated}});
    text.back() = ',';
    text.append(R"("compute_seconds":)").append(plain(line.used.seconds));
    out.append(out.back() == '}' ? "," : "").append(text).append("}");
  }
  out.append("],\"tenants\":").append(boost::json::serialize(amounts(call.core)));
  co_return Response{.body = out.append("}")};
}

Task<Response> metrics(Call& call) {
  co_return Response{.body = metrics_text(call.core, call.service),
                     .content_type = "text/plain; version=0.0.4"};
}

}  // namespace

std::span<const Route> operator_routes() {
  static constexpr std::array kRoutes = {
      Route{"GET", "/healthz", healthz, Scope::kPublic, Form::kNone},
      Route{"HEAD", "/healthz", healthz, Scope::kPublic, Form::kNone},
      Route{"GET", "/readyz", readyz, Scope::kPublic, Form::kNone},
      Route{"GET", "/api/v1/healthz", healthz, Scope::kPublic, Form::kNone},
      Route{"GET", "/metrics", metrics, Scope::kMetrics, Form::kNone},
      Route{"GET", "/api/v1/usage", usage, Scope::kMetrics, Form::kNone},
      Route{"GET", "/hf/{path...}", hub, Scope::kAny, Form::kNone},
      Route{"HEAD", "/hf/{path...}", hub, Scope::kAny, Form::kNone},
  };
  return kRoutes;
}

}  // namespace twinkle::server::api
