#include "twinkle/cli/serve/options.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <ranges>
#include <sstream>

#include "twinkle/base/file.h"
#include "twinkle/cli/device.h"
#include "twinkle/cli/model_path.h"
#include "twinkle/cli/options/flags.h"
#include "twinkle/cli/serve/state.h"
#include "twinkle/engine/device.h"
#include "twinkle/io/checkpoint.h"
#include "twinkle/model/config.h"
#include "twinkle/server/auth/address.h"
#include "twinkle/server/connections/unix_socket.h"
#include "twinkle/store/keys/keys.h"
#include "twinkle/text/rust/shared_tokenizer.h"

namespace twinkle::cli {
namespace {

namespace fs = std::filesystem;

int64_t option_value(const ServeOptions& o, std::string_view name) {
  const auto all = options_of(o);
  return std::ranges::find(all, name, &AnyOption::name)->get().to_number<int64_t>();
}

// With what need not have been given to be so.
std::string told_value(const ServeOptions& o, const char* name) {
  const int64_t value = option_value(o, name);
  return std::to_string(value) +
         (value == option_value(ServeOptions(), name) ? " (its default)" : "");
}

// Limits of one, and of all together.
void require_at_most(const ServeOptions& o, const char* name, const char* name_of_most) {
  require(option_value(o, name) <= option_value(o, name_of_most), Code::kInvalid, "cli: ", name,
          " is ", told_value(o, name), ", it must be at most ", name_of_most, ", ",
          told_value(o, name_of_most), ": lower ", name, ", or raise ", name_of_most);
}

void check_pairs(const ServeOptions& o) {
  require_at_most(o, "max_given", "max_queued");
  require_at_most(o, "max_given_bytes", "max_given_bytes_total");
  require_at_most(o, "max_queued", "max_queued_total");
  require_at_most(o, "max_queued_bytes", "max_queued_bytes_total");
  require_at_most(o, "max_body_bytes", "max_body_bytes_total");
  require(!o.engine.model.value_head, Code::kInvalid,
          "cli: value_head is true, and a service has adapters and samples, neither of which a "
          "value head takes: leave it out; twinkle.TransformersValueModel trains one");
  require(o.engine.model.gathered_bytes == 0, Code::kInvalid, "cli: gathered_bytes is ",
          o.engine.model.gathered_bytes,
          ", and a service has its base in one process, whole: leave it out");
}

// Clients hand it on as it is: where it could be read in two ways, their requests would not arrive.
void check_root_path(const std::string& path) {
  require(path.empty() || (path.size() > 1 && path.starts_with('/') && !path.ends_with('/')),
          Code::kInvalid, "cli: root_path is '", path,
          "', it must begin with '/' and not end with it, as /twinkle");
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("/-._~").find(c) != std::string_view::npos;
  };
  const auto bad = std::ranges::find_if_not(path, is_plain);
  require(bad == path.end(), Code::kInvalid, "cli: root_path is '", path, "', and has '",
          bad == path.end() ? ' ' : *bad,
          "'; it may have letters, digits, '/', '-', '.', '_' and '~'");
  for (const auto part : std::views::split(path, '/')) {
    const std::string_view name(part.begin(), part.end());
    const bool is_first = part.begin() == path.begin();
    require((is_first || !name.empty()) && name != "." && name != "..", Code::kInvalid,
            "cli: root_path is '", path, "', and has the part '", name,
            "'; a part must be a name, as of /team/twinkle");
  }
}

void check_address(const ServeOptions& o) {
  if (!o.http.has_port())
    require(!o.http.unix_socket.empty(), Code::kInvalid,
            "cli: host is 'none', and unix_socket is '': give one of them to listen on");
  else
    require(server::is_address(o.http.address), Code::kInvalid, "cli: host is '", o.http.address,
            "', it must be an IP address, as 127.0.0.1 for this machine alone, 0.0.0.0 for every "
            "network");
  if (!o.http.unix_socket.empty()) server::check_unix_socket(o.http.unix_socket);
}

// The groups of --help, by an option's name; what is of none is the service's own.
std::map<std::string_view, const char*> groups_of(ServeOptions& o) {
  std::map<std::string_view, const char*> out;
  const auto add = [&out](const char* group, auto&... parts) {
    (std::ranges::for_each(options_of(parts), [&](const AnyOption& one) { out[one.name] = group; }),
     ...);
  };
  server::ServiceOptions& s = o.service;
  add("Connections", o.http, o.bodies);
  add("Promises and results", s.promises);
  add("Journal and snapshots", s.journal, s.truncation, s.snapshots);
  add("Tenants", s.lines, s.silence, s.kept);
  add("Model", o.engine.model);
  add("Engine", o.engine.scheduling);
  add("Sampler", o.engine.sampler);
  add("Parking", o.engine.parking);
  return out;
}

}  // namespace

void add_serve_options(CLI::App& command, ServeOptions& options) {
  const auto groups = groups_of(options);
  for (const AnyOption& one : options_of(options)) {
    const auto found = groups.find(one.name);
    const char* const group = found == groups.end() ? "Service" : found->second;
    add_option(command, one)->group(is_served(one.name) ? group : "");
  }
  command.get_option("--auth")->default_str("");  // each start detects it
}

