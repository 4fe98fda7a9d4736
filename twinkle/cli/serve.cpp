// twinkle serve: the training service over HTTP, for the `tinker` SDK and OpenAI's clients.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"
#include "twinkle/cli/command.h"
#include "twinkle/cli/model_path.h"
#include "twinkle/cli/options/flags.h"
#include "twinkle/cli/options/reference.h"
#include "twinkle/cli/options/yaml.h"
#include "twinkle/cli/serve/build_id.h"
#include "twinkle/cli/serve/open_files.h"
#include "twinkle/cli/serve/options.h"
#include "twinkle/cli/serve/reload.h"
#include "twinkle/cli/serve/signals.h"
#include "twinkle/cli/serve/state.h"
#include "twinkle/server/history/backup.h"
#include "twinkle/server/http/request_log.h"
#include "twinkle/server/routes.h"
#include "twinkle/server/starting.h"
#include "twinkle/text/rust/shared_tokenizer.h"

namespace twinkle::cli {
namespace {

// After the longest that a poll is held: every one of them is answered before the server ends.
constexpr std::chrono::seconds kAnswered{5};
// Then runs are saved, for no longer than this: behind much work an engine needs more, and the next
// start does what is not saved again.
constexpr std::chrono::seconds kSaved{15};

enum class Task { kServe, kCheck, kPrintConfig, kPrintReference };

class EngineBackend : public server::Backend {
 public:
  EngineBackend(engine::Engine& engine, std::vector<std::string> names, int64_t kv_tokens)
      : engine_(engine) {
    const engine::ModelInfo& info = engine.model_info();
    model_ = {.directory = info.directory,
              .names = std::move(names),
              .max_positions = info.max_positions,
              .vocab_size = info.vocab_size,
              .kv_tokens = kv_tokens,
              .num_layers = info.num_layers,
              .architecture = info.family,
              .adapter_sizes = info.adapter_sizes,
              .carried_bytes = info.carried_bytes};
  }
  const server::ModelFacts& model() const override { return model_; }
  engine::Stats stats() const override { return engine_.stats(); }
  engine::ParkingStats parking() const override { return engine_.parking(); }
  engine::SamplingStats sampling() const override { return engine_.sampling(); }
  void validate(const engine::Operation& operation) const override { engine_.validate(operation); }
  int64_t bytes_of(const engine::Operation& operation) const override {
    return engine_.bytes_of(operation);
  }
  engine::Accepted check(engine::Operation&& operation, engine::Beyond beyond,
                         const engine::SampleHooks& hooks) override {
    return engine_.check(std::move(operation), hooks, beyond);
  }
  int64_t submit(engine::Accepted accepted, engine::OnDone on_done) override {
    if (times_) on_done = times_->watch(accepted.operation(), std::move(on_done));
    return engine_.submit(std::move(accepted), std::move(on_done));
  }
  bool cancel(int64_t id) override { return engine_.cancel(id); }
  // On the service's thread.
  void rename(std::vector<std::string> names) { model_.names = std::move(names); }
  // Counts what is submitted from here on.
  void count(server::OperationTimes& times) { times_ = &times; }

