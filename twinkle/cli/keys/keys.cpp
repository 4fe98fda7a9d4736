// twinkle keys: makes, lists and revokes the keys of a server's tenants, and limits what a tenant
// may use. A running server sees it within a second.
#include <algorithm>
#include <array>
#include <chrono>
#include <concepts>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/fields/json_codec.h"
#include "twinkle/base/fields/options.h"
#include "twinkle/cli/command.h"
#include "twinkle/cli/keys/table.h"
#include "twinkle/cli/keys/valid.h"
#include "twinkle/server/history/history.h"
#include "twinkle/store/folder_lock.h"
#include "twinkle/store/keys/audit.h"
#include "twinkle/store/keys/keys.h"

namespace twinkle::cli {
namespace {

struct KeysOptions {
  std::string state = "twinkle-state", tenant, expires, id;
  std::vector<std::string> scopes = {"train", "sample"};
  // Options of the tenant's quota, or, of the first and the third, of the key that is made: those
  // that were given.
  std::optional<double> weight, compute_seconds_per_minute;
  std::optional<int32_t> priority;
  std::optional<int64_t> tokens_per_minute, max_runs, max_adapters, max_disk;
};

// Empty: nothing of the quota was given.
store::ChangeQuota change_of(const KeysOptions& o) {
  const bool any = o.weight || o.priority || o.tokens_per_minute || o.compute_seconds_per_minute ||
                   o.max_runs || o.max_adapters || o.max_disk;
  if (!any) return {};
  return [&o](store::Quota& q) {
    q.weight = o.weight.value_or(q.weight);
    q.priority = o.priority.value_or(q.priority);
    q.tokens_per_minute = o.tokens_per_minute.value_or(q.tokens_per_minute);
    q.compute_seconds_per_minute =
        o.compute_seconds_per_minute.value_or(q.compute_seconds_per_minute);
    q.max_runs = o.max_runs.value_or(q.max_runs);
    q.max_adapters = o.max_adapters.value_or(q.max_adapters);
    q.max_disk = o.max_disk.value_or(q.max_disk);
  };
}

int64_t now() {
  const auto time = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(time).count();
}

// For a text with a unit, too: what CLI11 reads as an integer.
std::string as_bytes(const std::string& text) {
  const auto bytes = bytes_of(text);
  if (!bytes)
    throw CLI::ValidationError("'" + text +
                               "' must be bytes: an integer, or with a unit, as 100GB or 100GiB");
  return std::to_string(*bytes);
}

// Tells value and range as `twinkle serve` does, where CLI11 tells neither.
CLI::Validator number(OptionKind kind, const Limits& limits) {
  const AnyOption must{
      .name = "", .help = "", .kind = kind, .limits = limits, .get = {}, .set = {}};
  const auto wrong = [must](const std::string& text) {
    return must.allows(value_of(must, text)) ? "" : "'" + text + "' must be " + must.must_be();
  };
  return CLI::Validator(wrong, "");
}

// "30d", "12h", "30m" from now on, or "2027-01-31", of which the first second is the end. UTC.
int64_t time_of(const std::string& text, int64_t from) {
  constexpr int64_t kMost = 36500;
  int64_t count = 0;
  char unit = 0, more = 0;
  int year = 0;
  unsigned month = 0, day = 0;
  if (std::sscanf(text.c_str(), "%4d-%2u-%2u%c", &year, &month, &day, &more) == 3) {
    const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(month),
                                           std::chrono::day(day)};
    const int64_t out = std::chrono::sys_days(date).time_since_epoch().count() * 86400;
    require(date.ok() && out > from, Code::kInvalid, "cli: --expires ", text,
            date.ok() ? " is past; choose a later day" : " is no day of the calendar");
    return out;
  }
  const int read = std::sscanf(text.c_str(), "%5ld%c%c", &count, &unit, &more);
  require(read == 2 && count >= 1 && count <= kMost && (unit == 'd' || unit == 'h' || unit == 'm'),
          Code::kInvalid, "cli: --expires ", text,
          " must be 1 to 36500 days (30d), hours (12h) or minutes (30m), or a day (2027-01-31)");
  return from + count * (unit == 'd' ? 86400 : unit == 'h' ? 3600 : 60);
}

std::string text_of(int64_t time) {
  const std::chrono::sys_seconds at{std::chrono::seconds(time)};
  const auto days = std::chrono::floor<std::chrono::days>(at);
  const std::chrono::year_month_day date(days);
  const std::chrono::hh_mm_ss clock(at - days);
  char out[32];
  std::snprintf(out, sizeof(out), "%04d-%02u-%02uT%02d:%02dZ", static_cast<int>(date.year()),
                static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                static_cast<int>(clock.hours().count()), static_cast<int>(clock.minutes().count()));
  return out;
}

std::string joined(const std::vector<std::string>& scopes) {
  std::string out;
  for (const std::string& scope : scopes) out += (out.empty() ? "" : ",") + scope;
  return out;
}

// A change of a tenant's quota, for the audit log.
struct Changed {
  store::Quota before, after;

