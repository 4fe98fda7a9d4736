// The program `twinkle`: its commands, and the one place where an error becomes an exit status.
#include <cstdio>
#include <exception>

#include "twinkle/cli/command.h"

namespace twinkle::cli {
#define COMMAND(name) void name(CLI::App& app);
#include "twinkle/cli/commands.def"
#undef COMMAND
}  // namespace twinkle::cli

int main(int argc, char** argv) {
  CLI::App app("Fine-tune and sample large language models", "twinkle");
  app.set_version_flag("--version", TWINKLE_VERSION);
  app.require_subcommand(1);
#define COMMAND(name) twinkle::cli::name(app);
#include "twinkle/cli/commands.def"
#undef COMMAND
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& e) {
    return app.exit(e);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "twinkle: %s\n", e.what());
    return 1;
  }
}
