// twinkle info MODEL: what a model is, without running it.
#include <cstdio>

#include "twinkle/cli/command.h"
#include "twinkle/cli/model_path.h"
#include "twinkle/io/checkpoint.h"
#include "twinkle/model/config.h"

namespace twinkle::cli {
namespace {

void print(const std::string& model) {
  const Checkpoint checkpoint = Checkpoint::open(model_path(model));
  const model::DecoderSpec spec = model::spec_of(checkpoint.config(), checkpoint.path());
  int64_t weights = 0;
  for (const auto& name : checkpoint.names())
    weights += num_elements(checkpoint.at(name).shape).value_or(0);
  model::AttentionSpec attention;
  for (const model::LayerSpec& layer : spec.layers) {
    if (const auto* a = std::get_if<model::AttentionSpec>(&layer.mixer)) attention = *a;
    if (const auto* a = std::get_if<model::LatentSpec>(&layer.mixer)) {
      attention.num_heads = a->num_heads, attention.num_kv_heads = 1;  // one latent for all
      attention.head_dim = a->kv_rank + a->rope_dim;
    }
  }
  std::printf("family %s\nlayers %lld, width %lld, heads %lld (%lld for keys), head size %lld\n",
              spec.family.c_str(), static_cast<long long>(spec.num_layers()),
              static_cast<long long>(spec.hidden_size), static_cast<long long>(attention.num_heads),
              static_cast<long long>(attention.num_kv_heads),
              static_cast<long long>(attention.head_dim));
  std::printf("vocabulary %lld, positions %lld\nweights %.1f million in %zu tensors\n",
              static_cast<long long>(spec.vocab_size), static_cast<long long>(spec.max_positions),
              static_cast<double>(weights) / 1e6, checkpoint.names().size());
}

}  // namespace

void info(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("info", "Print a model's family, sizes and number of weights");
  auto model = std::make_shared<std::string>();
  command->add_option("model", *model, "smollm2, directory, .gguf file or hub id")->required();
  command->callback([model, &action] { action = [model](const std::string&) { print(*model); }; });
}

}  // namespace twinkle::cli
