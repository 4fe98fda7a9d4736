// twinkle backup: a copy of a server's state while it runs.
#include <sys/stat.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/cli/command.h"
#include "twinkle/server/history/backup.h"
#include "twinkle/store/folder_lock.h"

namespace twinkle::cli {
namespace {

struct BackupOptions {
  std::string state = "twinkle-state", folder;
};

void require_named(const BackupOptions& o) {
  for (const auto& [name, value] : {std::pair("folder", o.folder), std::pair("--state", o.state)})
    require(!value.empty(), Code::kInvalid, "cli: ", name,
            " is '', it must be the path of a folder");
}

// In the largest unit of which there is one.
std::string size_of(int64_t bytes) {
  constexpr std::array kUnits{std::pair(1e9, "GB"), std::pair(1e6, "MB"), std::pair(1e3, "kB")};
  std::array<char, 32> out{};
  for (const auto& [unit, name] : kUnits) {
    if (static_cast<double>(bytes) < unit) continue;
    std::snprintf(out.data(), out.size(), "%.1f %s", static_cast<double>(bytes) / unit, name);
    return out.data();
  }
  return std::to_string(bytes) + " bytes";
}

// Folders that are made meanwhile are this user's alone.
struct Private {
  const mode_t before = ::umask(077);
  ~Private() { ::umask(before); }
};

// A running server changes the state while it is copied.
void require_rests(const std::string& folder) {
  const auto process = store::holder_of(std::filesystem::path(folder) / server::kJournal);
  require(!process, Code::kConflict, "cli: ", folder,
          " is the state of a server that runs, process ", process.value_or(""),
          ", and no backup; make one by 'twinkle backup FOLDER --state ", folder, "'");
}

void print_copied(const char* what, const std::string& folder, const server::Copied& copied) {
  std::printf("%s %s: %lld files, %s\n", what, folder.c_str(),
              static_cast<long long>(copied.num_files), size_of(copied.num_bytes).c_str());
  for (const auto& version : copied.missing)
    std::fprintf(stderr,
                 "twinkle: %s is not there, and not in the copy: what samples this version fails; "
                 "put it back if it is still needed\n",
                 version.c_str());
}

}  // namespace

void backup(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("backup", "Copy a server's state, also while the server runs");
  auto o = std::make_shared<BackupOptions>();
  command->add_option("folder", o->folder, "new folder of the copy")->required();
  command->add_option("--state", o->state, "the server's folder")->capture_default_str();
  command->callback([o, &action] {
    require_named(*o);
    action = [o](const std::string&) {
      const Private copies;
      print_copied("backup in", o->folder, server::backup(o->state, o->folder));
    };
  });
}

void restore(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("restore", "Make a new server's state of a backup");
  auto o = std::make_shared<BackupOptions>();
  command->add_option("folder", o->folder, "of the backup, which stays")->required();
  command->add_option("--state", o->state, "new folder, for twinkle serve --state")
      ->capture_default_str();
  command->callback([o, &action] {
    require_named(*o);
    action = [o](const std::string&) {
      require_rests(o->folder);
      const Private copies;
      print_copied("state in", o->state, server::restore(o->folder, o->state));
    };
  });
}

}  // namespace twinkle::cli
