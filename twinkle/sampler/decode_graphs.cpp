#include "twinkle/sampler/decode_graphs.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>

#include "twinkle/nn/head/head.h"

namespace twinkle::sampler {

// One step's memory, and its graph from its second time on.
struct DecodeGraphs::Step {
  at::Tensor numbers;  // [3, R] int64: ids, positions and their rows of rope's table
  kernels::PagedRows rows;
  model::Batch batch;
  at::Tensor logits;
  std::unique_ptr<kernels::cuda::Graph> graph;
  int64_t used = 0;
};

namespace {

bool is_decoded(const Sequence& s) {
  return s.next - s.computed == 1 && s.finishes() && s.computed >= s.job->prompt_size() - 1;
}

bool is_known(const Sequence& s) { return s.job->request.slot < 0 || s.job->request.version != 0; }

}  // namespace

DecodeGraphs::DecodeGraphs(model::Decoder& decoder, PagedCache& cache, int64_t num_rows)
    : decoder_(decoder), cache_(cache) {
  if (!decoder.device().is_cpu()) decoder.reserve_positions(num_rows);
}

std::shared_ptr<DecodeGraphs::Step> DecodeGraphs::make(const Key& key) const {
  const int64_t rows = std::ssize(key.owners);
  const auto options = at::device(decoder_.device());
  auto step = std::make_shared<Step>();
  step->numbers = at::zeros({3, rows}, options.dtype(at::kLong));
  step->rows = {at::zeros({rows, key.width}, options.dtype(at::kInt)),
                at::arange(rows, at::kLong).to(decoder_.device()), step->numbers.select(0, 1)};
  model::Batch& batch = step->batch;
  batch.input_ids = step->numbers.select(0, 0);
  batch.rows.position_ids = step->numbers.select(0, 2);
  for (const auto& [slot, version] : key.owners) batch.rows.add(1, {.slot = slot});
  batch.kv = &cache_;
  return step;
}

void DecodeGraphs::fill(Step& step, const Key& key, const std::vector<Sequence*>& batch) const {
  const int64_t rows = std::ssize(batch);
  const at::Tensor numbers = at::empty({3, rows}, at::kLong);
  auto* number = numbers.mutable_data_ptr<int64_t>();
  std::vector<Chunk> chunks;
  for (int64_t row = 0; row < rows; ++row) {
    const Sequence& s = *batch[static_cast<size_t>(row)];
    number[row] = s.tokens.back();
    number[rows + row] = s.computed;
    number[2 * rows + row] = s.job->rope_row + s.computed;
    chunks.push_back({&s.blocks, s.computed, s.next});
  }
  step.numbers.copy_(numbers);
  step.rows.block_tables.copy_(PagedCache::rows_of(chunks, key.width).block_tables);
}

at::Tensor DecodeGraphs::logits(const std::vector<Sequence*>& batch) {
  if (decoder_.device().is_cpu() || failure_) return {};
  Key key{1, {}};
  for (const Sequence* s : batch) {
    if (!is_decoded(*s) || !is_known(*s)) return {};
    key.owners.emplace_back(s->job->request.slot, s->job->request.version);
    const auto pages = static_cast<uint64_t>(s->blocks.size());
    key.width = std::max(key.width, static_cast<int64_t>(std::bit_ceil(pages)));
  }
  auto step = steps_.find(key);
  if (step == steps_.end()) step = steps_.emplace(key, make(key)).first;
  const std::shared_ptr<Step> mine = step->second;
  mine->used = ++num_calls_;
  make_room();
  fill(*mine, key, batch);
  const auto run = [this, at = mine.get()] {
    cache_.start(at->rows);
    at->logits = nn::sampling_logits(decoder_.forward(at->batch), decoder_.head(), at->batch.rows);
  };
  const bool again = mine->logits.defined();
  if (!mine->graph) run();
  if (!again) return mine->logits;  // one that comes once is not worth a graph
  if (!mine->graph) {
    const at::Tensor computed = mine->logits;
    try {
      mine->graph = kernels::cuda::record(decoder_.device(), run);
    } catch (const std::exception& e) {
      failure_ =
          std::make_shared<std::string>(std::string("decoding is not recorded: ") + e.what());
      forget();
      return computed;
    }
  }
  mine->graph->replay();
  ++num_replays_;
  return mine->logits;
}

void DecodeGraphs::make_room() {
  if (steps_.size() <= kMax) return;
  const auto oldest = std::min_element(
      steps_.begin(), steps_.end(),
      [](const auto& a, const auto& b) { return a.second->used < b.second->used; });
  steps_.erase(oldest);
}

}  // namespace twinkle::sampler
