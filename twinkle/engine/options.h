// An engine's options: those of its parts, each declared beside the part's class.
#pragma once
#include <string>

#include "twinkle/base/fields/options.h"
#include "twinkle/engine/memory/parking_options.h"
#include "twinkle/engine/schedule/dispatcher_options.h"
#include "twinkle/sampler/request.h"

namespace twinkle::engine {

struct ModelOptions {
  std::string path;  // a Hugging Face model directory, or a .gguf file
  std::string mixed_precision = "bf16";
  std::string device = "cpu";  // error kInvalid of one that the build or the machine has not
  bool value_head = false;     // model::read_spec
  // Layers' inputs stay even when they alone exceed it.
  int64_t activation_bytes = int64_t{8} << 30;
  bool deterministic = true;  // false: nor are the library's products cut into parts where it takes
                              // those
  bool train_graphs = true;
  double memory_share = 1;
  int64_t gathered_bytes = 0;  // for several ranks that share the base: parallel::Shards

  static constexpr auto fields() {
    using O = ModelOptions;
    return std::tuple{
        option(
            "model", &O::path, any(),
            "directory, .gguf file, or a hub's owner/name [of twinkle serve smollm2, else none]"),
        option("mixed_precision", &O::mixed_precision, one_of("bf16", "no"),
               "bf16: weights and activations are bfloat16; no: float32"),
        option("device", &O::device, any(),
               "cpu, cuda or cuda:N [TWINKLE_DEVICE, else a GPU where there is one, else cpu]"),
        option("value_head", &O::value_head, any(),
               "a head of one row and a bias instead of the vocabulary's: the logits of a position "
               "are one number, its value; all weights are trained, nothing is sampled"),
        option(
            "activation_bytes", &O::activation_bytes, between(0, kMostBytes),
            "bytes of activations that training keeps for backward passes; layers beyond them are "
            "computed twice, and so are batches of an operation whose loss is of the whole, "
            "which changes no bit; 0: no limit"),
        option("deterministic", &O::deterministic, any(),
               "test at the start that matrix products are batch-invariant, and refuse to start if "
               "not, so that a tenant gets the same bits in any batch"),
        option("train_graphs", &O::train_graphs, any(),
               "record training passes on a GPU whose lengths and tenants come again, and replay "
               "them; recordings hold at most activation_bytes more; changes no number"),
        option("memory_share", &O::memory_share, between(0.001, 1),
               "share of the device's memory within which weights and the sampler's cache must fit "
               "together; a start that needs more is refused"),
        option("gathered_bytes", &O::gathered_bytes, between(0, kMostBytes),
               "bytes of the base's layers, embedding and head that stay whole on each rank of "
               "fsdp_size; those beyond them are gathered from all ranks for each pass, which "
               "changes no bit; 0: none stays")};
  }
};

struct EngineOptions {
  ModelOptions model;
  DispatcherOptions scheduling;
  sampler::SamplerOptions sampler;
  ParkingOptions parking;

  static constexpr auto fields() {
    using O = EngineOptions;
    return std::tuple{group("model", &O::model), group("scheduling", &O::scheduling),
                      group("sampler", &O::sampler), group("parking", &O::parking)};
  }
};

}  // namespace twinkle::engine
