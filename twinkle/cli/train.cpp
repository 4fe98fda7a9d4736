// twinkle train MODEL DATA: training of a LoRA adapter, or of all weights, from chats, texts,
// preferences or rewards.
#include <algorithm>
#include <cstdio>
#include <set>

#include "twinkle/base/file.h"
#include "twinkle/cli/command.h"
#include "twinkle/cli/device.h"
#include "twinkle/cli/options/flags.h"
#include "twinkle/cli/options/yaml.h"
#include "twinkle/cli/run/run_folder.h"
#include "twinkle/cli/train/losses.h"
#include "twinkle/cli/train/rows.h"
#include "twinkle/cli/train/training.h"
#include "twinkle/data/rows/renames.h"
#include "twinkle/optim/optimizer.h"

namespace twinkle::cli {
namespace {

constexpr const char* kForms =
    "DATA has one row per line (.jsonl), or is a list (.json) or a table (.csv, .tsv, .parquet, "
    ".arrow, .lance) of rows, or lines of text (.txt):\n"
    "  {\"messages\": [{\"role\": \"user\", \"content\": \"...\"}, {\"role\": \"assistant\", "
    "...}]}\n"
    "  {\"prompt\": \"...\", \"completion\": \"...\"}, and the other forms of docs/training.md\n"
    "  {\"prompt\": \"...\", \"chosen\": \"...\", \"rejected\": \"...\"}   --loss dpo, orpo, "
    "simpo, reward\n"
    "  {\"prompt\": \"...\", \"completion\": \"...\", \"label\": true}   --loss kto\n"
    "  {\"prompt\": \"...\"}   --loss grpo\n"
    "  {\"text\": \"...\"}   --loss pretrain\n"
    "Columns of other names: --columns Question=prompt,Answer=completion.\n"
    "Of chats only the assistant's replies count towards the loss. Each run has a new folder, "
    "outputs/NAME-1, -2, ..., with its result, log.jsonl, loss.png and config.yaml. Ctrl-C "
    "finishes the step, saves, and prints how to resume.";

constexpr std::array kOfAdapter = {"--rank", "--alpha", "--target-modules"};
constexpr std::array kOfGrpo = {"--reward", "--reward-seconds", "--num-generations", "--max-tokens",
                                "--temperature"};
constexpr std::array kOfFolder = {"--output", "--overwrite", "--resume"};

void say_what_is_next(const Trained& trained, const TrainingOptions& o,
                      const std::string& program) {
  const std::string weights = quoted(trained.weights), typed = quoted(program),
                    model = o.recipe.full ? weights : quoted(o.model),
                    prompt = quoted(trained.prompt.empty() ? "Hello" : trained.prompt);
  std::string more = o.recipe.full ? "" : " --adapter " + weights;
  if (!trained.system.empty()) more += " --system " + quoted(trained.system);
  std::printf("saved %s\n", trained.weights.c_str());
  if (!trained.advice.empty()) std::printf("note: %s\n", trained.advice.c_str());
  if (o.goal.loss == "reward") {
    std::printf(
        "it scores replies: model.add_adapter_to_model(\"default\", %s) and "
        "model.forward_only(inputs=chats)[\"logits\"], see docs/preferences.md\n",
        weights.c_str());
    return;
  }
  std::printf("try it:  %s sample %s %s%s%s\n", typed.c_str(), model.c_str(), prompt.c_str(),
              more.c_str(), trained.plain ? " --plain" : "");
  if (trained.plain) return;  // it may have no chat template
  std::printf("     or:  %s chat %s%s\n", typed.c_str(), model.c_str(), more.c_str());
}

class Arguments {
 public:
  Arguments(const CLI::App& command, const TrainingOptions& o) : command_(command), o_(o) {}

  // Rules of one option about another, wherever they were given.
  void relate() const {
    for (const char* positional : {"--model", "--data"})
      if (command_.count(positional) == 0) throw CLI::RequiredError(positional + 2);
    for (const char* name : kOfAdapter)
      if (o_.recipe.full && command_.count(name) > 0) throw CLI::ExcludesError(name, "--full");
    if (o_.recipe.validation_steps > 0 && o_.files.validation.empty())
      throw CLI::RequiresError("--validation-steps", "--validation");
    require(o_.goal.loss != "grpo" || o_.files.validation.empty(), Code::kInvalid,
            "cli: --validation measures a loss of rows, and --loss grpo has none; its reward is in "
            "log.jsonl. Leave --validation out");
    for (const char* name : kOfGrpo)
      require(o_.goal.loss == "grpo" || command_.count(name) == 0, Code::kInvalid, "cli: ", name,
              " is of --loss grpo, and --loss is ", o_.goal.loss, "; leave it out");
    check_goal(o_);
  }

