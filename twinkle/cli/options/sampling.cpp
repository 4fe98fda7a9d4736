#include "twinkle/cli/options/sampling.h"

#include "twinkle/cli/options/flags.h"

namespace twinkle::cli {

sampler::SamplingParams SamplingFlags::checked() const {
  sampler::SamplingParams out = params;
  out.seed = seed.seed;
  sampler::validate(out);
  return out;
}

void add_sampling(CLI::App& command, SamplingFlags& flags) {
  sampler::SamplingParams& params = flags.params;
  command.add_option("--max-tokens", params.max_tokens, "longest answer, tokens")
      ->capture_default_str();
  command.add_option("--temperature", params.temperature, "0 is greedy")->capture_default_str();
  command.add_option("--top-p", params.top_p, "smallest set of tokens with this probability")
      ->capture_default_str();
  command.add_option("--top-k", params.top_k, "most likely tokens to draw from, -1 is all")
      ->capture_default_str();
  command.add_option("--min-p", params.min_p, "least probability, as a share of the likeliest's")
      ->capture_default_str();
  command.add_option("--stop", params.stop, "text that ends an answer");
  add_options(command, flags.seed);
}

}  // namespace twinkle::cli