  // The same change, which it takes down; `change` and this outlive it.
  store::ChangeQuota taken_down(const store::ChangeQuota& change) {
    if (!change) return {};
    return [this, &change](store::Quota& quota) {
      before = quota;
      change(quota);
      after = quota;
    };
  }
  // The changes, from what to what, by the names of the file.
  JsonObject told() const {
    JsonObject out;
    const JsonObject from = JsonOf::of(before).as_object(), to = JsonOf::of(after).as_object();
    for (const auto& [name, value] : to)
      if (from.at(name) != value) out[name] = {{"from", from.at(name)}, {"to", value}};
    return out;
  }
};

void note_created(const KeysOptions& o, const store::Key& key, const Changed& changed) {
  JsonObject line{{"action", "keys create"},
                  {"tenant", key.tenant},
                  {"key", key.id},
                  {"scopes", JsonOf::of(key.scopes)}};
  if (o.weight) line["weight"] = *o.weight;
  if (o.priority) line["priority"] = *o.priority;
  if (JsonObject of_tenant = changed.told(); !of_tenant.empty())
    line["changed"] = std::move(of_tenant);
  store::append_audit(o.state, line);
}

// A state's first key: the state does not say whether the server that runs there asks for keys.
void warn_of_open_server(const std::string& state) {
  const auto process = store::holder_of(std::filesystem::path(state) / server::kJournal);
  if (process)
    std::fprintf(
        stderr,
        "a server runs there, process %s: if it was started with auth open, it asks for no "
        "key until it is started again, without auth open\n",
        process->c_str());
}

store::Key wanted(const KeysOptions& o) {
  const int64_t time = now();
  return {.tenant = o.tenant,
          .scopes = o.scopes,
          .created = time,
          .expires = o.expires.empty() ? 0 : time_of(o.expires, time)};
}

void check_quota(const KeysOptions& o) {
  store::Quota quota;
  if (const store::ChangeQuota change = change_of(o)) change(quota);
  store::check(quota);
}

void check_create(const KeysOptions& o) {
  store::check(wanted(o));
  check_quota(o);
}

// The key alone on standard output, so that a script can take it from there.
void create(const KeysOptions& o) {
  KeysOptions of_tenant = o;
  of_tenant.weight.reset();
  of_tenant.priority.reset();
  const store::ChangeQuota change = change_of(of_tenant);
  Changed changed;
  const auto [text, key] =
      store::KeyFile(o.state).create(wanted(o), changed.taken_down(change), {o.weight, o.priority});
  std::fprintf(stderr, "key %s of tenant %s for %s, %s; it is shown this once:\n", key.id.c_str(),
               key.tenant.c_str(), joined(key.scopes).c_str(),
               key.expires == 0 ? "without an end" : ("until " + text_of(key.expires)).c_str());
  std::printf("%s\n", text.c_str());
  note_created(o, key, changed);
  if (num_valid(store::KeyFile(o.state).read()) == 1) warn_of_open_server(o.state);
}

std::string status_of(const store::Key& key) {
  if (key.revoked != 0) return "revoked " + text_of(key.revoked);
  if (key.expires == 0) return "valid";
  return (key.expires <= now() ? "expired " : "valid until ") + text_of(key.expires);
}

std::string text_of_number(double value) {
  std::array<char, 32> out{};
  std::snprintf(out.data(), out.size(), "%.15g", value);
  return out.data();
}
template <std::integral T>
std::string text_of_number(T value) {
  return std::to_string(value);
}

void print_quotas(const std::vector<store::Quota>& quotas) {
  const auto limit = [](auto value) { return value == 0 ? "-" : text_of_number(value); };
  std::vector<Row> rows{{"tenant", "weight", "priority", "tokens/min", "compute-s/min", "runs",
                         "adapters", "disk-bytes"}};
  for (const store::Quota& q : quotas)
    rows.push_back({q.tenant, text_of_number(q.weight), std::to_string(q.priority),
                    limit(q.tokens_per_minute), limit(q.compute_seconds_per_minute),
                    limit(q.max_runs), limit(q.max_adapters), limit(q.max_disk)});
  print_table(rows, {24, 12, 13, 12, 15, 7, 10});
}

// "-": its tenant's.
template <class T>
std::string own(const std::map<std::string, T>& by_id, const store::Key& key) {
  return by_id.contains(key.id) ? text_of_number(by_id.at(key.id)) : "-";
}

void list(const KeysOptions& o) {
  store::KeyTable table = store::KeyFile(o.state).read_table();
  std::vector<Row> rows{{"id", "tenant", "scopes", "created", "weight", "priority", "status"}};
  for (const store::Key& key : table.keys)
    if (o.tenant.empty() || o.tenant == key.tenant)
      rows.push_back({key.id, key.tenant, joined(key.scopes), text_of(key.created),
                      own(table.weights, key), own(table.priorities, key), status_of(key)});
  print_table(rows, {10, 24, 14, 19, 12, 13});
  std::erase_if(table.tenants, [&](const store::Quota& quota) {
    return !o.tenant.empty() && o.tenant != quota.tenant;
  });
  if (table.tenants.empty()) return;
  std::printf("\n");
  print_quotas(table.tenants);
}

void check_limit(const KeysOptions& o) {
  require(change_of(o) != nullptr, Code::kInvalid,
          "cli: name what is to be limited, such as --tokens-per-minute 60000; 'twinkle keys "
          "limit --help' has all");
  check_quota(o);
}

void limit(const KeysOptions& o) {
  const store::ChangeQuota change = change_of(o);
  Changed changed;
  print_quotas({store::KeyFile(o.state).limit(o.tenant, changed.taken_down(change))});
  store::append_audit(
      o.state, {{"action", "keys limit"}, {"tenant", o.tenant}, {"changed", changed.told()}});
}

void check_revoke(const KeysOptions& o) {
  require(!o.id.empty() || !o.tenant.empty(), Code::kInvalid,
          "cli: name the id of a key, or --tenant for all of its keys; 'twinkle keys list' has "
          "the ids");
}

void revoke(const KeysOptions& o) {
  const store::KeyFile file(o.state);
  const auto is_meant = [&](const store::Key& key) {
    return (o.id.empty() || o.id == key.id) && (o.tenant.empty() || o.tenant == key.tenant);
  };
  const auto revoked = file.revoke(is_meant, now());
  if (revoked.empty()) {
    const auto keys = file.read();
    int64_t since = 0;  // the last of them
    for (const store::Key& key : keys)
      if (is_meant(key)) since = std::max(since, key.revoked);
    const std::string which =
        (o.id.empty() ? "" : " " + o.id) + (o.tenant.empty() ? "" : " of tenant " + o.tenant);
    require(since > 0, Code::kNotFound, "cli: there is no key", which, " in ", file.path().string(),
            "; 'twinkle keys list' has the ids");
    fail(Code::kConflict, "cli: ", o.id.empty() ? "every key" : "the key", which,
         " is revoked already, since ", text_of(since));
  }
  for (const store::Key& key : revoked) {
    std::printf("revoked %s of tenant %s\n", key.id.c_str(), key.tenant.c_str());
    store::append_audit(o.state,
                        {{"action", "keys revoke"}, {"tenant", key.tenant}, {"key", key.id}});
  }
}

// `of` and `otherwise`: whose they are, and which they are where they are not given.
void add_standing(CLI::App& command, KeysOptions& o, const std::string& of,
                  const std::array<std::string, 2>& otherwise) {
  using Int = std::numeric_limits<int32_t>;
  command
      .add_option("--weight", o.weight,
                  of + " share of computing among those of its priority, 0.001 to 1000 [" +
                      otherwise[0] + "]")
      ->check(number(OptionKind::kNumber, between(0.001, 1000)));
  command
      .add_option(
          "--priority", o.priority,
          of + " place: higher first, lower ones get what is left over [" + otherwise[1] + "]")
      ->check(number(OptionKind::kInteger, between(Int::min(), Int::max())));
}

// The quota of the tenant, whichever of its keys is used.
void add_quota(CLI::App& command, KeysOptions& o) {
  const CLI::Validator amount = number(OptionKind::kInteger, at_least(0));
  command
      .add_option("--tokens-per-minute", o.tokens_per_minute,
                  "trained and sampled; what is beyond waits [0: no limit, as of all below]")
      ->check(amount);
  command
      .add_option("--compute-seconds-per-minute", o.compute_seconds_per_minute,
                  "its share of the model's time, at least 0.001; what is beyond waits")
      ->check(number(OptionKind::kNumber, at_least(0)));
  command.add_option("--max-runs", o.max_runs, "runs of sessions that have not finished")
      ->check(amount);
  command.add_option("--max-adapters", o.max_adapters, "that are kept to be sampled")
      ->check(amount);
  command.add_option("--max-disk", o.max_disk, "bytes of checkpoints and snapshots, as 100GB")
      ->transform(as_bytes)
      ->type_name("BYTES");
}

}  // namespace

