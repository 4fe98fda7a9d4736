// The options of `twinkle serve`, and checks of them before weights are loaded.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/base/fields/options.h"
#include "twinkle/base/json.h"
#include "twinkle/base/log/log.h"
#include "twinkle/engine/engine.h"
#include "twinkle/server/bodies/body_room.h"
#include "twinkle/server/http/server.h"
#include "twinkle/server/service/services.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace twinkle::cli {

// An option of a part is declared beside the part's class, and is one of the command, of its YAML
// file and of docs/options.md by that alone.
struct ServeOptions {
  std::string state = "twinkle-state";
  std::string auth = "open";  // the command's: default_auth
  std::vector<std::string> names;
  bool accept_other_arithmetic = false;
  bool compress = false;
  Level log_level = Level::kInfo;
  std::string root_path;
  server::HttpOptions http{.port = 8000};
  server::BodyRoomOptions bodies;
  server::ServiceOptions service;
  // An empty device: device_or_default.
  engine::EngineOptions engine{.model = {.path = "smollm2", .device = ""}};

  static constexpr auto fields() {
    using O = ServeOptions;
    return std::tuple{
        option("name", &O::names, any(),
               "name that clients ask for; may be given several times [the model's]"),
        option("state", &O::state, any(), "folder of checkpoints, keys and all that was accepted"),
        option("auth", &O::auth, one_of("keys", "open"),
               "keys: clients need a key of 'twinkle keys'; open: anybody, on loopback only "
               "[keys if the state has any, else open]"),
        group("http", &O::http),
        option("root_path", &O::root_path, any(),
               "path under which a proxy hands requests on, as /twinkle"),
        option("compress", &O::compress, any(),
               "ask clients to send training data compressed, for slow networks"),
        option("log_level", &O::log_level, one_of("debug", "info", "warning", "error", "off"),
               "of the requests' lines on standard error"),
        option("accept_other_arithmetic", &O::accept_other_arithmetic, any(),
               "continue a state that another processor or version computed; recomputed work may "
               "differ in its last bits"),
        group("bodies", &O::bodies),
        group("service", &O::service),
        group("engine", &O::engine)};
  }
};

// Adds them in the groups of --help; those that no service can have are taken, to be refused by
// name, and are not told.
void add_serve_options(CLI::App& command, ServeOptions& options);
// True if a service can have this option of the engine.
bool is_served(std::string_view name);

// Under which clients ask for a model where no name is given: its id, and what others know it by.
std::vector<std::string> default_names(const std::string& model);

// Keys if the state has any.
std::string default_auth(const ServeOptions& options);

// Fills in what neither the command line nor the file has said, so that as_yaml() tells it, too.
// The options of these that each start finds anew, since the state and the machine may change: a
// file that fixed them would keep a server open that has keys by now.
std::set<const CLI::Option*> settle_options(CLI::App& command, const ServeOptions& options);

// Error kInvalid: an option outside its limits; options that cannot be together, as a limit of one
// above that of all; a name, root_path, host, unix_socket or state that cannot be; a host that
// others reach, and everybody is let in.
void check_options(const ServeOptions& options);

// The model that would be served. Errors as of check_options; and those of a model whose files,
// config.json or tokenizer cannot be read, of a device that is not here, or of check_state
// (state.h). Loads no weights; downloads a hub's model without them.
std::string check_service(const ServeOptions& options);

// Where clients find a server that has this port: http://127.0.0.1:8000 and unix:/run/twinkle.sock.
std::string told_addresses(const server::HttpOptions& options, uint16_t port,
                           const std::string& root_path = "");

// The answer of client/config: in which pieces the SDK sends a batch, and whether it compresses
// them.
JsonObject client_flags(const ServeOptions& options);

// The path behind root_path, or as it came.
std::string without_root(const std::string& path, const std::string& root_path);

}  // namespace twinkle::cli
