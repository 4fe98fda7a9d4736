// twinkle train MODEL DATA: supervised fine-tuning of a LoRA adapter, or of all weights.
#include <cstdio>

#include "twinkle/cli/command.h"
#include "twinkle/cli/device.h"
#include "twinkle/cli/options/flags.h"
#include "twinkle/cli/train/rows.h"
#include "twinkle/cli/train/training.h"
#include "twinkle/data/rows/renames.h"
#include "twinkle/optim/optimizer.h"

namespace twinkle::cli {
namespace {

constexpr const char* kForms =
    "DATA has one row per line (.jsonl), or is a list (.json) or a table (.csv, .tsv) of rows:\n"
    "  {\"messages\": [{\"role\": \"user\", \"content\": \"...\"}, {\"role\": \"assistant\", "
    "...}]}\n"
    "  {\"prompt\": \"...\", \"completion\": \"...\"}, and the other forms of docs/training.md\n"
    "Columns of other names: --columns Question=prompt,Answer=completion.\n"
    "Only the assistant's replies count towards the loss. Ctrl-C finishes the step, saves, and "
    "prints how to resume.";

// For a shell, which reads it as one word.
std::string quoted(const std::string& text) {
  constexpr const char* kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./:=,+@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == text.npos) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

// The command as it was given, but to resume.
std::string command_to_resume(const std::string& program, const CLI::App& command) {
  std::string line = quoted(program) + " " + command.get_name();
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || name == "--overwrite" || name == "--resume") continue;
    const bool is_flag = option->get_items_expected_max() == 0;
    const bool is_off = is_flag && option->results().back() == "false";
    if (!option->get_positional())
      line.append(" ").append(is_off ? "--no-" + name.substr(2) : name);
    if (is_flag) continue;
    for (const std::string& value : option->results()) line.append(" ").append(quoted(value));
  }
  return line + " --resume";
}

void say_what_is_next(const TrainingOptions& o, const std::string& program) {
  const std::string output = quoted(o.files.output);
  const std::string what = o.recipe.full ? output : quoted(o.model);
  std::printf("saved %s\ntry it:  %s sample %s 'Who are you?'%s\n", o.files.output.c_str(),
              quoted(program).c_str(), what.c_str(),
              o.recipe.full ? "" : (" --adapter " + output).c_str());
}

// Rules of one option about another.
void relate(CLI::App& command) {
  const auto named = [&command](const char* name) { return command.get_option(name); };
  named("--resume")->excludes(named("--overwrite"));
  named("--validation-steps")->needs(named("--validation"));
  for (const char* of_adapter : {"--rank", "--alpha", "--target-modules"})
    named(of_adapter)->excludes(named("--full"));
  CLI::Option* preprocessor = named("--preprocessor");
  preprocessor->description("makes messages of rows that have none: " + preprocessors_for_tuning());
}

}  // namespace

void train(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("train", "Fine-tune a model on rows of messages");
  command->footer(kForms);
  auto o = std::make_shared<TrainingOptions>();
  command
      ->add_option("model", o->model,
                   "smollm2, directory, .gguf file with a tokenizer beside it, or hub id")
      ->required();
  command->add_option("data", o->data, ".json, .jsonl, .csv or .tsv, or hub id")->required();
  add_options(*command, o->files);
  add_options(*command, o->recipe);
  add_options(*command, o->engine,
              {"mixed_precision", "token_budget", "activation_bytes", "memory_share",
               "deterministic", "train_graphs"});
  relate(*command);
  add_device(*command, o->device);
  command->callback([o, command, &action] {
    if (o->recipe.full && command->count("--lr") == 0) o->recipe.lr = 1e-5;
    if (command->count("--output") == 0)
      o->files.output = o->recipe.full ? "outputs/model" : "outputs/adapter";
    if (command->count("--preprocessor") > 0) check_preprocessor(o->files.preprocessor);
    data::renames_of(o->files.columns);
    optim::make("AdamW", JsonObject{{"lr", o->recipe.lr}});  // throws what the first step would
    action = [o, command](const std::string& program) {
      o->command_to_resume = command_to_resume(program, *command);
      run_training(*o);
      say_what_is_next(*o, program);
    };
  });
}

}  // namespace twinkle::cli
