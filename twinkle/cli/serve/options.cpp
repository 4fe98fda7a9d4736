#include "twinkle/cli/serve/options.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "twinkle/base/file.h"
#include "twinkle/cli/model_path.h"
#include "twinkle/engine/device.h"
#include "twinkle/io/checkpoint.h"
#include "twinkle/model/family.h"
#include "twinkle/store/keys/keys.h"
#include "twinkle/text/rust/shared_tokenizer.h"

namespace twinkle::cli {
namespace {

namespace fs = std::filesystem;

// A folder that is not there yet is made where its nearest one can be written.
void check_state(const std::string& state) {
  const fs::path whole = fs::absolute(state);
  fs::path there = whole;
  while (!is_there(there) && there.has_relative_path()) there = there.parent_path();
  std::error_code ignored;
  require(fs::is_directory(there, ignored), Code::kInvalid, "cli: state is '", state, "', but '",
          there.string(), "' is no folder");
  require(::access(there.c_str(), W_OK | X_OK) == 0, Code::kInvalid, "cli: state is '", state,
          "', but the folder '", there.string(), "' cannot be written: choose another");
}

}  // namespace

std::vector<std::string> default_names(const std::string& model) {
  std::vector<std::string> out{model_name(model)};
  if (out[0] != model && model.find("://") == std::string::npos) out.insert(out.begin(), model);
  return out;
}

void check_options(const ServeOptions& o) {
  twinkle::check_options(o, "cli: ");
  for (const std::string& name : o.names) {
    require(!name.empty() && name.find(':') == std::string::npos, Code::kInvalid, "cli: name '",
            name, "' must be a text without ':', behind which clients cut it off; give --name");
    require(std::ranges::count(o.names, name) == 1, Code::kInvalid, "cli: name '", name,
            "' is given twice");
  }
  require(o.root_path.empty() || (o.root_path.size() > 1 && o.root_path.starts_with('/') &&
                                  !o.root_path.ends_with('/')),
          Code::kInvalid, "cli: root_path is '", o.root_path,
          "', it must begin with '/' and not end with it, as /twinkle");
  require(o.bodies.max_bytes >= o.bodies.max_body_bytes, Code::kInvalid,
          "cli: max_body_bytes_total is ", o.bodies.max_bytes,
          ", it must be at least max_body_bytes, ", o.bodies.max_body_bytes);
  require(o.auth == "keys" || server::is_loopback(o.http.address), Code::kInvalid,
          "cli: auth is open, which lets everybody in, and host '", o.http.address,
          "' is no loopback address; make keys (twinkle keys create --state ", o.state,
          " --tenant NAME), or listen on 127.0.0.1");
  check_state(o.state);
}

std::string default_auth(const ServeOptions& o) {
  return is_there(store::KeyFile(o.state).path()) ? "keys" : "open";
}

std::string check_service(const ServeOptions& o) {
  check_options(o);
  server::HttpServer(
      {.address = o.http.address});  // on a free port: its own may be a running server's
  engine::device_named(o.engine.model.device);
  const std::string path = model_path(o.engine.model.path, Download::kWithoutWeights);
  const Json config = is_there(o.engine.model.path) ? Checkpoint::open(path).config()
                                                    : read_json(fs::path(path) / "config.json");
  const model::DecoderSpec spec = model::read_spec(config);
  text::decoder_of(path);
  std::ostringstream out;
  out << spec.family << " of " << spec.num_layers() << " layers from " << path << " on "
      << o.engine.model.device << "\nnames: ";
  for (size_t i = 0; i < o.names.size(); ++i) out << (i > 0 ? ", " : "") << o.names[i];
  out << "\naddress: http://" << o.http.address << ":" << o.http.port << o.root_path
      << "\nstate: " << fs::absolute(o.state).string() << "\n";
  return out.str();
}

std::string without_root(const std::string& path, const std::string& root_path) {
  const size_t n = root_path.size();
  const bool is_below = path.starts_with(root_path) && path.size() > n && path[n] == '/';
  return is_below ? path.substr(n) : path;
}

}  // namespace twinkle::cli
