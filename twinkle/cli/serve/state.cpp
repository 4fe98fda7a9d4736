#include "twinkle/cli/serve/state.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>
#include <system_error>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"
#include "twinkle/base/json.h"
#include "twinkle/cli/keys/valid.h"
#include "twinkle/engine/device.h"
#include "twinkle/engine/execute/model_info.h"
#include "twinkle/server/history/backup.h"
#include "twinkle/store/crc32c.h"
#include "twinkle/store/folder_lock.h"
#include "twinkle/store/keys/keys.h"

namespace twinkle::cli {
namespace {

namespace fs = std::filesystem;

std::vector<server::Opened> starts_in(const fs::path& state) {
  server::History::Summary journal = server::summary_of(state / server::kJournal);
  server::require_whole(state, journal);
  return std::move(journal.starts);
}

// A server that runs may have put a state in the place of records that were about to be read, or a
// snapshot in that of one that was about to be looked for.
std::vector<server::Opened> starts_of(const fs::path& state) {
  try {
    return starts_in(state);
  } catch (const Error&) {
    return starts_in(state);
  }
}

std::string without_count(const std::string& identity) {
  JsonObject out = parse_json(identity, "cli: the state's model").as_object();
  out.stable_erase("num_parameters");
  return boost::json::serialize(out);
}

// `what` begins errors.
fs::path whole_path(const std::string& folder, const std::string& what) {
  require(!folder.empty(), Code::kInvalid, what, "it must be the path of a folder");
  require(folder != "~" && !folder.starts_with("~/"), Code::kInvalid, what,
          "and '~' is a shell's alone; write the folder's whole path");
  return fs::absolute(folder);
}

// That folder, or the one that it would be made in.
fs::path nearest_folder(fs::path there, const std::string& what) {
  while (!is_there(there) && there.has_relative_path()) there = there.parent_path();
  std::error_code ignored;
  require(fs::is_directory(there, ignored), Code::kInvalid, what, "but '", there.string(),
          "' is no folder");
  require(::access(there.c_str(), W_OK | X_OK) == 0, Code::kInvalid, what, "but the folder '",
          there.string(), "' cannot be written: choose another");
  return there;
}

}  // namespace

void check_folder(const std::string& state) {
  const std::string what = "cli: state is '" + state + "', ";
  const fs::path whole = whole_path(state, what);
  for (const fs::path& folder : {whole, whole / server::kJournal}) nearest_folder(folder, what);
}

void check_park_directory(const std::string& directory) {
  const std::string what = "cli: park_directory is '" + directory + "', ";
  std::string made =
      (nearest_folder(whole_path(directory, what), what) / ".twinkle-XXXXXX").string();
  require(::mkdtemp(made.data()) != nullptr, Code::kInvalid, what, "but no folder can be made in '",
          fs::path(made).parent_path().string(), "' (", std::strerror(errno), "): choose another");
  ::rmdir(made.c_str());
}

std::string identity_of(const std::string& family, int64_t num_parameters,
                        const std::string& config) {
  return boost::json::serialize(JsonObject{{"family", family},
                                           {"num_parameters", num_parameters},
                                           {"config_crc32c", store::crc32c(config)}});
}

std::string crc_of_weights(const Checkpoint& checkpoint) {
  constexpr int64_t kPart = 1 << 10;  // bytes, of a beginning, a middle and an end: training moves
                                      // all of a tensor
  std::vector<std::string> names = checkpoint.names();
  std::ranges::sort(names);
  uint32_t crc = 0;
  for (const std::string& name : names) {
    const StoredTensor& tensor = checkpoint.at(name);
    crc = store::crc32c(name + ' ' + shape_text(tensor.shape) + '\n', crc);
    const int64_t size = tensor.num_bytes(), part = std::min(kPart, size);
    std::string bytes(static_cast<size_t>(part), '\0');
    for (const int64_t begin : {int64_t{0}, (size - part) / 2 / 8 * 8, size - part}) {
      tensor.read(std::as_writable_bytes(std::span(bytes)), begin);
      crc = store::crc32c(bytes, crc);
    }
  }
  return std::to_string(crc);
}

std::string check_state(const ServeOptions& o, const std::string& family, const std::string& config,
                        const Checkpoint* checkpoint) {
  if (o.auth == "keys") store::KeyFile(o.state).read_table();
  const fs::path state = fs::absolute(o.state), journal = state / server::kJournal;
  std::vector<server::Opened> starts = starts_of(state);
  for (server::Opened& start : starts) start.model = without_count(start.model);
  const engine::ModelOptions& m = o.engine.model;
  const JsonObject arithmetic = engine::arithmetic_of(
      engine::dtype_named(m.mixed_precision), engine::device_named(m.device), m.deterministic);
  server::require_same(state, starts,
                       {.arithmetic = boost::json::serialize(arithmetic),
                        .model = without_count(identity_of(family, 0, config)),
                        .weights = checkpoint ? crc_of_weights(*checkpoint) : "",
                        .path = checkpoint ? fs::absolute(checkpoint->path()).string() : ""},
                       o.accept_other_arithmetic);
  const auto process = store::holder_of(journal);
  return process ? "open in process " + *process + ", which must end before this one starts" : "";
}

std::string told_auth(const ServeOptions& o) {
  if (o.auth == "open") return "open, nobody is asked for a key";
  const int64_t num = num_valid(store::KeyFile(o.state).read());
  if (num == 0) return "keys, of which none is valid: 'twinkle keys create' makes one";
  return "keys, of which " + std::to_string(num) + (num == 1 ? " is valid" : " are valid");
}

std::string open_although_keys(const ServeOptions& o) {
  const store::KeyFile file(o.state);
  if (o.auth != "open" || !is_there(file.path())) return "";
  const std::string begin = "auth is open although " + file.path().string();
  const std::string end = ": nobody is asked for one";
  try {
    const int64_t num = num_valid(file.read());
    if (num == 0) return "";
    return begin + " has " + std::to_string(num) + (num == 1 ? " key" : " keys") + end;
  } catch (const Error& e) {  // whoever asks for no key needs no file of them
    return begin + " is there, and cannot be read (" + e.what() + ")" + end;
  }
}

}  // namespace twinkle::cli
