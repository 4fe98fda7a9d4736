// Fine-tunes a model by LoRA in C++ alone, through the engine that the Python classes and the
// server use.
//   build/release/example_finetune MODEL_DIR [DATA.jsonl] [OUTPUT_DIR] [STEPS] [SEED]
// `make test` or scripts/build.sh builds it. MODEL_DIR is a Hugging Face directory: after `make
// demo`, .venv/bin/python -m twinkle.hub get smollm2 prints one.
#include <cstdio>
#include <exception>
#include <string>

#include "twinkle/data/encode.h"
#include "twinkle/data/loader.h"
#include "twinkle/data/preprocessors/preprocessor.h"
#include "twinkle/engine/engine.h"
#include "twinkle/text/template.h"

using namespace twinkle;
using namespace twinkle::engine;

namespace {

void finetune(const std::string& model, const std::string& file, const std::string& output,
              int64_t steps, uint64_t seed) {
  const text::Template tmpl(model, {.max_length = 256});
  const data::Dataset rows = data::Dataset::read(file)
                                 .map(data::make_preprocessor("SelfCognitionProcessor",
                                                              {{"model_name", "Twinkle"},
                                                               {"model_author", "Starlight Lab"}}))
                                 .encode(data::encoder(tmpl));
  data::Loader batches(rows.size(), {.batch_size = 8});

  // Model: one tenant with its own adapter on the frozen base.
  Engine engine({.model = {.path = model}});
  engine.run<Done>(
      Create{.tenant = "me",
             .lora_json = R"({"r": 8, "lora_alpha": 16, "target_modules": "all-linear"})",
             .seed = seed});

  int64_t epoch = 0;
  batches.start(epoch);
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<int64_t> batch = batches.next();
    if (batch.empty()) {
      batches.start(++epoch);
      batch = batches.next();
    }
    ForwardBackward work{.tenant = "me"};
    for (const int64_t i : batch) {
      work.sequences.push_back({.input_ids = data::integers(rows.row(i), "input_ids"),
                                .labels = data::integers(rows.row(i), "labels")});
    }
    const auto result = engine.run<ForwardResult>(work);
    const auto update = engine.run<StepResult>(
        Step{.tenant = "me", .options = R"({"lr": 1e-3})", .max_grad_norm = 1.0});
    std::printf("step %lld loss %.17g per token %.4f grad norm %.3f\n",
                static_cast<long long>(step), result.loss, result.loss / result.num_tokens,
                update.grad_norm);
  }
  std::printf("saved %s\n", engine.run<SaveResult>(Save{"me", output}).directory.c_str());
}

}  // namespace

int main(int argc, char** argv) try {
  const auto argument = [&](int i, std::string fallback) { return argc > i ? argv[i] : fallback; };
  if (argc < 2)
    return std::fprintf(stderr, "usage: finetune MODEL_DIR [DATA] [OUTPUT] [STEPS] [SEED]\n"), 2;
  finetune(argument(1, ""), argument(2, "examples/data/self_cognition.jsonl"),
           argument(3, "outputs/finetune"), std::stoll(argument(4, "40")),
           // finetune.py's adapter is drawn from it: stable_seed(42, "adapter", "default").
           std::stoull(argument(5, "2439290691")));
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
