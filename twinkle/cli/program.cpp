#include "twinkle/cli/program.h"

#include <cstdio>
#include <exception>

#include "twinkle/base/error.h"
#include "twinkle/cli/command.h"

namespace twinkle::cli {

#define COMMAND(name) void name(CLI::App& app);
#include "twinkle/cli/commands.def"
#undef COMMAND

namespace {

std::string names(CLI::App& app) {
  std::string all;
  for (const CLI::App* command : app.get_subcommands({}))
    all += (all.empty() ? "" : ", ") + command->get_name();
  return all;
}

int parse(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::RequiredError& e) {
    if (!app.get_subcommands().empty()) return app.exit(e);
    const auto words = app.remaining();  // which CLI11 does not name
    fail(Code::kInvalid, "cli: ", words.empty() ? "" : "'" + words[0] + "' is no subcommand. ",
         "A subcommand is required: ", names(app), "; --help says more");
  } catch (const CLI::ParseError& e) {
    return app.exit(e);
  }
}

}  // namespace

int run_program(int argc, const char* const* argv, const std::string& version) {
  CLI::App app("Fine-tune and sample large language models", "twinkle");
  app.set_version_flag("--version", version);
  app.require_subcommand(1);
#define COMMAND(name) name(app);
#include "twinkle/cli/commands.def"
#undef COMMAND
  try {
    const int status = parse(app, argc, argv);
    require(std::fflush(stdout) == 0 && std::ferror(stdout) == 0, Code::kInvalid,
            "cli: standard output did not take all that was printed; is its disk full?");
    return status;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "twinkle: %s\n", e.what());
    return 1;
  }
}

}  // namespace twinkle::cli