bool is_served(std::string_view name) { return name != "value_head" && name != "gathered_bytes"; }

std::vector<std::string> default_names(const std::string& model) {
  std::vector<std::string> out{model_name(model)};
  if (out[0] != model && model.find("://") == std::string::npos) out.insert(out.begin(), model);
  return out;
}

std::set<const CLI::Option*> settle_options(CLI::App& command, const ServeOptions& o) {
  std::set<const CLI::Option*> out;
  const auto settle = [&](const char* flag, const std::vector<std::string>& values) {
    CLI::Option* const option = command.get_option(flag);
    if (option->count() > 0) return;
    option->add_result(values);
    option->run_callback();
    out.insert(option);
  };
  settle("--name", default_names(o.engine.model.path));
  out.clear();
  settle("--auth", {default_auth(o)});
  settle("--device", {device_or_default(o.engine.model.device)});
  return out;
}

void check_options(const ServeOptions& o) {
  twinkle::check_options(o, "cli: ");
  require(!o.engine.model.path.empty(), Code::kInvalid,
          "cli: model is '', it must be a folder, a file or an id, as smollm2");
  for (const std::string& name : o.names) {
    require(
        !name.empty(), Code::kInvalid,
        "cli: name is '', it must be a text that clients ask for; leave it out for the model's");
    require(name.find(':') == std::string::npos, Code::kInvalid, "cli: name '", name,
            "' must be a text without ':', behind which clients cut it off; give --name");
    require(std::ranges::count(o.names, name) == 1, Code::kInvalid, "cli: name '", name,
            "' is given twice");
  }
  check_root_path(o.root_path);
  check_pairs(o);
  check_address(o);
  require(o.auth == "keys" || !o.http.has_port() || server::is_loopback(o.http.address),
          Code::kInvalid, "cli: auth is open, which lets everybody in, and host '", o.http.address,
          "' is no loopback address; ",
          is_there(store::KeyFile(o.state).path())
              ? "the state has keys: leave auth out"
              : "make keys (twinkle keys create --state " + o.state +
                    " --tenant NAME) and leave auth out",
          ", or listen on 127.0.0.1");
  check_folder(o.state);
  if (!o.engine.parking.directory.empty()) check_park_directory(o.engine.parking.directory);
}

std::string default_auth(const ServeOptions& o) {
  return is_there(store::KeyFile(o.state).path()) ? "keys" : "open";
}

std::string check_service(const ServeOptions& o) {
  check_options(o);
  if (o.http.has_port())  // on a free port: its own may be a running server's
    server::HttpServer({.address = o.http.address});
  engine::device_named(o.engine.model.device);
  const std::string path = model_path(o.engine.model.path, Download::kWithoutWeights);
  std::optional<Checkpoint> checkpoint;  // a hub's model has no weights here
  if (is_there(o.engine.model.path)) checkpoint = Checkpoint::open(path);
  const Json config = checkpoint ? checkpoint->config() : read_json(fs::path(path) / "config.json");
  const model::DecoderSpec spec = model::spec_of(config, path);
  text::decoder_of(path);
  const std::string of_state = check_state(o, spec.family, boost::json::serialize(config),
                                           checkpoint ? &*checkpoint : nullptr);
  std::ostringstream out;
  out << spec.family << " of " << spec.num_layers() << " layers from " << path << " on "
      << o.engine.model.device << "\nnames: ";
  for (size_t i = 0; i < o.names.size(); ++i) out << (i > 0 ? ", " : "") << o.names[i];
  out << "\naddress: " << told_addresses(o.http, o.http.port, o.root_path)
      << "\nauth: " << told_auth(o) << "\nstate: " << fs::absolute(o.state).string();
  out << (of_state.empty() ? "" : ", ") << of_state << "\n";
  return out.str();
}

std::string told_addresses(const server::HttpOptions& http, uint16_t port,
                           const std::string& root_path) {
  std::string out;
  if (http.has_port()) out = server::url_of(http.address, port) + root_path;
  if (http.unix_socket.empty()) return out;
  return out + (out.empty() ? "" : " and ") + "unix:" + fs::absolute(http.unix_socket).string();
}

JsonObject client_flags(const ServeOptions& o) {
  // The SDK's own number, and an estimate of what it sends: half of what may come holds it surely.
  // A piece that is refused as too long leaves a gap in the run's numbers for ever.
  constexpr int64_t kSdksBytes = 5'000'000;
  JsonObject out{
      {"fwdbwd_max_chunk_bytes_count", std::min(kSdksBytes, o.bodies.max_body_bytes / 2)},
      // SDKs before 0.37 ask in this way for a run of a checkpoint; later ones know no other.
      {"create_model_via_load_weights", true}};
  if (o.compress) out["proto_compress_fwdbwd"] = true;
  return out;
}

std::string without_root(const std::string& path, const std::string& root_path) {
  const size_t n = root_path.size();
  const bool is_below = path.starts_with(root_path) && path.size() > n && path[n] == '/';
  return is_below ? path.substr(n) : path;
}

}  // namespace twinkle::cli
