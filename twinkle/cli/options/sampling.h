// The options of sampling on a command line: how each token is drawn, and where an answer ends.
#pragma once
#include <CLI/CLI.hpp>

#include "twinkle/base/fields/options.h"
#include "twinkle/sampler/params.h"

namespace twinkle::cli {

// SamplingParams has a seed, but no command line.
struct SamplingSeed {
  uint64_t seed = sampler::SamplingParams().seed;
  static constexpr auto fields() {
    return std::tuple{option("seed", &SamplingSeed::seed, between(0, kAnyBits), "of the sampling")};
  }
};

// Greedy answers of at most 128 tokens, unless options say otherwise.
struct SamplingFlags {
  sampler::SamplingParams params{.max_tokens = 128, .temperature = 0};
  SamplingSeed seed;

  // Once they are parsed. Error kInvalid: a field outside its range.
  sampler::SamplingParams checked() const;
};

// `flags` outlive the command.
void add_sampling(CLI::App& command, SamplingFlags& flags);

}  // namespace twinkle::cli
