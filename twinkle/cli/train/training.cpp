#include "twinkle/cli/train/training.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <sstream>

#include "twinkle/base/file.h"
#include "twinkle/base/random.h"
#include "twinkle/cli/device.h"
#include "twinkle/cli/model_path.h"
#include "twinkle/cli/train/interrupts.h"
#include "twinkle/cli/train/rows.h"
#include "twinkle/data/encode.h"
#include "twinkle/data/loader.h"
#include "twinkle/engine/checkpoint/persist.h"
#include "twinkle/engine/engine.h"
#include "twinkle/engine/memory/text_of_error.h"
#include "twinkle/io/atomic.h"
#include "twinkle/optim/schedules/schedule.h"
#include "twinkle/text/template.h"

namespace twinkle::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTenant = "me";
constexpr const char* kTrainerState = "trainer_state.json";

Json targets(const std::string& names) {
  if (names.find(',') == names.npos && names == "all-linear") return Json(names);
  JsonArray list;
  std::istringstream stream(names);
  for (std::string name; std::getline(stream, name, ',');) list.emplace_back(name);
  return list;
}

std::string lora_json(const TrainingOptions& o) {
  if (o.recipe.full) return "";
  return boost::json::serialize(JsonObject{{"r", o.recipe.rank},
                                           {"lora_alpha", o.recipe.alpha},
                                           {"target_modules", targets(o.recipe.target_modules)},
                                           {"base_model_name_or_path", model_name(o.model)},
                                           {"peft_type", "LORA"}});
}

optim::Schedule schedule_of(const TrainingOptions& o, int64_t steps) {
  if (o.recipe.lr_schedule == "constant") {
    return [warmup = o.recipe.warmup_steps](double lr, int64_t step) {
      return step < warmup ? lr * static_cast<double>(step + 1) / static_cast<double>(warmup) : lr;
    };
  }
  const char* name =
      o.recipe.lr_schedule == "linear" ? "LinearWarmupScheduler" : "CosineWarmupScheduler";
  return optim::make_schedule(
      name, JsonObject{{"num_warmup_steps", o.recipe.warmup_steps}, {"num_training_steps", steps}});
}

data::Dataset encoded(const TrainingOptions& o, const std::string& file,
                      const text::Template& tmpl) {
  data::Dataset rows =
      trainable_rows(file, o.files.preprocessor, tmpl, o.recipe.max_length, o.files.columns);
  require(rows.size() > 0, Code::kInvalid, "cli: ", file, " has no rows to ",
          file == o.data ? "train on" : "measure the loss of");
  return rows;
}

std::vector<engine::Example> sequences_of(const data::Dataset& rows,
                                          const std::vector<int64_t>& batch) {
  std::vector<engine::Example> sequences;
  for (const int64_t i : batch) {
    sequences.push_back({.input_ids = data::integers(rows.row(i), "input_ids"),
                         .labels = data::integers(rows.row(i), "labels")});
  }
  return sequences;
}

std::string fingerprint(const data::Dataset& rows) {
  uint64_t key = static_cast<uint64_t>(rows.size());
  for (int64_t i = 0; i < rows.size(); ++i) {
    for (const char* field : {"input_ids", "labels"}) {
      for (const int32_t value : data::integers(rows.row(i), field))
        key = key_of(key, static_cast<uint64_t>(value));
      key = key_of(key, "next");
    }
  }
  return std::to_string(key);
}

