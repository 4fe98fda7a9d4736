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
#include "twinkle/data/rows/files.h"
#include "twinkle/engine/engine.h"
#include "twinkle/engine/memory/text_of_error.h"
#include "twinkle/io/atomic.h"
#include "twinkle/io/peft/card.h"
#include "twinkle/text/rows.h"
#include "twinkle/text/template.h"

namespace twinkle::cli {
namespace {

namespace fs = std::filesystem;

// Finds a wrong order of arguments, and a model that is not there.
std::string checked_model(const TrainingOptions& o) {
  require(data::kind_of_file(o.model) == data::FileKind::kOther, Code::kInvalid, "cli: ", o.model,
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
    for (const data::Dataset* rows : {&rows_, &validation_})
      objective_->check(engine_.model_info(), *rows);
    if (o.files.resume) resume();
    make_folder();
  }

  Trained run() {
    finish_on_interrupt();
    Progress progress(step_, steps_);
    RunLog log(folder_, step_, o_.files.report_to);
    bool is_done = false;
    try {
      is_done = take_steps(progress, log);
      progress.end();
      is_done ? save() : save_state();
    } catch (const std::exception& e) {  // the steps that were taken are not lost with it
      if (step_ == 0) throw;
      end_with(e, progress, log);
    }
    log.finish(progress);
    require(is_done, Code::kConflict, "cli: interrupted after step ", step_, " of ", steps_, "; ",
            how_to_resume());
    return result();
  }

  // A run that failed before its first step leaves nothing that would be taken for a run.
  void remove_unused_folder() const {
    if (is_new_ && step_ == 0) remove_if_unused(folder_);
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
    is_new_ = o_.files.output.empty() || !is_there(folder_.path);
    if (o_.files.output.empty()) folder_ = new_run_folder(o_.data);
    try {
      const AtomicDirectory beside(folder_.state());
      engine_.run<engine::SaveResult>(engine::Save{kTenant, beside.staging() / "trial", true});
    } catch (const std::exception& e) {
      if (is_new_) remove_tree(folder_.path);
      fail(Code::kInvalid, "cli: --output ", folder_.path.string(),
           " cannot be saved to: ", e.what(), "; name a new folder");
    }
    if (!o_.files.resume) clear(folder_);
    write_file_atomically(folder_.config(), o_.config);
  }

  // False: an interrupt came before the end.
  bool take_steps(Progress& progress, RunLog& log) {
    while (step_ < steps_) {
      batches_.start(epoch_++);
      for (auto batch = batches_.next(); !batch.empty(); batch = batches_.next()) {
        take_step(batch, progress, log);
        if (interrupted() && step_ < steps_) return false;
        if (due(o_.recipe.save_steps)) save_state();
        if (due(o_.recipe.validation_steps) && !validate(progress, log)) return false;
      }
    }
    return validation_.rows().empty() || validate(progress, log);
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
    consumed_ = batches_.consumed();
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

  // The mean loss of the validation rows. False: an interrupt ended it early.
  bool validate(Progress& progress, RunLog& log) {
    double loss = 0, weights = 0;
    data::Loader batches(validation_.size(), {.batch_size = o_.recipe.batch_size});
    for (auto batch = batches.next(); !batch.empty(); batch = batches.next()) {
      if (interrupted() && step_ < steps_) return false;
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
    return true;
  }

  // After the last step that was taken, without what a failed one has left. Under the names that
  // Python's checkpoints have, too.
  void save_state() {
    const JsonObject state{{"cur_step", step_},
                           {"consumed_train_samples", consumed_},
                           {"began", began_},
                           {"twinkle_train", settings_}};
    engine_.run<engine::SaveResult>(engine::Save{.tenant = kTenant,
                                                 .directory = folder_.state(),
                                                 .optimizer = true,
                                                 .extra_json = boost::json::serialize(state),
                                                 .gradients = false});
    note_saved();
  }

  // outputs/latest leads to runs with something to use or to resume.
  void note_saved() const {
    if (o_.files.output.empty()) link_latest(folder_);
  }

  // The result; and the state, from which more epochs can go on. That of all weights would be
  // several times the model.
  void save() {
    const fs::path weights = folder_.weights(o_.recipe.full);
    engine_.run<engine::SaveResult>(engine::Save{.tenant = kTenant, .directory = weights});
    note_saved();
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

  std::string how_to_resume() const {
    const std::string folder = folder_.path.string();
    return folder + " holds the state; to resume, type\n" + quoted(program_) + " train --output " +
           quoted(folder) + " --resume";
  }

  // Saves what there is, says where, and throws the error with its step.
  [[noreturn]] void end_with(const std::exception& e, Progress& progress, RunLog& log) {
    const bool is_whole = step_ == steps_;
    try {
      is_whole ? save() : save_state();
      progress.say(is_whole ? "saved " + folder_.weights(o_.recipe.full).string()
                            : how_to_resume());
    } catch (const std::exception& of_save) {
      progress.say("the steps so far could not be saved: " + std::string(engine::text_of(of_save)));
    }
    log.finish(progress);
    const auto* error = dynamic_cast<const Error*>(&e);
    fail(error ? error->code : Code::kInternal, "cli: after step ", step_, " of ", steps_, ": ",
         text::without_folder(engine::text_of(e)));
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
    consumed_ = get<int64_t>(*state, "consumed_train_samples");
    batches_.skip(consumed_);
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
  bool is_new_ = false;  // this run made the folder
  engine::Engine engine_;
  int64_t step_ = 0;      // optimizer steps taken, earlier runs' too
  int64_t consumed_ = 0;  // rows of these steps
  int64_t epoch_ = 0;     // to start next; of a resumed run, as its Loader counts them
  double loss_ = 0;       // the last step's
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
    training.remove_unused_folder();
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
