// twinkle sample MODEL PROMPT...: answers of the model, with an adapter if one is given.
#include <cstdio>

#include "twinkle/cli/command.h"
#include "twinkle/cli/device.h"
#include "twinkle/cli/model_path.h"
#include "twinkle/cli/options/flags.h"
#include "twinkle/cli/options/sampling.h"
#include "twinkle/engine/engine.h"
#include "twinkle/text/rust/shared_tokenizer.h"
#include "twinkle/text/template.h"

namespace twinkle::cli {
namespace {

struct Options {
  std::string model, adapter, system, device;
  std::vector<std::string> prompts;
  SamplingFlags sampling;
  engine::EngineOptions engine;  // but model and device
  bool plain = false;            // prompts are continued as they are, without the chat template
  bool limited = false;  // --max-tokens was given, and isn't cut to what the model has room for
};

void run(const Options& o) {
  const engine::SamplingParams params = o.sampling.checked();
  if (!o.adapter.empty()) check_adapter(o.adapter);
  const std::string path = model_path(o.model);
  const text::Template tmpl(
      path, {.use_chat_template = !o.plain, .max_length = 0, .default_system = o.system});
  engine::EngineOptions with = o.engine;
  with.model.path = path;
  with.model.device = device_or_default(o.device);
  engine::Engine engine(with, text::decoder_of);
  engine.run<engine::Done>(
      engine::Create{.tenant = "me", .directory = o.adapter, .frozen = o.adapter.empty()});
  engine::Sample sample{.tenant = "me", .params = {params}, .tokenizer = path};
  for (const std::string& prompt : o.prompts) {
    JsonObject message{{"role", "user"}, {"content", prompt}};
    const auto feature =
        tmpl.encode(JsonObject{{"messages", JsonArray{std::move(message)}}}, true).at(0);
    const int64_t room = engine.model_info().max_positions - std::ssize(feature.input_ids);
    require(!o.limited || room < 1 || params.max_tokens <= room, Code::kInvalid,
            "cli: --max-tokens is ", params.max_tokens, ", after prompt ", sample.prompts.size(),
            " the model's context has room for ", room, "; lower it or leave it out");
    sample.prompts.emplace_back(feature.input_ids.begin(), feature.input_ids.end());
  }
  const auto result = engine.run<engine::SampleResult>(sample);
  for (size_t i = 0; i < o.prompts.size(); ++i) {
    for (const auto& completion : result.completions[i]) {
      const std::vector<int64_t> ids(completion.tokens.begin(), completion.tokens.end());
      std::printf("> %s\n%s\n\n", o.prompts[i].c_str(), tmpl.decode(ids, true).c_str());
    }
  }
}

}  // namespace

void sample(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("sample", "Generate answers, of the model or of an adapter");
  auto o = std::make_shared<Options>();
  command
      ->add_option("model", o->model,
                   "smollm2, directory, .gguf file with a tokenizer beside it, or hub id")
      ->required();
  command->add_option("prompt", o->prompts, "what the user says; several are answered together")
      ->required();
  command->add_option("--adapter", o->adapter, "PEFT directory");
  command->add_option("--system", o->system, "system message");
  command->add_flag("--plain", o->plain, "continue the prompt as it is, without a chat template")
      ->excludes(command->get_option("--system"));
  add_sampling(*command, o->sampling);
  add_device(*command, o->device);
  add_options(*command, o->engine,
              {"mixed_precision", "kv_tokens", "max_sequences", "prefill_tokens", "prefix_cache",
               "memory_share", "deterministic", "decode_graphs"});
  command->add_option("--num-samples", o->sampling.params.num_samples, "answers to each prompt")
      ->capture_default_str();
  command->callback([o, command, &action] {
    o->limited = command->count("--max-tokens") > 0;
    o->sampling.checked();
    action = [o](const std::string&) { run(*o); };
  });
}

}  // namespace twinkle::cli
