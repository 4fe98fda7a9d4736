// twinkle usage: what a tenant has used of a service, as the service tells it, in a table.
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/fields/options.h"
#include "twinkle/base/json.h"
#include "twinkle/cli/command.h"
#include "twinkle/cli/keys/table.h"
#include "twinkle/cli/run/python_module.h"

namespace twinkle::cli {
namespace {

constexpr std::chrono::seconds kPatience{60};  // more than the module's own

struct UsageOptions {
  std::string url = "http://127.0.0.1:8000", key;
};

void check(UsageOptions& o) {
  require(o.url.starts_with("http://") || o.url.starts_with("https://"), Code::kInvalid,
          "cli: --url is '", o.url, "', it must begin with http:// or https://");
  while (o.url.ends_with('/')) o.url.pop_back();
  const char* const key = std::getenv("TINKER_API_KEY");
  if (o.key.empty() && key != nullptr) o.key = key;
}

// The answer of GET /api/v1/usage. HTTPS and proxies are Python's business.
Json asked(const UsageOptions& o) {
  PythonModule module({"service.ask"});
  const JsonObject request{{"url", o.url + "/api/v1/usage"}, {"key", o.key}};
  module.send(boost::json::serialize(request) + '\n', kPatience);
  const auto line = module.receive(kPatience);
  require(line.has_value(), Code::kInternal,
          "cli: python -m twinkle.service.ask gave no answer; TWINKLE_PYTHON names the interpreter "
          "that has the package");
  const Json answer = parse_json(*line, "cli: the answer of twinkle.service.ask");
  const auto status = get<int64_t>(answer, "status");
  const auto text = get<std::string>(answer, "text");
  require(status != 0, Code::kNotFound, "cli: nothing answers at ", o.url, ": ", text,
          "; name the server by --url");
  const auto told = json_in(text);
  const std::string why = told ? get_or<std::string>(*told, "detail", text) : text;
  require(status == 200, Code::kInvalid, "cli: ", o.url, " answers ", status, ": ",
          why.substr(0, 300), status == 401 ? "; name a key by --key or TINKER_API_KEY" : "");
  for (const char* list : {"usage", "tenants"}) {
    const Json* const found = told ? find(*told, list) : nullptr;
    require(found && found->is_array(), Code::kInvalid, "cli: ", o.url,
            " is no service of Twinkle's: its /api/v1/usage has no ", list);
  }
  return *told;
}

void print_usage(const Json& told) {
  std::vector<Row> rows{
      {"tenant", "key", "run", "requests", "trained", "prompt", "generated", "compute-s"}};
  for (const Json& line : told.at("usage").as_array()) {
    const auto number = [&](const char* name) { return std::to_string(get<int64_t>(line, name)); };
    std::array<char, 32> seconds{};
    std::snprintf(seconds.data(), seconds.size(), "%.1f", get<double>(line, "compute_seconds"));
    const auto key = get<std::string>(line, "key");
    rows.push_back({get<std::string>(line, "tenant"), key.empty() ? "-" : key,
                    get<std::string>(line, "run"), number("requests"), number("trained_tokens"),
                    number("prompt_tokens"), number("generated_tokens"), seconds.data()});
  }
  print_table(rows, {16, 10, 42, 10, 12, 12, 12});
}

// Amounts that tenants have, next to their limits.
void print_amounts(const Json& told) {
  std::vector<Row> rows{{"tenant", "runs", "adapters", "disk-bytes"}};
  for (const Json& line : told.at("tenants").as_array()) {
    const auto of = [&](const std::string& name) -> std::string {
      if (!find(line, name)) return "-";
      return std::to_string(get<int64_t>(line, name)) + " of " +
             std::to_string(get<int64_t>(line, "max_" + name));
    };
    rows.push_back({get<std::string>(line, "tenant"), of("runs"), of("adapters"), of("disk")});
  }
  if (rows.size() == 1) return;
  std::printf("\n");
  print_table(rows, {16, 14, 14});
}

}  // namespace

void usage(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("usage", "Print what a tenant has used of a service, by key and run");
  auto o = std::make_shared<UsageOptions>();
  command->add_option("--url", o->url, "of the service")->capture_default_str();
  command->add_option("--key", o->key,
                      "whose tenant's use is told, of scope metrics that of all [TINKER_API_KEY]");
  command->callback([o, &action] {
    check(*o);
    action = [o](const std::string&) {
      const Json told = asked(*o);
      print_usage(told);
      print_amounts(told);
    };
  });
}

}  // namespace twinkle::cli
