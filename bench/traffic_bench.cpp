// What do ranks send each other for a pass? Usage: traffic_bench MODEL_DIR. Two ranks are threads
// of this process, their bytes are counted. Prints lines of JSON: for D3 the base's bytes of a
// training pass over ranks that share it, at gathered_bytes 0, half and all of it; for D1 those of
// the gradients of all weights, and of a step's new values, over ranks that each hold the model.
// Bytes do not depend on the machine. bench/traffic.py compares them with docs/parallel.md's
// formulas.
#include <ATen/ATen.h>

#include <array>
#include <cstdio>
#include <functional>
#include <thread>
#include <vector>

#include "twinkle/io/checkpoint.h"
#include "twinkle/mesh/counting_comm.h"
#include "twinkle/mesh/thread_comm.h"
#include "twinkle/model/decoder.h"
#include "twinkle/model/family.h"
#include "twinkle/parallel/trained_weights.h"

namespace {

using twinkle::mesh::CountingComm;
using twinkle::model::Decoder;
namespace parallel = twinkle::parallel;

constexpr int kRanks = 2;
constexpr int64_t kAll = int64_t{1} << 40;

using Sent = std::array<int64_t, kRanks>;  // bytes, of each rank

Decoder decoder_of(const char* path, twinkle::model::Borders& borders) {
  const auto checkpoint = twinkle::Checkpoint::open(path);
  return {twinkle::model::read_spec(checkpoint.config()), checkpoint, at::kBFloat16, at::kCPU,
          borders};
}

void on_ranks(const std::function<void(CountingComm&)>& script) {
  const auto comms = twinkle::mesh::thread_comms(kRanks);
  std::vector<std::thread> threads;
  for (const auto& comm : comms)
    threads.emplace_back([&] {
      CountingComm counted(*comm);
      script(counted);
    });
  for (std::thread& t : threads) t.join();
}

// No rows are needed: a rank without sequences sends what one with some does.
void pass(Decoder& decoder) {
  decoder.walk_forward();
  {
    const twinkle::model::InUse here = decoder.use_head(true);
  }
  decoder.walk_backward();
}

struct Base {
  int64_t all = 0;   // bytes of its matrices
  int64_t once = 0;  // a head and an embedding that are apart, each of which a pass uses once
};

Base base_of(Decoder& decoder) {
  Base out;
  int64_t embedding = 0;
  for (const auto& weight : decoder.weights()) {
    if (weight.value->dim() != 2) continue;
    const auto bytes = static_cast<int64_t>(weight.value->numel() * weight.value->element_size());
    out.all += bytes;
    if (weight.name == "model.embed_tokens.weight") embedding = bytes;
    if (weight.name == "lm_head.weight") out.once = bytes;
  }
  if (out.once > 0) out.once += embedding;
  return out;
}

void base_traffic(const char* path, int64_t gathered, const char* name) {
  Sent sent{};
  Base base;
  on_ranks([&](CountingComm& comm) {
    parallel::Shards shards(comm, gathered);
    Decoder decoder = decoder_of(path, shards);
    pass(decoder);  // pieces that stay are gathered once
    const int64_t before = comm.sent().all_to_all;
    pass(decoder);
    sent[static_cast<size_t>(comm.rank())] = comm.sent().all_to_all - before;
    if (comm.rank() == 0) base = base_of(decoder);
  });
  std::printf(R"({"id": "D3", "gathered": "%s", "sent": [%ld, %ld], "base_bytes": %ld, )"
              R"("once_bytes": %ld})"
              "\n",
              name, sent[0], sent[1], base.all, base.once);
}

void gradient_traffic(const char* path) {
  Sent grads{}, values{};
  int64_t num_weights = 0, num_parameters = 0;
  on_ranks([&](CountingComm& comm) {
    Decoder decoder = decoder_of(path, twinkle::model::no_borders());
    const parallel::Ownership owned(decoder, kRanks, 1);
    parallel::TrainedWeights trained(decoder, owned, comm, nullptr);
    const auto rank = static_cast<size_t>(comm.rank());
    pass(decoder);
    grads[rank] = comm.sent().all_to_all;
    trained.share();
    values[rank] = comm.sent().all_to_all - grads[rank];
    if (rank > 0) return;
    num_weights = std::ssize(decoder.weights());
    for (const auto& weight : decoder.weights()) num_parameters += weight.value->numel();
  });
  std::printf(R"({"id": "D1", "grads": [%ld, %ld], "values": [%ld, %ld], "num_weights": %ld, )"
              R"("num_parameters": %ld})"
              "\n",
              grads[0], grads[1], values[0], values[1], num_weights, num_parameters);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: traffic_bench MODEL_DIR\n");
    return 2;
  }
  const at::NoGradGuard no_grad;
  int64_t base = 0;
  {
    Decoder decoder = decoder_of(argv[1], twinkle::model::no_borders());
    base = base_of(decoder).all;
  }
  base_traffic(argv[1], 0, "0");
  base_traffic(argv[1], base / 2, "half");
  base_traffic(argv[1], kAll, "all");
  gradient_traffic(argv[1]);
  return 0;
}
