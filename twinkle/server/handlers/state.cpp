// For the operator: whether the service is alive, whether it can work, and what it counts.
#include <array>
#include <charconv>
#include <set>

#include "twinkle/server/routes.h"

namespace twinkle::server {
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

}  // namespace

std::optional<Response> healthz(Call&) { return json({{"status", "ok"}}); }

std::optional<Response> readyz(Call& call) {
  const Services& s = call.services;
  const auto later = [](const char* why) {
    Response out = refusal(503, why);
    out.headers.emplace_back("Retry-After", "1");
    return out;
  };
  if (!s.history.trouble().empty())
    return later("server: the disk refuses what is to be journalled");
  if (!s.access.is_read()) return later("server: the keys cannot be read");
  return json({{"status", "ready"}});
}

namespace {

// Amounts that these tenants have, next to their limits of those. Bytes are known of who is limited
// in them, as measured before the last save or run.
JsonArray amounts(const Services& s, const std::set<std::string>& owners) {
  JsonArray out;
  for (const std::string& owner : owners) {
    const store::Quota quota = s.quota_of(owner);
    JsonObject line{{"tenant", owner}};
    const auto add = [&](const char* name, const auto& has, int64_t limit) {
      if (limit == 0) return;
      line[name] = has();
      line[std::string("max_") + name] = limit;
    };
    add("runs", [&] { return s.amounts.num_runs(s, owner); }, quota.max_runs);
    add("adapters", [&] { return s.amounts.num_adapters(s, owner); }, quota.max_adapters);
    add("disk", [&] { return s.amounts.num_bytes(s, owner); }, quota.max_disk);
    if (line.size() > 1) out.push_back(std::move(line));
  }
  return out;
}

}  // namespace

std::optional<Response> usage(Call& call) {
  const Services& s = call.services;
  const bool is_of_all = s.access.has_scope(call.key_id, Scope::kMetrics);
  std::set<std::string> owners;
  if (!is_of_all) owners.insert(call.owner);
  for (const auto& [id, run] : s.runs.all())
    if (is_of_all) owners.insert(run.owner);
  std::string out = R"({"usage":[)";
  for (const UsageLine& line : s.usage.lines()) {
    if (!is_of_all && line.tenant != call.owner) continue;
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
  out.append("],\"tenants\":").append(boost::json::serialize(amounts(s, owners)));
  return Response{.body = out.append("}")};
}

std::optional<Response> metrics(Call& call) {
  return Response{.body = call.services.metrics.text(call.services),
                  .content_type = "text/plain; version=0.0.4"};
}

}  // namespace twinkle::server
