#include "twinkle/cli/serve/reload.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "twinkle/cli/options/yaml.h"

namespace twinkle::cli {
namespace {

std::string flag_of(const AnyOption& option) {
  std::string out = std::string("--").append(option.name);
  std::ranges::replace(out, '_', '-');
  return out;
}

// Names of options that are taken over.
std::set<std::string_view> changeable(ServeOptions& o) {
  std::set<std::string_view> out{"name", "log_level", "compress"};
  const auto add = [&out](auto&... parts) {
    (std::ranges::for_each(options_of(parts), [&](const AnyOption& one) { out.insert(one.name); }),
     ...);
  };
  add(o.http, o.bodies, o.service.kept, o.service.silence);
  for (const char* fixed : {"host", "port", "unix_socket", "max_header_bytes"}) out.erase(fixed);
  return out;
}

}  // namespace

ConfigFile::ConfigFile(const CLI::App& command, const std::string& file) : file_(file) {
  const ServeOptions defaults;
  for (const AnyOption& one : options_of(defaults)) {
    const CLI::Option* option = command.get_option(flag_of(one));
    if (option->count() > 0) given_.emplace_back(flag_of(one), option->results());
  }
}

ServeOptions ConfigFile::read() const {
  ServeOptions out;
  CLI::App command("", "serve");
  add_serve_options(command, out);
  for (const auto& [flag, values] : given_) {
    command.get_option(flag)->add_result(values);
    command.get_option(flag)->run_callback();
  }
  read_yaml(command, file_);
  settle_options(command, out);
  check_options(out);
  return out;
}

Reload take_over(ServeOptions& running, ServeOptions next) {
  Reload out;
  const auto can_change = changeable(running);
  const auto now = options_of(running), then = options_of(next);
  for (size_t i = 0; i < now.size(); ++i) {
    const std::string from = told(now[i].get()), to = told(then[i].get());
    if (from == to) continue;
    const std::string name(now[i].name);
    if (can_change.contains(now[i].name)) {
      now[i].set(then[i].get());
      out.changed.push_back(name + " was '" + from + "' and is '" + to + "'");
    } else {
      out.kept.push_back(name + " stays '" + from + "', and is '" + to +
                         "' from the next start on: restart the server for it");
    }
  }
  return out;
}

}  // namespace twinkle::cli
