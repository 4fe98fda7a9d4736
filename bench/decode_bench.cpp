// How fast does one sequence, and how fast do eight, decode, how fast is a prompt read, and what
// share of it is reading the weights? Usage: decode_bench MODEL_DIR [tokens [sequences [rank]]], or
// decode_bench MODEL_DIR rounds prompt LENGTH, which times a prompt's one new token. Prints tokens
// per second (the best of the steps: other load only adds), then one pass over all weights by
// at::linear and by linear_bf16, and one by which gradients go back. With a rank, each sequence has
// an adapter of its own, and a line with none comes before the one with them.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string_view>

#include "twinkle/io/checkpoint.h"
#include "twinkle/kernels/linear/linear_bf16.h"
#include "twinkle/kernels/simd/team.h"
#include "twinkle/lora/pool.h"
#include "twinkle/model/decoder.h"
#include "twinkle/model/family.h"
#include "twinkle/sampler/sampler.h"

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

void decode(Decoder& decoder, int64_t batch, int64_t tokens, bool with_adapters = false) {
  twinkle::sampler::Sampler sampler(decoder, {.kv_tokens = 64 * 256});
  for (int64_t i = 0; i < batch; ++i) {
    sampler.add({.prompt = std::vector<int32_t>(16, static_cast<int32_t>(100 + i)),
                 .params = {.max_tokens = tokens, .temperature = 0},
                 .slot = with_adapters ? static_cast<int32_t>(i) : -1});
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

void decode_with_adapters(Decoder& decoder, int64_t batch, int64_t tokens, int64_t rank) {
  twinkle::lora::Pool pool(decoder);
  std::vector<twinkle::lora::AdapterRef> pins;
  for (int64_t i = 0; i < batch; ++i) {
    pins.push_back(pool.add(std::make_unique<twinkle::lora::Adapter>(
        twinkle::PeftConfig{.rank = rank, .alpha = 16, .target_modules = "all-linear"},
        decoder.linears(), static_cast<uint64_t>(i))));
  }
  for (int round = 0; round < 5; ++round) {
    for (const bool with : {false, true}) decode(decoder, batch, tokens, with);
  }
}

// `rounds` prompts, each new.
void prefill(Decoder& decoder, int64_t length, int64_t rounds) {
  twinkle::sampler::Sampler sampler(decoder, {.kv_tokens = 64 * 256});
  std::vector<double> times;
  for (int64_t i = 0; i < rounds; ++i) {
    std::vector<int32_t> prompt(static_cast<size_t>(length));
    for (size_t t = 0; t < prompt.size(); ++t) {
      prompt[t] = static_cast<int32_t>((t * 37 + static_cast<size_t>(i)) % 40'000);
    }
    sampler.add({prompt, {.max_tokens = 1, .temperature = 0}});
    times.push_back(ms_of([&] {
      while (sampler.step()) continue;
    }));
  }
  std::sort(times.begin(), times.end());
  const double best = times.front(), median = times[times.size() / 2];
  std::printf("prompt of %ld: best %.2f ms, %.1f tokens/s; median %.2f ms, %.1f\n", length, best,
              1e3 * static_cast<double>(length) / best, median,
              1e3 * static_cast<double>(length) / median);
}

// Turns the order of the weights' products into time: all of them, `rows` rows each.
void sweep(Decoder& decoder, int64_t rows, bool backward) {
  std::vector<at::Tensor> weights, inputs;
  int64_t bytes = 0;
  const auto add = [&](const at::Tensor& w) {
    weights.push_back(backward ? w.t() : w);
    inputs.push_back(at::randn({rows, weights.back().size(1)}).to(at::kBFloat16));
    bytes += 2 * w.numel();
  };
  for (const auto& l : decoder.linears()) add(l.linear->weight);
  add(decoder.head().weight);
  const auto each = [&](const auto& product) {
    return best_ms(5, [&] {
      for (size_t i = 0; i < weights.size(); ++i) product(inputs[i], weights[i]);
    });
  };
  const double library = each([](const at::Tensor& x, const at::Tensor& w) { at::linear(x, w); });
  double ours = 0;
  twinkle::kernels::with_team([&] {
    ours =
        each([](const at::Tensor& x, const at::Tensor& w) { twinkle::kernels::linear_bf16(x, w); });
  });
  const double mb = static_cast<double>(bytes) / 1e6;
  std::printf(
      "%s x %ld rows: at::linear %.2f ms (%.1f GB/s), linear_bf16 %.2f ms (%.1f GB/s, %.0f "
      "GFLOP/s)\n",
      backward ? "transposed weights" : "weights", rows, library, mb / library, ours, mb / ours,
      mb * static_cast<double>(rows) / ours);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr,
                 "usage: decode_bench MODEL_DIR [tokens [sequences [rank]]]\n"
                 "       decode_bench MODEL_DIR rounds prompt LENGTH\n");
    return 2;
  }
  const int64_t tokens = argc > 2 ? std::atol(argv[2]) : 40;
  const auto checkpoint = twinkle::Checkpoint::open(argv[1]);
  Decoder decoder(twinkle::model::read_spec(checkpoint.config()), checkpoint, at::kBFloat16);
  std::printf("%d threads\n", at::get_num_threads());
  if (argc > 4) {
    if (std::string_view(argv[3]) == "prompt")
      prefill(decoder, std::atol(argv[4]), tokens);
    else
      decode_with_adapters(decoder, std::atol(argv[3]), tokens, std::atol(argv[4]));
    return 0;
  }
  if (argc > 3) {
    decode(decoder, std::atol(argv[3]), tokens);
    return 0;
  }
  for (const int64_t batch : {1, 8, 32}) decode(decoder, batch, tokens);
  for (const int64_t length : {300, 512}) prefill(decoder, length, 20);
  for (const int64_t rows : {1, 8, 32, 128, 300, 512, 1024}) sweep(decoder, rows, false);
  for (const int64_t rows : {8, 1024}) sweep(decoder, rows, true);
}
