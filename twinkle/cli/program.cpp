#include "twinkle/cli/program.h"

#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

#include "twinkle/base/error.h"
#include "twinkle/base/fields/options.h"
#include "twinkle/cli/command.h"
#include "twinkle/cli/options/flags.h"
#include "twinkle/cli/train/interrupts.h"
#include "twinkle/engine/memory/text_of_error.h"

namespace twinkle::cli {

#define COMMAND(name) void name(CLI::App& app, Action& action);
#include "twinkle/cli/commands.def"
#undef COMMAND

namespace {

constexpr const char* kInterrupted = "interrupted";

enum ExitStatus { kDone = 0, kFailed = 1, kWrongArguments = 2 };

constexpr const char* kModels =
    "MODEL is 'smollm2' (built in), a directory, a .gguf file, or a hub's owner/name.\n";
constexpr const char* kStatuses =
    "Exit status: 0 done, 1 an error of the input or the run, or interrupted, 2 wrong arguments, "
    "or what a configuration file has in their place.";

// The texts of --help and --help-all. A command that has both (shorten_help) tells the options of
// its first group by --help, each in a line. CLI11 has "--no-x{false}" of a flag that is on.
class Help : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override;
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    constexpr std::string_view kOff = "{false}";
    std::string out = CLI::Formatter::make_option_name(option, is_positional);
    if (const size_t at = out.find(kOff); at != out.npos) out.erase(at, kOff.size());
    return out;
  }

 private:
  class Brief;
};

class Help::Brief : public Help {
 public:
  std::string make_option_desc(const CLI::Option* option) const override {
    constexpr size_t kLine = 120;
    std::string text = option->get_description();
    bool is_whole = true;
    for (size_t end; text.size() > kLine && (end = text.rfind("; ")) != text.npos; is_whole = false)
      text.resize(end);
    return is_whole ? text : text + "; ...";
  }
};

std::string Help::make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const {
  if (mode != CLI::AppFormatMode::Normal || app->get_help_all_ptr() == nullptr)
    return CLI::Formatter::make_help(app, name, mode);
  const auto is_first = [](const CLI::Option* option) {
    return option->nonpositional() && option->get_group() == kFirstGroup;
  };
  return make_description(app) + make_usage(app, name) + make_positionals(app) +
         Brief().make_group(kFirstGroup, false, app->get_options(is_first)) + "\n" +
         make_footer(app);
}

// The end of the help of the program and of each command, behind its own: what a MODEL is, where
// one is taken.
void add_footers(CLI::App& app) {
  const std::string own = app.get_footer();
  const bool takes_model = app.get_parent() == nullptr || app.get_option_no_throw("model") ||
                           app.get_option_no_throw("--model");
  app.footer((own.empty() ? "" : own + "\n") + (takes_model ? kModels : "") + kStatuses);
  for (CLI::App* command : app.get_subcommands({})) add_footers(*command);
}

std::string names(CLI::App& app) {
  std::string all;
  for (const CLI::App* command : app.get_subcommands({}))
    all += (all.empty() ? "" : ", ") + command->get_name();
  return all;
}

// About arguments that were not taken: the option among them that there is not, and the one that
// was probably meant; then all of them, as they were given. Empty: all were.
std::string untaken(const CLI::App& command) {
  std::vector<std::string> options;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;  // not told
    for (const std::string& name : option->get_lnames()) options.push_back("--" + name);
  }
  std::string unknown, all;
  for (const std::string& word : command.remaining()) {
    all += (all.empty() ? "" : " ") + word;
    if (!unknown.empty() || !word.starts_with("--")) continue;
    const std::string name = word.substr(0, word.find('='));
    const std::string nearest = nearest_of(name, options);
    unknown = "there is no option '" + name + "'" +
              (nearest.empty() ? "" : "; did you mean '" + nearest + "'?") + "; ";
  }
  return all.empty() ? "" : unknown + "not expected: " + all;
}

// Prints what --help or --version asks for, and leaves `action` empty then. Error kInvalid: wrong
// arguments.
void parse(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    app.exit(e);
  } catch (const CLI::ParseError& e) {
    const auto chosen = app.get_subcommands();
    if (!chosen.empty()) {
      const CLI::App* command = chosen[0];  // or the innermost, as `create` of `keys create`
      std::string called = command->get_name();
      while (!command->get_subcommands().empty()) {
        command = command->get_subcommands()[0];
        called += " " + command->get_name();
      }
      const bool is_more = e.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
      const std::string more = untaken(*command);
      const std::string wrong = is_more && !more.empty() ? "" : e.what();
      fail(Code::kInvalid, "cli: ", wrong, wrong.empty() || more.empty() ? "" : "; ", more,
           "; 'twinkle ", called, command->get_help_all_ptr() ? " --help-all" : " --help",
           "' lists the arguments");
    }
    const auto words = app.remaining();  // CLI11 does not name it
    fail(Code::kInvalid, "cli: ", words.empty() ? "" : "'" + words[0] + "' is not a subcommand. ",
         "A subcommand is required: ", names(app), "; --help says more");
  }
}

// True if all output was taken. False: its reader, as `head`, has closed the pipe, and no error is
// worth a line. Error kInvalid: another reason.
bool flush_output() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return true;
  pollfd out{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  const bool is_closed = ::poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
  require(is_closed, Code::kInvalid,
          "cli: standard output could not take all output; is its disk full?");
  return false;
}

}  // namespace

int run_program(int argc, const char* const* argv, const std::string& version) {
  end_on_interrupt(kInterrupted);
  CLI::App app("Fine-tune large language models and sample from them", "twinkle");
  app.set_version_flag("--version", version);
  app.require_subcommand(1);
  app.formatter(std::make_shared<Help>());  // before the subcommands, which take it over
  Action action;
#define COMMAND(name) name(app, action);
#include "twinkle/cli/commands.def"
#undef COMMAND
  add_footers(app);
  ExitStatus status_of_error = kWrongArguments;
  try {
    parse(app, argc, argv);
    status_of_error = kFailed;
    if (app.got_subcommand("train"))
      end_on_interrupt("interrupted before the first step; nothing new is saved");
    if (action) action(argv[0]);
    return flush_output() ? kDone : kFailed;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "twinkle: %s\n", engine::text_of(e));
    end_on_interrupt(kInterrupted);  // the error goes, and with it the words that it may be
    return status_of_error;
  }
}

}  // namespace twinkle::cli
