#include "twinkle/cli/train/training.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <utility>

#include "twinkle/base/file.h"
#include "twinkle/cli/device.h"
#include "twinkle/cli/model_path.h"
#include "twinkle/cli/run/progress.h"
#include "twinkle/cli/run/run_folder.h"
#include "twinkle/cli/run/run_log.h"
#include "twinkle/cli/train/interrupts.h"
#include "twinkle/cli/train/losses.h"
#include "twinkle/cli/train/objective.h"
#include "twinkle/cli/train/recipe.h"
#include "twinkle/data/loader.h"
#include "twinkle/engine/engine.h"
#include "twinkle/engine/memory/text_of_error.h"
#include "twinkle/io/atomic.h"
#include "twinkle/io/peft/card.h"
#include "twinkle/text/template.h"

namespace twinkle::cli {
namespace {

namespace fs = std::filesystem;

bool is_data_file(const fs::path& path) {
  const fs::path extension = path.extension();
  return extension == ".jsonl" || extension == ".json" || extension == ".csv" ||
         extension == ".tsv";
}

// Finds a wrong order of arguments, and a model that is not there.
std::string checked_model(const TrainingOptions& o) {
  require(!is_data_file(o.model), Code::kInvalid, "cli: ", o.model,
          " is a data file; the model comes first: twinkle train ", o.data, " ", o.model);
  check_trackers(o.files.report_to);
  return model_path(o.model);
}

// The time when the run began, in seconds since 1970: templates that print the date print the same
// after a resume.
int64_t began(const TrainingOptions& o) {
  const fs::path file = RunFolder{o.files.output}.state() / kTrainerState;
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

text::TemplateOptions template_of(const TrainingOptions& o, int64_t now) {
  if (rows_of(o.goal.loss) != RowKind::kTexts)
    return {.max_length = 0, .now = now};  // rows name --max-length
  return {.use_chat_template = false,
          .max_length = o.recipe.max_length,
          .truncation = text::Truncation::kSplit};
}

engine::EngineOptions engine_of(const TrainingOptions& o, const std::string& model) {
  engine::EngineOptions out = o.engine;
  out.model.path = model;
  out.model.device = device_or_default(o.device);
  return out;
}

std::string shown(const char* format, double value) {
  std::array<char, 96> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

class Training {
 public:
  Training(const TrainingOptions& o, const std::string& program)
      : o_(o),
        program_(program),
        model_(checked_model(o)),
        began_(began(o)),
        template_(model_, template_of(o, began_)),
        objective_(make_objective(o, template_)),
        rows_(read(o.data)),
        batches_(rows_.size(),
                 {.batch_size = o.recipe.batch_size, .shuffle = true, .seed = o.recipe.seed}),
        steps_(o.recipe.epochs * batches_.num_batches()),
        settings_(settings_of(o, rows_)),
        learning_rate_(schedule_of(o.recipe, steps_)),
        validation_(o.files.validation.empty() ? data::Dataset() : read(o.files.validation)),
        folder_(checked_folder()),
        engine_(engine_of(o, model_)) {
    engine_.run<engine::Done>(
        engine::Create{.tenant = kTenant, .lora_json = lora_json(o), .seed = o.recipe.seed});
    objective_->check(engine_.model_info(), rows_);
    if (o.files.resume) resume();
    make_folder();
  }

  Trained run() {
    finish_on_interrupt();
    Progress progress(step_, steps_);
    RunLog log(folder_, step_, o_.files.report_to);
    while (step_ < steps_) {
      batches_.start(epoch_++);
      for (auto batch = batches_.next(); !batch.empty(); batch = batches_.next()) {
        take_step(batch, progress, log);
        if (interrupted() && step_ < steps_) stop(progress, log);
        if (due(o_.recipe.save_steps)) save_state();
        if (due(o_.recipe.validation_steps)) validate(progress, log);
      }
    }
    if (!validation_.rows().empty()) validate(progress, log);
    progress.end();
    save();
    log.finish(progress);
    return result();
  }

 private:
  data::Dataset read(const std::string& file) const {
    data::Dataset rows = objective_->read(file);
    require(rows.size() > 0, Code::kInvalid, "cli: ", file, " has no rows to ",
            file == o_.data ? "train on" : "measure the loss of");
    return rows;
  }

  RunFolder checked_folder() const {
    if (o_.files.output.empty()) return {};  // a new one, once all else is right
    const RunFolder folder{o_.files.output};
    check_run_folder(folder, model_, o_.recipe.full,
                     o_.files.overwrite ? Earlier::kReplace
                     : o_.files.resume  ? Earlier::kResume
                                        : Earlier::kRefuse);
    return folder;
  }

  // From here on there is a folder. Finds problems that only a save can find, such as a full disk,
  // by saving the weights next to their place.
  void make_folder() {
    const bool is_new = o_.files.output.empty() || !is_there(folder_.path);
    if (o_.files.output.empty()) folder_ = new_run_folder(o_.data);
    try {
      const AtomicDirectory beside(folder_.state());
      engine_.run<engine::SaveResult>(engine::Save{kTenant, beside.staging() / "trial", true});
    } catch (const std::exception& e) {
      if (is_new) remove_tree(folder_.path);
      fail(Code::kInvalid, "cli: --output ", folder_.path.string(),
           " cannot be saved to: ", e.what(), "; name a new folder");
    }
    if (!o_.files.resume) clear(folder_);
    write_file_atomically(folder_.config(), o_.config);
    if (o_.files.output.empty()) link_latest(folder_);
  }

  bool due(int64_t interval) const {
    return interval > 0 && step_ % interval == 0 && step_ < steps_;
  }

  void take_step(const std::vector<int64_t>& batch, Progress& progress, RunLog& log) {
    const int64_t before = batches_.consumed() - std::ssize(batch);
    Work work = objective_->work(engine_, rows_, batch, before);
    const auto result = engine_.run<engine::ForwardResult>(work.pass);
    const double lr = learning_rate_(o_.recipe.lr, step_);
    const auto taken = engine_.run<engine::StepResult>(
        engine::Step{.tenant = kTenant,
                     .options = boost::json::serialize(JsonObject{{"lr", lr}}),
                     .max_grad_norm = o_.recipe.max_grad_norm});
    double num_tokens = 0;
    for (const auto& sequence : work.pass.sequences)
      num_tokens += static_cast<double>(sequence.input_ids.size());
    objective_->note(work, result);
    loss_ = result.loss / std::max(1.0, result.num_tokens);
    std::string what = shown("loss %.4f", loss_);
    if (const Json* reward = work.noted.if_contains("reward"))
      what = shown("reward %.3f  ", reward->to_number<double>()) + what;
    progress.show(++step_, what, num_tokens);
    JsonObject line{
        {"step", step_},
        {"epoch", static_cast<double>(batches_.consumed()) / static_cast<double>(rows_.size())},
        {"loss", loss_},
        {"lr", lr},
        {"grad_norm", taken.grad_norm},
        {"tokens", num_tokens},
        {"tokens_per_second", progress.rate()},
        {"seconds", log.seconds() + progress.seconds()}};
    for (const auto& [name, value] : work.noted) line[name] = value;
    log.write(line, progress);
    const Json* equal = work.noted.if_contains("frac_reward_zero_std");
    if (equal && equal->to_number<double>() == 1 && !std::exchange(said_equal_, true))
      progress.say(
          "the rewards of each prompt are equal, so this step teaches nothing: grade the reward, "
          "or "
          "use easier prompts (docs/grpo.md); further ones are in log.jsonl alone");
  }

  // The mean loss of the validation rows; an interrupt ends it early, without a word.
  void validate(Progress& progress, RunLog& log) {
    double loss = 0, weights = 0;
    data::Loader batches(validation_.size(), {.batch_size = o_.recipe.batch_size});
    for (auto batch = batches.next(); !batch.empty(); batch = batches.next()) {
      if (interrupted() && step_ < steps_) return stop(progress, log);
      const Work work = objective_->work(engine_, validation_, batch, 0);
      const auto result = engine_.run<engine::ForwardResult>(
          engine::Forward{.tenant = kTenant,
                          .sequences = work.pass.sequences,
                          .loss = work.pass.loss,
                          .loss_options = work.pass.loss_options});
      const double weight =
          objective_->is_mean() ? static_cast<double>(batch.size()) : result.num_tokens;
      loss += objective_->is_mean() ? result.loss * weight : result.loss;
      weights += weight;
    }
    validation_loss_ = loss / std::max(1.0, weights);
    progress.say(shown("validation loss %.4f", *validation_loss_) + " after step " +
                 std::to_string(step_));
    log.write({{"step", step_}, {"validation_loss", *validation_loss_}}, progress);
  }

  // Under the names that Python's checkpoints have, too.
  void save_state() {
    const JsonObject state{{"cur_step", step_},
                           {"consumed_train_samples", batches_.consumed()},
                           {"began", began_},
                           {"twinkle_train", settings_}};
    engine_.run<engine::SaveResult>(engine::Save{.tenant = kTenant,
                                                 .directory = folder_.state(),
                                                 .optimizer = true,
                                                 .extra_json = boost::json::serialize(state)});
  }

  // The result; and the state, from which more epochs can go on. That of all weights would be
  // several times the model.
  void save() {
    const fs::path weights = folder_.weights(o_.recipe.full);
    engine_.run<engine::SaveResult>(engine::Save{.tenant = kTenant, .directory = weights});
    if (o_.recipe.full) return remove_tree(folder_.state());
    write_file_atomically(weights / kPeftCard,
                          peft_card(read_peft(weights).config, about_the_run()));
    save_state();
  }

  std::string about_the_run() const {
    std::string out =
        "## Training\n\n- data: " + fs::path(o_.data).filename().string() + ", " +
        std::to_string(rows_.size()) + " rows\n- objective: " + o_.goal.loss +
        "\n- steps: " + std::to_string(step_) + ", of " + std::to_string(o_.recipe.batch_size) +
        " rows; passes over the rows: " + std::to_string(o_.recipe.epochs) +
        "\n- learning rate: " + shown("%g", o_.recipe.lr) + ", " + o_.recipe.lr_schedule +
        "\n- loss of the last step: " + shown("%.4f", loss_) + "\n";
    if (validation_loss_) out += "- validation loss: " + shown("%.4f", *validation_loss_) + "\n";
    return out + "\n";
  }

  [[noreturn]] void stop(Progress& progress, RunLog& log) {
    progress.end();
    save_state();
    log.finish(progress);
    fail(Code::kConflict, "cli: interrupted after step ", step_, " of ", steps_, "; ",
         folder_.path.string(), " holds the state; to resume, type\n", quoted(program_),
         " train --output ", quoted(folder_.path.string()), " --resume");
  }

  void resume() {
    const fs::path from = folder_.state();
    const auto loaded = engine_.run<engine::LoadResult>(
        engine::Load{.tenant = kTenant, .directory = from, .optimizer = true});
    const std::optional<Json> state = json_in(loaded.extra_json);
    const Json* saved = state ? find(*state, "twinkle_train") : nullptr;
    require(saved, Code::kInvalid, "cli: --resume: ", (from / kTrainerState).string(),
            " was not written by 'twinkle train'");
    check_settings(settings_, *saved, o_, folder_.path.string());
    step_ = get<int64_t>(*state, "cur_step");
    require(step_ < steps_, Code::kConflict, "cli: --resume: the run in ", folder_.path.string(),
            " has taken ", step_, " steps, and --epochs ", o_.recipe.epochs, " are ", steps_,
            "; give more --epochs to train it longer");
    batches_.skip(get<int64_t>(*state, "consumed_train_samples"));
  }

  Trained result() const {
    const Prompt prompt = objective_->prompt(rows_.row(0));
    return {.folder = folder_.path.string(),
            .weights = folder_.weights(o_.recipe.full).string(),
            .prompt = prompt.user,
            .system = prompt.system,
            .plain = rows_of(o_.goal.loss) == RowKind::kTexts,
            .advice = advice_on(o_, step_)};
  }

  const TrainingOptions& o_;
  const std::string program_;
  const std::string model_;
  const int64_t began_;
  const text::Template template_;
  const std::unique_ptr<Objective> objective_;
  const data::Dataset rows_;
  data::Loader batches_;
  const int64_t steps_;
  const JsonObject settings_;
  const optim::Schedule learning_rate_;
  const data::Dataset validation_;
  RunFolder folder_;
  engine::Engine engine_;
  int64_t step_ = 0;   // optimizer steps taken, earlier runs' too
  int64_t epoch_ = 0;  // to start next; of a resumed run, as its Loader counts them
  double loss_ = 0;    // the last step's
  std::optional<double> validation_loss_;
  bool said_equal_ = false;
};

}  // namespace

Trained run_training(const TrainingOptions& options, const std::string& program) {
  Training training(options, program);
  Trained trained;
  try {
    trained = training.run();
  } catch (const std::exception& e) {  // closing the engine takes a while, and hides no error
    end_on_interrupt(engine::text_of(e));
    throw;
  }
  end_on_interrupt("interrupted after the run was finished and saved");
  return trained;
}

std::string quoted(const std::string& text) {
  constexpr const char* kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./:=,+@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == text.npos) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

}  // namespace twinkle::cli