 private:
  engine::Engine& engine_;
  server::ModelFacts model_;
  server::OperationTimes* times_ = nullptr;
};

// With no more connections than the system has files for.
server::HttpOptions http_of(const ServeOptions& o, Log& log) {
  server::HttpOptions out = o.http;
  const int64_t files = raise_limit_of_files();
  out.max_connections = connections_within(files, o.http.max_connections);
  if (out.max_connections < o.http.max_connections)
    log.write(Level::kWarning,
              "max_connections is " + std::to_string(o.http.max_connections) +
                  ", but the system lets this process have " + std::to_string(files) +
                  " files open: " + std::to_string(out.max_connections) +
                  " connections are taken; raise that limit (ulimit -n, LimitNOFILE)");
  return out;
}

// Whatever ends the service: nothing calls it when it is gone, and what the engine has not done is
// not told as failed, but done by the next start.
struct Ending {
  server::Services& services;
  engine::Engine& engine;
  server::BodyRoom& room;
  std::unique_ptr<server::HttpServer>& http;
  ~Ending() {
    services.close();
    engine.close();
    room.close();
    http.reset();
  }
};

// `log` outlives it.
server::Access access_of(const ServeOptions& o, Log& log) {
  if (o.auth == "open") return {};
  return server::Access(store::KeyFile(o.state), {.warn = [&log](const std::string& text) {
                          log.write(Level::kWarning, text);
                        }});
}

// Logs what is left of a recovery, until it ends.
void log_recovery(server::Loop& loop, const server::Services& services, Log& log) {
  constexpr std::chrono::seconds kEach{10};
  loop.after(kEach, [&loop, &services, &log] {
    if (services.history.keeps()) return;
    const int64_t left = services.operations.num_again();
    log.write(Level::kInfo,
              "recovery goes on: " + (left > 0 ? std::to_string(left) + " operations left"
                                               : std::string("it reads what there is")));
    log_recovery(loop, services, log);
  });
}

// Does again what the journal holds, and logs when that begins and ends.
void recover(server::Services& services, const engine::ModelInfo& info, const ServeOptions& o,
             Log& log) {
  const std::filesystem::path journal = services.state / server::kJournal;
  log.write(Level::kInfo, "recovery begins: " + std::to_string(server::bytes_to_read(journal)) +
                              " bytes to read of " + journal.string());
  const auto begin = std::chrono::steady_clock::now();
  const int64_t num_records = services.open(
      {.arithmetic = info.arithmetic,
       .model = identity_of(info.family, info.num_parameters, info.config_json),
       .weights = crc_of_weights(Checkpoint::open(info.directory)),
       .path = std::filesystem::absolute(info.directory).string()},
      o.accept_other_arithmetic, [&](uint64_t sequence, const server::Command& command) {
        server::replay(sequence, command, services);
      });
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  std::array<char, 64> end{};
  std::snprintf(end.data(), end.size(), "recovery ends: %lld records in %.1f s",
                static_cast<long long>(num_records), time.count());
  log.write(Level::kInfo, end.data());
  if (const int64_t cut = services.history.cut_bytes(); cut > 0)
    log.write(Level::kWarning,
              "recovery has cut off " + std::to_string(cut) +
                  " bytes behind the journal's last whole record: after a loss of "
                  "power, with durability process, some may have been acknowledged");
  for (const auto& [run, why] : services.operations.lost())
    std::fprintf(stderr, "twinkle: %s\n", why.c_str());
}

// Lines for the operator of what clients cannot mend; `log` outlives the service.
void log_troubles(server::Services& services, Log& log) {
  services.operations.on_trouble(
      [&log](const std::string& text) { log.write(Level::kError, text); });
  services.history.on_trouble([&log](const std::string& why) {
    if (why.empty()) return log.write(Level::kInfo, "the journal takes records again");
    log.write(Level::kError,
              "the journal refuses records, and clients are told to come again: " + why);
  });
  services.snapshots.on_put_off(
      [&log](const std::string& text) { log.write(Level::kWarning, text); });
}

// Options of the command line only, and what follows from how the command was called.
struct How {
  std::string config;
  ConfigFile file = {};
  Task task = Task::kServe;
  bool until_stdin_ends = false;
  std::set<const CLI::Option*> unsaid = {};  // as of settle_options
};

// The parts of a server that runs whose options can change.
struct Running {
  Log& log;
  EngineBackend& backend;
  server::Services& services;
  server::BodyRoom& room;
  server::HttpServer& http;