// The options that determine a run's weights: a resumed run must have the same.
JsonObject settings_of(const TrainingOptions& o, const data::Dataset& rows) {
  JsonObject settings{{"--full", o.recipe.full},
                      {"--preprocessor", o.files.preprocessor},
                      {"--columns", o.files.columns},
                      {"--max-length", o.recipe.max_length},
                      {"--batch-size", o.recipe.batch_size},
                      {"--epochs", o.recipe.epochs},
                      {"--seed", o.recipe.seed},
                      {"--lr", o.recipe.lr},
                      {"--lr-schedule", o.recipe.lr_schedule},
                      {"--warmup-steps", o.recipe.warmup_steps},
                      {"--max-grad-norm", o.recipe.max_grad_norm}};
  if (!o.recipe.full) {
    settings["--rank"] = o.recipe.rank;
    settings["--alpha"] = o.recipe.alpha;
    settings["--target-modules"] = o.recipe.target_modules;
  }
  settings["data"] = fingerprint(rows);  // last: the options above may be why it differs
  return settings;
}

void check_output(const TrainingOptions& o, const std::string& model) {
  engine::check_target(o.files.output, model, "cli: --output");  // the engine's own rule
  const fs::path output = o.files.output;
  std::error_code error;
  const bool holds_run = !names_in(output, error).empty();
  const bool holds_state = fs::is_regular_file(output / kTrainerState, error);
  if (o.files.overwrite || (o.files.resume ? holds_state : !holds_run)) return;
  require(holds_run, Code::kNotFound, "cli: --output ", o.files.output, " has no ", kTrainerState,
          ", so there is nothing to resume; name the directory of an interrupted run, or leave "
          "--resume out");
  require(!holds_state, Code::kConflict, "cli: --output ", o.files.output,
          " holds an interrupted run; give --resume to continue it, --overwrite to replace it, or "
          "name another directory");
  fail(Code::kConflict, "cli: --output ", o.files.output,
       " holds a finished run, or another adapter or model, and no state to resume; name another "
       "directory, or give --overwrite to replace it; to train longer, ",
       o.recipe.full ? "give it as MODEL and another --output" : "start again with more --epochs");
}

bool is_data_file(const fs::path& path) {
  const fs::path extension = path.extension();
  return extension == ".jsonl" || extension == ".json" || extension == ".csv" ||
         extension == ".tsv";
}