  // Options that this run leaves out of its config.yaml: those without a value, of another
  // objective, and of its folder.
  std::set<const CLI::Option*> unsaid() const {
    std::set<const CLI::Option*> out;
    const auto leave = [&](const auto& names) {
      for (const char* name : names) out.insert(command_.get_option(name));
    };
    for (const CLI::Option* option : command_.get_options()) {
      const bool is_flag = option->get_items_expected_max() == 0;
      const bool has_default = is_flag || !option->get_default_str().empty();
      if (option->count() == 0 && !has_default) out.insert(option);
    }
    leave(kOfFolder);
    if (o_.recipe.full) leave(kOfAdapter);
    if (o_.goal.loss != "grpo") leave(kOfGrpo);
    if (command_.count("--reference-free") == 0) leave(std::array{"--reference-free"});
    if (o_.files.validation.empty()) leave(std::array{"--validation-steps"});
    return out;
  }

 private:
  const CLI::App& command_;
  const TrainingOptions& o_;
};

// An effective default, which config.yaml has, too.
template <class T>
void settle(CLI::App& command, const char* name, T& value, const T& otherwise) {
  CLI::Option* option = command.get_option(name);
  if (option->count() > 0) return;
  value = otherwise;
  option->default_str(told(Json(value)));
}

// Rows are trained as a preprocessor's messages.
bool makes_chats(RowKind rows) { return rows == RowKind::kChats || rows == RowKind::kJudged; }

double default_lr(const TrainingOptions& o) {
  if (o.recipe.full) return 1e-5;
  switch (rows_of(o.goal.loss)) {
    case RowKind::kPairs:
    case RowKind::kJudged:
      return 5e-5;
    case RowKind::kPrompts:
      return 2e-5;
    default:
      return 1e-4;
  }
}

// A resumed run has its own options; those that are given anew win.
void read_configs(CLI::App& command, TrainingOptions& o, const std::string& config) {
  if (!config.empty()) read_yaml(command, config);
  if (!o.files.resume) return;
  if (o.files.overwrite) throw CLI::ExcludesError("--resume", "--overwrite");
  if (o.files.output.empty() && command.count("--output") == 0)
    o.files.output = latest_run().string();
  const RunFolder folder{o.files.output};
  if (is_there(folder.config())) return read_yaml(command, folder.config());
  require(command.count("--model") > 0, Code::kNotFound, "cli: --resume: there is no run in ",
          o.files.output, "; name the folder of an earlier run by --output");
}

void complete(CLI::App& command, TrainingOptions& o, const std::string& config) {
  read_configs(command, o, config);
  require(command.count("--output") == 0 || !o.files.output.empty(), Code::kInvalid,
          "cli: --output is empty; name a folder, or leave it out");
  settle(command, "--lr", o.recipe.lr, default_lr(o));
  const Arguments arguments(command, o);
  arguments.relate();
  if (!o.files.preprocessor.empty() || command.count("--preprocessor") > 0)
    check_preprocessor(o.files.preprocessor, makes_chats(rows_of(o.goal.loss)));
  data::renames_of(o.files.columns);
  optim::make("AdamW", JsonObject{{"lr", o.recipe.lr}});  // throws what the first step would
  o.config = as_yaml(command, arguments.unsaid());
}

}  // namespace

void train(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "train", "Train an adapter, or a model, on chats, texts, preferences or rewards");
  command->footer(kForms);
  auto o = std::make_shared<TrainingOptions>();
  auto config = std::make_shared<std::string>();
  command->add_option("model,--model", o->model,
                      "smollm2, directory, .gguf file with a tokenizer beside it, or hub id");
  command->add_option(
      "data,--data", o->data,
      ".jsonl, .json, .csv, .tsv, .txt, .parquet, .pq, .arrow or .lance, or hub id");
  command
      ->add_option("--config", *config,
                   "YAML file of these options, as a run's config.yaml; those given here win")
      ->configurable(false);
  add_options(*command, o->files);
  add_options(*command, o->goal);
  for (const AnyOption& one : loss_options(o->loss_options)) add_option(*command, one);
  add_options(*command, o->recipe);
  add_options(*command, o->engine,
              {"mixed_precision", "token_budget", "activation_bytes", "memory_share",
               "deterministic", "train_graphs"});
  command->get_option("--preprocessor")
      ->description("makes messages of rows that have none: " + preprocessors_for_tuning());
  add_device(*command, o->device);
  shorten_help(*command, {"--config", "--output", "--resume", "--validation", "--preprocessor",
                          "--loss", "--reward", "--full", "--rank", "--lr", "--batch-size",
                          "--epochs", "--max-length", "--device"});
  command->callback([o, config, command, &action] {
    complete(*command, *o, *config);
    action = [o](const std::string& program) {
      say_what_is_next(run_training(*o, program), *o, program);
    };
  });
}

}  // namespace twinkle::cli
