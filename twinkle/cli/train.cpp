// twinkle train MODEL DATA: supervised fine-tuning of a LoRA adapter, or of all weights.
#include <cmath>
#include <cstdio>

#include "twinkle/cli/command.h"
#include "twinkle/cli/device.h"
#include "twinkle/cli/options/flags.h"
#include "twinkle/cli/seed.h"
#include "twinkle/cli/train/rows.h"
#include "twinkle/cli/train/training.h"
#include "twinkle/optim/optimizer.h"

namespace twinkle::cli {
namespace {

constexpr const char* kForms =
    "DATA has one row per line (.jsonl), or is a list (.json) or a table (.csv) of rows:\n"
    "  {\"messages\": [{\"role\": \"user\", \"content\": \"...\"}, {\"role\": \"assistant\", "
    "...}]}\n"
    "  {\"instruction\": \"...\", \"input\": \"\", \"output\": \"...\"}   --preprocessor "
    "AlpacaProcessor\n"
    "Only the assistant's replies count towards the loss. Ctrl-C finishes the step, saves, and "
    "prints how to resume.\n"
    "Exit status: 0 done, 1 an error of the input or the run, or interrupted, 2 wrong arguments.";

void check(const TrainingOptions& o, const CLI::App& given) {
  // CLI11 makes the nearest int64 of a number beyond; a run has no use for one beyond int32.
  const auto in_range = [&given](int64_t least, const std::string& name, int64_t value) {
    require(value >= least && value <= INT32_MAX, Code::kInvalid, "cli: ", name, " is ",
            given.get_option(name)->as<std::string>(), ", it must be an integer from ", least,
            " to ", INT32_MAX);
  };
  in_range(1, "--rank", o.rank);
  in_range(1, "--epochs", o.epochs);
  in_range(1, "--batch-size", o.batch_size);
  in_range(1, "--max-length", o.max_length);
  in_range(0, "--warmup-steps", o.warmup_steps);
  in_range(0, "--save-steps", o.save_steps);
  in_range(0, "--validation-steps", o.validation_steps);
  require(std::isfinite(o.alpha) && o.alpha > 0, Code::kInvalid, "cli: --alpha is ", o.alpha,
          ", it must be above 0 and finite");
  require(std::isfinite(o.lr) && o.lr >= 0, Code::kInvalid, "cli: --lr is ", o.lr,
          ", it must be at least 0 and finite");
  require(o.max_grad_norm >= 0, Code::kInvalid, "cli: --max-grad-norm is ", o.max_grad_norm,
          ", it must be at least 0; 0 and inf do not clip");
  optim::make("AdamW", JsonObject{{"lr", o.lr}});  // throws what the first step would
}

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
  const std::string output = quoted(o.output);
  const std::string what = o.full ? output : quoted(o.model);
  std::printf("saved %s\ntry it:  %s sample %s 'Who are you?'%s\n", o.output.c_str(),
              quoted(program).c_str(), what.c_str(),
              o.full ? "" : (" --adapter " + output).c_str());
}

void add_schedule(CLI::App& command, TrainingOptions& o) {
  command.add_option("--lr", o.lr, "AdamW's learning rate; 1e-5 by default with --full")
      ->capture_default_str();
  command.add_option("--lr-schedule", o.lr_schedule, "after the warm-up")
      ->check(CLI::IsMember({"constant", "linear", "cosine"}))
      ->type_name("NAME")
      ->capture_default_str();
  command.add_option("--warmup-steps", o.warmup_steps, "steps in which the rate rises to --lr")
      ->capture_default_str();
  command.add_option("--max-grad-norm", o.max_grad_norm, "0 and inf do not clip")
      ->capture_default_str();
  command.add_option("--batch-size", o.batch_size, "rows per step")->capture_default_str();
  command.add_option("--epochs", o.epochs, "passes over the rows")->capture_default_str();
}

void add_adapter(CLI::App& command, TrainingOptions& o) {
  auto* full = command.add_flag("--full", o.full, "train all weights, no adapter");
  const auto adapters = [full](CLI::Option* option) {
    option->capture_default_str()->excludes(full);
  };
  adapters(command.add_option("--rank", o.rank, "rank of the adapter"));
  adapters(command.add_option("--alpha", o.alpha, "its scale is alpha / rank"));
  adapters(command.add_option("--target-modules", o.target_modules,
                              "all-linear, or names separated by commas: q_proj,v_proj"));
}

void add_output(CLI::App& command, TrainingOptions& o) {
  command.add_option("--output", o.output,
                     "directory to write [outputs/adapter, with --full outputs/model]");
  auto* overwrite = command.add_flag("--overwrite", o.overwrite, "replace an earlier run's output");
  command.add_flag("--resume", o.resume, "continue from the state in --output, bit for bit")
      ->excludes(overwrite);
  command.add_option("--save-steps", o.save_steps, "save a state every so many steps; 0: never")
      ->capture_default_str();
  auto* validation =
      command.add_option("--validation", o.validation, "rows whose loss is reported at the end");
  command.add_option("--validation-steps", o.validation_steps, "and every so many steps; 0: never")
      ->needs(validation)
      ->capture_default_str();
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
  command->add_option("data", o->data, ".json, .jsonl or .csv")->required();
  add_output(*command, *o);
  command->add_option("--preprocessor", o->preprocessor,
                      "for rows without messages: " + preprocessors_for_tuning());
  add_adapter(*command, *o);
  add_schedule(*command, *o);
  command->add_option("--max-length", o->max_length, "longest row, tokens")->capture_default_str();
  add_device(*command, o->device);
  add_seed(*command, o->seed, "seed of the row order and of the adapter");
  add_options(*command, o->engine,
              {"mixed_precision", "token_budget", "activation_bytes", "memory_share",
               "deterministic", "train_graphs"});
  command->callback([o, command, &action] {
    if (o->full && command->count("--lr") == 0) o->lr = 1e-5;
    if (command->count("--output") == 0) o->output = o->full ? "outputs/model" : "outputs/adapter";
    if (command->count("--preprocessor") > 0) check_preprocessor(o->preprocessor);
    check(*o, *command);
    action = [o, command](const std::string& program) {
      o->command_to_resume = command_to_resume(program, *command);
      run_training(*o);
      say_what_is_next(*o, program);
    };
  });
}

}  // namespace twinkle::cli