// The time when the run began, in seconds since 1970: templates that print the date print the same
// after a resume.
int64_t began(const TrainingOptions& o) {
  const fs::path file = fs::path(o.files.output) / kTrainerState;
  if (o.files.resume && is_there(file)) {
    const Json saved = read_json(file);
    const Json* extra = find(saved, "extra");
    const std::optional<Json> state =
        extra && extra->is_string() ? json_in(extra->get_string()) : std::nullopt;
    const Json* time = state ? find(*state, "began") : nullptr;
    if (time && time->is_int64())
      return time->get_int64();  // else resume() says what the file lacks
  }
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

std::string duration(double seconds) {
  std::array<char, 32> text{};
  if (seconds < 100) {
    std::snprintf(text.data(), text.size(), "%.0f s", seconds);
  } else if (seconds < 6000) {
    std::snprintf(text.data(), text.size(), "%.0f min", seconds / 60);
  } else {
    std::snprintf(text.data(), text.size(), "%.1f h", seconds / 3600);
  }
  return text.data();
}

// A line that is written over on a terminal, a line for each step elsewhere.
class Progress {
 public:
  Progress(int64_t first, int64_t steps) : first_(first), steps_(steps) {}

  void show(int64_t step, double loss, double num_tokens) {
    tokens_ += num_tokens;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    const double left =
        elapsed.count() / static_cast<double>(step - first_) * static_cast<double>(steps_ - step);
    std::fprintf(stderr, "%sstep %lld/%lld  loss %.4f  %.0f tokens/s  %s left%s",
                 terminal_ ? "\r" : "", static_cast<long long>(step),
                 static_cast<long long>(steps_), loss, tokens_ / elapsed.count(),
                 duration(left).c_str(), terminal_ ? "   " : "\n");
    open_ = terminal_;
  }

  // A line of its own.
  void say(const std::string& text) {
    std::fprintf(stderr, "%s%s\n", open_ ? "\n" : "", text.c_str());
    open_ = false;
  }

  void end() {
    if (open_) std::fputc('\n', stderr);
    open_ = false;
  }

 private:
  const int64_t first_, steps_;
  const bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double tokens_ = 0;
  bool open_ = false;  // the cursor stands behind a line that show() wrote
};

engine::EngineOptions engine_of(const TrainingOptions& o, const std::string& model) {
  engine::EngineOptions out = o.engine;
  out.model.path = model;
  out.model.device = device_or_default(o.device);
  return out;
}

class Training {
 public:
  explicit Training(const TrainingOptions& o)
      : o_(o),
        model_(checked_model(o)),
        began_(began(o)),
        template_(model_, {.max_length = 0, .now = began_}),  // trainable_rows names --max-length
        rows_(encoded(o, o.data, template_)),
        batches_(rows_.size(),
                 {.batch_size = o.recipe.batch_size, .shuffle = true, .seed = o.recipe.seed}),
        steps_(o.recipe.epochs * batches_.num_batches()),
        settings_(settings_of(o, rows_)),
        learning_rate_(schedule_of(o, steps_)),
        engine_(engine_of(o, model_)) {
    if (!o.files.validation.empty()) validation_ = encoded(o, o.files.validation, template_);
    engine_.run<engine::Done>(
        engine::Create{.tenant = kTenant, .lora_json = lora_json(o), .seed = o.recipe.seed});
    try_output();
    if (o.files.resume) resume();
  }

  void run() {
    finish_on_interrupt();
    Progress progress(step_, steps_);
    while (step_ < steps_) {
      batches_.start(epoch_++);
      for (auto batch = batches_.next(); !batch.empty(); batch = batches_.next()) {
        take_step(batch, progress);
        if (interrupted() && step_ < steps_) stop(progress);
        if (due(o_.recipe.save_steps)) save(true);
        if (due(o_.recipe.validation_steps)) validate(progress);
      }
    }
    if (!validation_.rows().empty()) validate(progress);
    progress.end();
    save(false);
  }

 private:
  static std::string checked_model(const TrainingOptions& o) {
    require(!is_data_file(o.model), Code::kInvalid, "cli: ", o.model,
            " is a data file; the model comes first: twinkle train ", o.data, " ", o.model);
    std::string path = model_path(o.model);
    check_output(o, path);
    return path;
  }

  bool due(int64_t interval) const {
    return interval > 0 && step_ % interval == 0 && step_ < steps_;
  }

  void take_step(const std::vector<int64_t>& batch, Progress& progress) {
    const engine::ForwardBackward work{.tenant = kTenant, .sequences = sequences_of(rows_, batch)};
    const auto result = engine_.run<engine::ForwardResult>(work);
    const JsonObject options{{"lr", learning_rate_(o_.recipe.lr, step_)}};
    engine_.run<engine::StepResult>(engine::Step{.tenant = kTenant,
                                                 .options = boost::json::serialize(options),
                                                 .max_grad_norm = o_.recipe.max_grad_norm});
    double num_tokens = 0;
    for (const auto& sequence : work.sequences)
      num_tokens += static_cast<double>(sequence.input_ids.size());
    progress.show(++step_, result.loss / std::max(1.0, result.num_tokens), num_tokens);
  }

  // The mean loss of a label of the validation rows; an interrupt ends it early, without a word.
  void validate(Progress& progress) {
    double loss = 0, num_labels = 0;
    data::Loader batches(validation_.size(), {.batch_size = o_.recipe.batch_size});
    for (auto batch = batches.next(); !batch.empty(); batch = batches.next()) {
      if (interrupted() && step_ < steps_) return stop(progress);
      const engine::Forward work{.tenant = kTenant, .sequences = sequences_of(validation_, batch)};
      const auto result = engine_.run<engine::ForwardResult>(work);
      for (size_t i = 0; i < work.sequences.size(); ++i) {
        for (const float logp : result.logps[i]) loss -= logp;
        num_labels += static_cast<double>(std::ranges::count_if(
            work.sequences[i].labels, [](int32_t label) { return label != -100; }));
      }
    }
    std::array<char, 96> text{};
    std::snprintf(text.data(), text.size(), "validation loss %.4f after step %lld",
                  loss / std::max(1.0, num_labels), static_cast<long long>(step_));
    progress.say(text.data());
  }

  // Under the names that Python's checkpoints have, too.
  void save(bool to_go_on) {
    const JsonObject state{{"cur_step", step_},
                           {"consumed_train_samples", batches_.consumed()},
                           {"began", began_},
                           {"twinkle_train", settings_}};
    engine_.run<engine::SaveResult>(
        engine::Save{.tenant = kTenant,
                     .directory = o_.files.output,
                     .optimizer = to_go_on,
                     .extra_json = to_go_on ? boost::json::serialize(state) : ""});
  }

  [[noreturn]] void stop(Progress& progress) {
    progress.end();
    save(true);
    fail(Code::kConflict, "cli: interrupted after step ", step_, " of ", steps_, "; ",
         o_.files.output, " holds the state; to resume, type\n", o_.command_to_resume);
  }

  void resume() {
    const auto loaded = engine_.run<engine::LoadResult>(
        engine::Load{.tenant = kTenant, .directory = o_.files.output, .optimizer = true});
    const std::string file = (fs::path(o_.files.output) / kTrainerState).string();
    const std::optional<Json> state = json_in(loaded.extra_json);
    const Json* saved = state ? find(*state, "twinkle_train") : nullptr;
    require(saved, Code::kInvalid, "cli: --resume: ", file, " was not written by 'twinkle train'");
    for (const auto& [name, value] : settings_) {
      const Json* theirs = find(*saved, name);
      const std::string now = boost::json::serialize(value);
      const std::string then = theirs ? boost::json::serialize(*theirs) : "not there";
      if (then == now) continue;
      require(name != "data", Code::kConflict, "cli: --resume: the rows of ", o_.data,
              " are not those that the run in ", o_.files.output,
              " was trained on; give its file, or --overwrite to start again");
      fail(Code::kConflict, "cli: --resume: ", std::string_view(name), " is ", now,
           ", that of the run in ", o_.files.output, " is ", then,
           "; give the same, or --overwrite to start again");
    }
    step_ = get<int64_t>(*state, "cur_step");
    batches_.skip(get<int64_t>(*state, "consumed_train_samples"));
  }

  // Finds problems that only a save can find, such as a full disk, by saving the untrained weights
  // to a folder next to the output, which is then removed.
  void try_output() {
    try {
      const AtomicDirectory beside(o_.files.output);
      engine_.run<engine::SaveResult>(engine::Save{kTenant, beside.staging() / "trial", true});
    } catch (const std::exception& e) {
      fail(Code::kInvalid, "cli: --output ", o_.files.output, " cannot be saved to: ", e.what(),
           "; name a new directory");
    }
  }

  const TrainingOptions& o_;
  const std::string model_;
  const int64_t began_;
  const text::Template template_;
  const data::Dataset rows_;
  data::Dataset validation_;
  data::Loader batches_;
  const int64_t steps_;
  const JsonObject settings_;
  const optim::Schedule learning_rate_;
  engine::Engine engine_;
  int64_t step_ = 0;   // optimizer steps taken, earlier runs' too
  int64_t epoch_ = 0;  // to start next; of a resumed run, as its Loader counts them
};

}  // namespace

void run_training(const TrainingOptions& options) {
  Training training(options);
  try {
    training.run();
  } catch (const std::exception& e) {  // closing the engine takes a while, and hides no error
    end_on_interrupt(engine::text_of(e));
    throw;
  }
  end_on_interrupt("interrupted after the run was finished and saved");
}

}  // namespace twinkle::cli