  void set(const ServeOptions& o) const {
    log.set_least(o.log_level);
    http.set(http_of(o, log));
    http.post([*this, o] {
      backend.rename(o.names);
      room.set(o.bodies);
      services.client_flags = client_flags(o);
      services.kept.set(o.service.kept);
      services.silence.set(o.service.silence);
    });
  }
};

// On SIGHUP. Where anything is wrong all options stay.
void reload(const ConfigFile& file, ServeOptions& o, const Running& running) {
  Log& log = running.log;
  if (!file.is_given())
    return log.write(Level::kInfo, "SIGHUP: the server goes on; it has no --config file to read");
  try {
    const Reload read = take_over(o, file.read());
    running.set(o);
    for (const std::string& text : read.changed) log.write(Level::kInfo, "SIGHUP: " + text);
    for (const std::string& text : read.kept) log.write(Level::kWarning, "SIGHUP: " + text);
    log.write(Level::kInfo, "SIGHUP: the server goes on; options changed: " +
                                std::to_string(read.changed.size()));
  } catch (const std::exception& e) {
    log.write(Level::kError, "SIGHUP: all options stay as they are: " + std::string(e.what()));
  }
}

// `version`: of this program.
void run_service(ServeOptions o, const std::string& version, const How& how) {
  const bool until_stdin_ends = how.until_stdin_ends;
  const sigset_t signals = hold_signals();
  Log log(o.log_level);
  server::Access access = access_of(o, log);
  std::optional<EndsAtOnce> starts(std::in_place, signals, until_stdin_ends, log);
  log.write(Level::kInfo, "twinkle " + version +
                              ", state: " + std::filesystem::absolute(o.state).string() +
                              ", auth: " + told_auth(o));
  if (const std::string warning = open_although_keys(o); !warning.empty())
    log.write(Level::kWarning, warning);
  const server::HttpOptions options = http_of(o, log);
  server::Starting starting(std::max<int64_t>(1, options.max_connections / 2));
  auto http = std::make_unique<server::HttpServer>(options);
  http->serve({.admit =
                   [&](const server::Head& head, const server::Admit& admit) {
                     starting.admit(head, without_root(head.path, o.root_path), admit);
                   },
               .handle =
                   [&](server::Request request, server::Reply reply) {
                     starting.handle(std::move(request), std::move(reply));
                   },
               .answered = [&](const auto&... told) { server::note_request(log, told...); }});
  engine::EngineOptions with = o.engine;
  with.model.path = model_path(o.engine.model.path);
  const std::filesystem::path state = std::filesystem::absolute(o.state);
  if (with.parking.directory.empty()) with.parking.directory = (state / server::kParked).string();
  // Kept while the service runs, or each sample with a stop text would read it anew.
  const auto tokenizer = text::shared_tokenizer(with.model.path);
  engine::Engine engine(with, text::decoder_of);
  EngineBackend backend(engine, o.names, with.sampler.kv_tokens);
  server::Services services(backend, *http, state, o.service);
  backend.count(services.metrics.operations);
  services.metrics.build = {
      .version = version,
      .id = build_id(),
      .torch = get<std::string>(parse_json(engine.model_info().arithmetic, "arithmetic"), "torch")};
  services.client_flags = client_flags(o);
  services.access = std::move(access);
  log_troubles(services, log);
  server::BodyRoom room(o.bodies, *http);
  const Ending ending{services, engine, room, http};
  http->post([&] { starting.tell([&] { return services.operations.num_again(); }); });
  log_recovery(*http, services, log);
  recover(services, engine.model_info(), o, log);
  http->post([&] {
    services.watch_keys();
    server::put_off_missing(services);
    starting.end({.admit =
                      [&](const server::Head& head, const server::Admit& admit) {
                        server::admit(head, without_root(head.path, o.root_path), services, room,
                                      admit);
                      },
                  .handle =
                      [&](server::Request request, server::Reply reply) {
                        request.path = without_root(request.path, o.root_path);
                        server::route(std::move(request), services, std::move(reply));
                      }});
  });
  starts.reset();
  std::printf("twinkle serves %s at %s\n", backend.model().names[0].c_str(),
              told_addresses(o.http, http->port()).c_str());
  std::fflush(stdout);
  const Running running{log, backend, services, room, *http};
  wait_for_end(signals, until_stdin_ends, [&] { reload(how.file, o, running); });
  say_end();
  http->drain(o.service.promises.hold + kAnswered);
  const auto saved = std::make_shared<std::promise<void>>();
  http->post([&services, saved] { services.save_runs([saved] { saved->set_value(); }); });
  saved->get_future().wait_for(kSaved);
}

// The file's options and those that nobody gave. What is wrong with options alone is told here, as
// of arguments.
void complete(const ServeOptions& o, CLI::App& command, How& how) {
  if (how.task == Task::kPrintReference) return;
  if (!how.config.empty()) {
    how.file = ConfigFile(command, how.config);
    read_yaml(command, how.config);
  }
  how.unsaid = settle_options(command, o);
  if (how.task != Task::kPrintConfig) check_options(o);
}

// The parent that starts a server for itself, and has not said who is let in, has a key of the
// state for its own requests, or they would be 401.
void require_parents_key(const ServeOptions& o) {
  const char* const key = std::getenv("TINKER_API_KEY");
  require(o.auth == "open" || (key != nullptr && *key != '\0'), Code::kInvalid, "cli: the state ",
          std::filesystem::absolute(o.state).string(),
          " has keys, and its server asks for one: set TINKER_API_KEY to one of them, give another "
          "state, or say --auth=keys where clients bring their own, --auth=open where none is "
          "asked for");
}

void start(const ServeOptions& o, const CLI::App& command, const How& how) {
  if (how.task == Task::kPrintReference) {
    std::printf("%s", options_reference().c_str());
    return;
  }
  if (how.task == Task::kPrintConfig) {
    std::printf("%s", as_yaml(command, how.unsaid).c_str());
    return;
  }
  if (how.task == Task::kServe && how.until_stdin_ends && how.config.empty() &&
      how.unsaid.contains(command.get_option("--auth")))
    require_parents_key(o);
  if (how.task != Task::kCheck) return run_service(o, command.get_parent()->version(), how);
  if (const std::string warning = open_although_keys(o); !warning.empty())
    std::fprintf(stderr, "twinkle: %s\n", warning.c_str());
  std::printf("ok: %s", check_service(o).c_str());
}

}  // namespace

void serve(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("serve", "Serve training and sampling over HTTP");
  auto o = std::make_shared<ServeOptions>();
  add_serve_options(*command, *o);
  auto how = std::make_shared<How>();
  constexpr const char* kGroup = "This call";
  command->add_option("--config", how->config, "YAML file of these options; those given here win")
      ->configurable(false)
      ->group(kGroup);
  const auto add_task = [&](const char* name, Task value, const char* help) {
    const auto take = [how, value] { how->task = value; };
    return command->add_flag_callback(name, take, help)->configurable(false)->group(kGroup);
  };
  CLI::Option* check =
      add_task("--check", Task::kCheck,
               "check the options, the state and the model's files, without its weights");
  add_task("--print-config", Task::kPrintConfig, "print all options as YAML for --config")
      ->excludes(check);
  add_task("--print-reference", Task::kPrintReference,
           "print a table of all options with their limits, docs/options.md");
  command
      ->add_flag("--until-stdin-ends", how->until_stdin_ends,
                 "end when standard input does, as for SIGTERM: with the process that holds it")
      ->configurable(false)
      ->group(kGroup);
  shorten_help(*command, {"--model", "--name", "--state", "--config", "--host", "--port", "--auth",
                          "--device", "--resident-bytes", "--durability", "--log-level", "--check",
                          "--print-config"});
  command->callback([=, &action] {
    complete(*o, *command, *how);
    action = [=](const std::string&) { start(*o, *command, *how); };
  });
}

}  // namespace twinkle::cli
