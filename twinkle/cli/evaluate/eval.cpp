// twinkle eval MODEL --data FILE --task TASK: a number that says how good a model or adapter is.
#include <chrono>
#include <cstdio>

#include "twinkle/base/fields/options.h"
#include "twinkle/base/file.h"
#include "twinkle/cli/command.h"
#include "twinkle/cli/device.h"
#include "twinkle/cli/evaluate/evaluation.h"
#include "twinkle/cli/model_path.h"
#include "twinkle/cli/options/flags.h"
#include "twinkle/data/rows/renames.h"
#include "twinkle/io/atomic.h"

namespace twinkle::cli {
namespace {

constexpr const char* kTasks =
    "gsm8k: rows {\"question\": \"...\", \"answer\": \"... #### 42\"}; greedy answers, of which "
    "the number after '####' or in\n  \\boxed{} must be the row's. --system replaces the order to "
    "end so.\nperplexity: a .txt file, rows {\"text\": \"...\"} of which every token is scored, or "
    "rows of chats, in any form that\n  'twinkle train' reads, of which the assistant's replies "
    "are.";

struct EvalFlags {
  std::string data, task, adapter, json, system, columns;
  int64_t limit = 0, max_tokens = 512, max_length = 0;

  static constexpr auto fields() {
    using O = EvalFlags;
    constexpr Limits kCount = between(0, INT32_MAX);
    return std::tuple{
        option("data", &O::data, any(), "rows: .jsonl, .json, .csv, .tsv, or a text: .txt"),
        option("task", &O::task, one_of("gsm8k", "perplexity"), "what is measured"),
        option("adapter", &O::adapter, any(), "PEFT directory [none: the model alone]"),
        option("json", &O::json, any(), "file for the result, with each reply [none]"),
        option("system", &O::system, any(), "system message [the task's own, or none]"),
        option("columns", &O::columns, any(),
               "new names of columns: question=prompt,answer=completion"),
        option("limit", &O::limit, kCount, "measure the first rows only; 0: all"),
        option("max_tokens", &O::max_tokens, between(1, INT32_MAX), "longest answer, tokens"),
        option("max_length", &O::max_length, kCount,
               "longest chat, and piece of a text, tokens; 0: the model's context")};
  }
};

struct EvalOptions {
  std::string model, device;
  EvalFlags flags;
  engine::EngineOptions engine;  // but model and device
};

engine::EngineOptions engine_for(const EvalOptions& o, const std::string& path) {
  engine::EngineOptions out = o.engine;
  out.model.path = path;
  out.model.device = device_or_default(o.device);
  return out;
}

void say_result(const JsonObject& result, bool gsm8k) {
  const auto number = [&](const char* name) { return get<double>(result, name); };
  if (gsm8k)
    std::printf("accuracy %.4f +- %.4f (%.0f of %.0f right, %.0f with an answer)\n",
                number("accuracy"), number("stderr"), number("correct"), number("num_rows"),
                number("answered"));
  else
    std::printf("perplexity %.4f (mean log-probability %.5f, %.0f tokens of %.0f rows)\n",
                number("perplexity"), number("logprob"), number("num_tokens"), number("num_rows"));
}

void evaluate(const EvalOptions& o) {
  const EvalFlags& f = o.flags;
  if (!f.adapter.empty()) check_adapter(f.adapter);
  require(is_there(f.data), Code::kNotFound, "cli: --data ", f.data,
          " does not exist; name a file of rows");
  if (!f.json.empty()) const AtomicFile writable(f.json);
  const std::string path = model_path(o.model);
  engine::Engine engine(engine_for(o, path));
  engine.run<engine::Done>(
      engine::Create{.tenant = kMeasured, .directory = f.adapter, .frozen = f.adapter.empty()});
  const EvaluationInput input{path,         f.data,       f.system, f.limit,
                              f.max_tokens, f.max_length, f.columns};
  const bool gsm8k = f.task == "gsm8k";
  const auto begin = std::chrono::steady_clock::now();
  JsonObject result = gsm8k ? measure_gsm8k(engine, input) : measure_perplexity(engine, input);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  say_result(result, gsm8k);
  if (f.json.empty()) return;
  JsonObject all{{"task", f.task},
                 {"model", o.model},
                 {"adapter", f.adapter},
                 {"data", f.data},
                 {"seconds", took.count()}};
  for (auto& entry : result) all[entry.key()] = std::move(entry.value());
  write_file_atomically(f.json, pretty(all));
}

}  // namespace

void eval(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("eval", "Measure a model or an adapter on a file");
  command->footer(kTasks);
  auto o = std::make_shared<EvalOptions>();
  command
      ->add_option("model", o->model,
                   "smollm2, directory, .gguf file with a tokenizer beside it, or hub id")
      ->required();
  add_options(*command, o->flags);
  command->get_option("--data")->required();
  command->get_option("--task")->required();
  add_device(*command, o->device);
  add_options(*command, o->engine,
              {"mixed_precision", "token_budget", "kv_tokens", "max_sequences", "prefill_tokens",
               "prefix_cache", "memory_share", "deterministic", "decode_graphs"});
  command->callback([o, &action] {
    require(o->flags.max_length != 1, Code::kInvalid,
            "cli: --max-length is 1, it must be at least 2, since a piece's first token is not "
            "scored");
    data::renames_of(o->flags.columns);
    action = [o](const std::string&) { evaluate(*o); };
  });
}

}  // namespace twinkle::cli
