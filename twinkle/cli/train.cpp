// twinkle train MODEL DATA: supervised fine-tuning of a LoRA adapter on rows of messages.
#include <chrono>
#include <cmath>
#include <cstdio>

#include "twinkle/cli/command.h"
#include "twinkle/cli/model_path.h"
#include "twinkle/cli/seed.h"
#include "twinkle/data/encode.h"
#include "twinkle/data/loader.h"
#include "twinkle/data/preprocessors/preprocessor.h"
#include "twinkle/engine/engine.h"
#include "twinkle/engine/persist.h"
#include "twinkle/io/atomic.h"
#include "twinkle/optim/optimizer.h"
#include "twinkle/text/template.h"

namespace twinkle::cli {
namespace {

struct Options {
  std::string model, data, output = "outputs/adapter", preprocessor, device = "cpu";
  int64_t rank = 8, batch_size = 8, epochs = 1, max_length = 1024;
  double alpha = 16, lr = 1e-4, max_grad_norm = 1.0;
  uint64_t seed = 42;
};

std::string lora_json(const Options& o) {
  return boost::json::serialize(JsonObject{{"r", o.rank},
                                           {"lora_alpha", o.alpha},
                                           {"target_modules", "all-linear"},
                                           {"peft_type", "LORA"}});
}

void progress(int64_t step, int64_t steps, double loss, double tokens, double seconds) {
  std::fprintf(stderr, "\rstep %lld/%lld  loss %.4f  %.0f tokens/s  %.0f s left   ",
               static_cast<long long>(step), static_cast<long long>(steps), loss, tokens / seconds,
               seconds / static_cast<double>(step) * static_cast<double>(steps - step));
}

void check(const Options& o) {
  const auto at_least_one = [](const char* name, int64_t value) {
    require(value >= 1, Code::kInvalid, "cli: --", name, " is ", value, ", it must be at least 1");
  };
  at_least_one("epochs", o.epochs);
  at_least_one("batch-size", o.batch_size);
  at_least_one("max-length", o.max_length);
  require(std::isfinite(o.alpha) && o.alpha > 0, Code::kInvalid, "cli: --alpha is ", o.alpha,
          ", it must be above 0 and finite");
  require(std::isfinite(o.lr) && o.lr >= 0, Code::kInvalid, "cli: --lr is ", o.lr,
          ", it must be at least 0 and finite");
  require(o.max_grad_norm >= 0, Code::kInvalid, "cli: --max-grad-norm is ", o.max_grad_norm,
          ", it must be at least 0; 0 and inf do not clip");
  optim::make("AdamW", JsonObject{{"lr", o.lr}});  // throws what the first step would
}

// Finds out now what only a save can tell, a full disk say, by saving the untrained adapter to a
// folder beside the output, which goes again.
void try_output(engine::Engine& engine, const std::string& output) {
  try {
    const AtomicDirectory beside(output);
    engine.run<engine::SaveResult>(engine::Save{"me", beside.staging() / "trial", true});
  } catch (const std::exception& e) {
    fail(Code::kInvalid, "cli: --output ", output, " cannot be saved to: ", e.what(),
         "; name a new directory");
  }
}

void run(const Options& o) {
  check(o);
  const std::string path = model_path(o.model);
  engine::check_target(o.output, path, "cli: --output");  // the engine's own rule
  const text::Template tmpl(path, {.max_length = o.max_length});
  data::Dataset rows = data::Dataset::read(o.data);
  if (!o.preprocessor.empty()) rows = rows.map(data::make_preprocessor(o.preprocessor));
  rows = rows.encode(data::encoder(tmpl));
  require(rows.size() > 0, Code::kInvalid, "cli: ", o.data, " has no rows to train on");
  data::Loader batches(rows.size(), {.batch_size = o.batch_size, .shuffle = true, .seed = o.seed});
  engine::Engine engine({.model = path, .device = o.device});
  engine.run<engine::Done>(
      engine::Create{.tenant = "me", .lora_json = lora_json(o), .seed = o.seed});
  try_output(engine, o.output);
  const std::string options = boost::json::serialize(JsonObject{{"lr", o.lr}});
  const auto start = std::chrono::steady_clock::now();
  int64_t step = 0;
  double tokens = 0;
  for (int64_t epoch = 0; epoch < o.epochs; ++epoch) {
    batches.start(epoch);
    for (auto batch = batches.next(); !batch.empty(); batch = batches.next()) {
      engine::ForwardBackward work{.tenant = "me"};
      for (const int64_t i : batch) {
        work.sequences.push_back({.input_ids = data::integers(rows.row(i), "input_ids"),
                                  .labels = data::integers(rows.row(i), "labels")});
        tokens += static_cast<double>(work.sequences.back().input_ids.size());
      }
      const auto result = engine.run<engine::ForwardResult>(work);
      engine.run<engine::StepResult>(
          engine::Step{.tenant = "me", .options = options, .max_grad_norm = o.max_grad_norm});
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      progress(++step, o.epochs * batches.num_batches(),
               result.loss / std::max(1.0, result.num_tokens), tokens, seconds.count());
    }
  }
  std::printf("\n%s\n",
              engine.run<engine::SaveResult>(engine::Save{"me", o.output}).directory.c_str());
}

}  // namespace

void train(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "Fine-tune a LoRA adapter on rows of messages");
  auto o = std::make_shared<Options>();
  command->add_option("model", o->model, "directory or hub id")->required();
  command->add_option("data", o->data, ".json, .jsonl or .csv")->required();
  command->add_option("--output", o->output, "PEFT directory to write")->capture_default_str();
  command->add_option("--preprocessor", o->preprocessor,
                      "by name, for rows without messages: AlpacaProcessor, ...");
  command->add_option("--rank", o->rank, "of the adapter")->capture_default_str();
  command->add_option("--alpha", o->alpha, "its scale is alpha / rank")->capture_default_str();
  command->add_option("--lr", o->lr, "of AdamW")->capture_default_str();
  command->add_option("--max-grad-norm", o->max_grad_norm, "0 and inf do not clip")
      ->capture_default_str();
  command->add_option("--batch-size", o->batch_size, "rows a step")->capture_default_str();
  command->add_option("--epochs", o->epochs, "passes over the rows")->capture_default_str();
  command->add_option("--max-length", o->max_length, "longest row, tokens")->capture_default_str();
  command->add_option("--device", o->device, "cpu, cuda or cuda:N")->capture_default_str();
  add_seed(*command, o->seed, "of the order and of the adapter");
  command->callback([o] { run(*o); });
}

}  // namespace twinkle::cli
