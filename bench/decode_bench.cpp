// How fast does one sequence, and how fast do eight, decode, and what share of it is reading the
// weights? Usage: decode_bench MODEL_DIR [tokens]. Prints tokens per second (the best of the steps:
// other load only adds), then one pass over all weights by at::linear and by thin_linear.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>

#include "twinkle/io/checkpoint.h"
#include "twinkle/kernels/gemv.h"
#include "twinkle/model/decoder.h"
#include "twinkle/model/family.h"
#include "twinkle/sampler/runner.h"

namespace {

using twinkle::model::Decoder;

double ms_of(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

double best_ms(int rounds, const std::function<void()>& run) {
  double best = 1e9;
  for (int i = 0; i < rounds; ++i) best = std::min(best, ms_of(run));
  return best;
}

void decode(Decoder& decoder, int64_t batch, int64_t tokens) {
  twinkle::sampler::Sampler sampler(decoder, {.kv_tokens = 64 * 64});
  for (int64_t i = 0; i < batch; ++i) {
    sampler.add({std::vector<int32_t>(16, static_cast<int32_t>(100 + i)),
                 {.max_tokens = tokens, .temperature = 0}});
  }
  std::vector<double> steps;
  bool more = true;
  while (more) steps.push_back(ms_of([&] { more = sampler.step(); }));
  std::sort(steps.begin() + 1, steps.end() - 1);
  const double best = steps[1 + steps.size() / 10], median = steps[steps.size() / 2];
  std::printf("decode batch %ld: best %.2f ms a step, %.1f tokens/s; median %.2f ms, %.1f\n", batch,
              best, 1e3 * static_cast<double>(batch) / best, median,
              1e3 * static_cast<double>(batch) / median);
}

void sweep(Decoder& decoder, int64_t rows) {
  std::vector<at::Tensor> weights, inputs;
  std::vector<std::optional<int64_t>> blocks;
  int64_t bytes = 0;
  const auto add = [&](const at::Tensor& w) {
    weights.push_back(w);
    inputs.push_back(at::randn({rows, w.size(1)}).to(at::kBFloat16));
    blocks.push_back(twinkle::kernels::find_block(w.size(0), w.size(1)));
    bytes += 2 * w.numel();
  };
  for (const auto& l : decoder.linears()) add(l.linear->weight);
  add(decoder.head().weight);
  const auto each = [&](const auto& product) {
    return best_ms(7, [&] {
      for (size_t i = 0; i < weights.size(); ++i) product(i);
    });
  };
  const double library = each([&](size_t i) { at::linear(inputs[i], weights[i]); });
  const double thin = each([&](size_t i) {
    twinkle::kernels::thin_linear(inputs[i], weights[i], {}, blocks[i].value_or(512));
  });
  const auto unmatched = std::count(blocks.begin(), blocks.end(), std::nullopt);
  const double gb = static_cast<double>(bytes) / 1e6;
  std::printf(
      "weights x %ld rows: at::linear %.2f ms (%.1f GB/s), thin_linear %.2f ms (%.1f GB/s); "
      "%ld of %zu without matching bits\n",
      rows, library, gb / library, thin, gb / thin, unmatched, weights.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: decode_bench MODEL_DIR [tokens]\n");
    return 2;
  }
  const int64_t tokens = argc > 2 ? std::atol(argv[2]) : 40;
  const auto checkpoint = twinkle::Checkpoint::open(argv[1]);
  Decoder decoder(twinkle::model::read_spec(checkpoint.config()), checkpoint, at::kBFloat16);
  std::printf("%d threads\n", at::get_num_threads());
  for (const int64_t batch : {1, 8}) decode(decoder, batch, tokens);
  for (const int64_t rows : {1, 2, 4, 8, 16}) sweep(decoder, rows);
}