void keys(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "keys", "Make, list and revoke the keys of a server's tenants, and limit what they may use");
  command->require_subcommand(1);
  auto o = std::make_shared<KeysOptions>();
  using Use = void (*)(const KeysOptions&);
  // `check`: of what is wrong with the arguments, whatever the state.
  const auto add = [&](const char* name, const char* what, Use run, Use check) {
    CLI::App* out = command->add_subcommand(name, what);
    out->add_option("--state", o->state, "the server's folder")->capture_default_str();
    out->callback([o, &action, run, check] {
      require(!o->state.empty(), Code::kInvalid,
              "cli: --state is '', it must be the path of a folder");
      check(*o);
      action = [o, run](const std::string&) { run(*o); };
    });
    return out;
  };
  CLI::App* made =
      add("create",
          "Make a key and print it, this once; a server that was started with auth open asks for "
          "none until it is started again",
          create, check_create);
  made->add_option("--tenant", o->tenant, "owner of what is made with it")->required();
  made->add_option("--expires", o->expires,
                   "30d, 12h, 30m, or a day (2027-01-31, UTC); else never");
  made->add_option("--scope", o->scopes, "train, sample or metrics; may be given several times")
      ->capture_default_str();
  add_standing(*made, *o, "its runs'", {"its tenant's", "its tenant's"});
  add_quota(*made, *o);
  CLI::App* limited =
      add("limit", "Change what a tenant may use: only what is named", limit, check_limit);
  limited->add_option("--tenant", o->tenant, "who is limited")->required();
  add_standing(*limited, *o, "its", {"1", "0"});
  add_quota(*limited, *o);
  add("list", "Print the keys' ids and what they are for, not the keys, and tenants' limits", list,
      [](const KeysOptions&) {})
      ->add_option("--tenant", o->tenant, "only its keys");
  CLI::App* ended = add("revoke", "End a key, or all keys of a tenant", revoke, check_revoke);
  ended->add_option("id", o->id, "id of the key");
  ended->add_option("--tenant", o->tenant, "its tenant; without an id all of its keys");
}

}  // namespace twinkle::cli
