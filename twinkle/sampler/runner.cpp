#include "twinkle/sampler/runner.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/kernels/softmax.h"
#include "twinkle/nn/linear.h"
#include "twinkle/sampler/logits/sampling.h"

namespace twinkle::sampler {

// A token to be chosen for a sequence from a row of logits.
struct Sampler::Chosen {
  Sequence* sequence;
  int64_t row;
  int32_t token = kNoToken;
  float logprob = 0;
};

namespace {

// torch computes the bf16 product of a single row (and any below 4096 multiplications) by another
// kernel, which rounds differently, so a sequence that decodes alone gets a row beside it that
// nobody reads.
constexpr int64_t kInvariantRows = 2;

int64_t generation_limit(const Request& request, int64_t max_positions) {
  return std::min(request.params.max_tokens, max_positions - std::ssize(request.prompt));
}

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

Sampler::Sampler(model::Decoder& decoder, const SamplerOptions& options)
    : decoder_(decoder),
      options_(options),
      schedule_(options),
      cache_(decoder.spec(), decoder.dtype(), schedule_.pool().num_pages()) {}

Sampler::~Sampler() = default;

void Sampler::check(const Request& request, bool has_decode) const {
  validate(request.params);
  const model::DecoderSpec& spec = decoder_.spec();
  const int64_t length = std::ssize(request.prompt);
  require(length >= 1, Code::kInvalid, "sampler: the prompt is empty, it must hold a token");
  require(length < spec.max_positions, Code::kInvalid, "sampler: the prompt has ", length,
          " tokens, it must leave room for one more in the model's ", spec.max_positions,
          " positions");
  const auto in_vocabulary = [&](const char* field, const std::vector<int32_t>& ids) {
    for (size_t i = 0; i < ids.size(); ++i) {
      require(ids[i] >= 0 && ids[i] < spec.vocab_size, Code::kInvalid, "sampler: ", field, "[", i,
              "] is ", ids[i], ", the vocabulary has ", spec.vocab_size, " tokens");
    }
  };
  in_vocabulary("prompt", request.prompt);
  in_vocabulary("stop_token_ids", request.params.stop_token_ids);
  require(request.slot >= -1, Code::kInvalid, "sampler: slot is ", request.slot,
          ", it must be at least -1");
  require(request.params.stop.empty() || has_decode, Code::kInvalid,
          "sampler: stop holds strings, but there is no tokenizer to find them with: set a "
          "template, or use stop_token_ids");
  const int64_t need = length + generation_limit(request, spec.max_positions);
  const int64_t num_pages = schedule_.pool().num_pages();
  require(pages_for(need) <= num_pages, Code::kInvalid, "sampler: the prompt and max_tokens take ",
          need, " tokens, the cache has room for ", num_pages * kPageTokens,
          ": raise kv_tokens or lower max_tokens");
}

int64_t Sampler::add(Request request, Decode decode) {
  check(request, static_cast<bool>(decode));
  auto job = std::make_unique<Job>();
  job->ticket = next_ticket_;
  job->limit = generation_limit(request, decoder_.spec().max_positions);
  job->num_left = request.params.num_samples;
  job->completions.resize(static_cast<size_t>(job->num_left));
  job->request = std::move(request);
  job->decode = std::move(decode);
  schedule_.add(std::make_unique<Sequence>(job.get(), 0));
  jobs_.emplace(next_ticket_, std::move(job));
  return next_ticket_++;
}

// Logits [R, V] of the batch's sequences whose last known token this computes.
at::Tensor Sampler::forward(const std::vector<Sequence*>& batch) {
  int64_t num_tokens = 0;
  for (const Sequence* s : batch) num_tokens += s->next - s->computed;
  const bool pad = num_tokens < kInvariantRows;
  const int64_t num_rows = std::max(num_tokens, kInvariantRows);
  model::Batch packed;
  packed.input_ids = at::empty({num_rows}, at::kLong);
  packed.packing.position_ids = at::empty({num_rows}, at::kLong);
  packed.packing.cu_seqlens = {0};
  packed.owners = nn::Owners::nobody(std::ssize(batch) + (pad ? 1 : 0));
  packed.kv = &cache_;
  auto* id = packed.input_ids.mutable_data_ptr<int64_t>();
  auto* position = packed.packing.position_ids.mutable_data_ptr<int64_t>();
  std::vector<Chunk> chunks;
  std::vector<int64_t> last;  // rows
  for (size_t i = 0; i < batch.size(); ++i) {
    const Sequence& s = *batch[i];
    for (int64_t t = s.computed; t < s.next; ++t) {
      *id++ = s.tokens[static_cast<size_t>(t)];
      *position++ = t;
    }
    packed.packing.cu_seqlens.push_back(packed.packing.cu_seqlens.back() + s.next - s.computed);
    packed.owners.slot[i] = s.job->request.slot;
    chunks.push_back({&s.blocks, s.computed, s.next});
    if (s.finishes()) last.push_back(packed.packing.cu_seqlens.back() - 1);
  }
  if (pad) {
    *id = *position = 0;
    packed.packing.cu_seqlens.push_back(num_rows);
  }
  cache_.start(chunks);
  const at::Tensor hidden = decoder_.forward(packed);
  num_computed_ += num_tokens;
  if (last.empty()) return {};
  while (std::ssize(last) < kInvariantRows) last.push_back(last.back());
  const at::Tensor index = at::from_blob(last.data(), {std::ssize(last)}, at::kLong);
  return nn::row_invariant_linear(hidden.index_select(0, index), decoder_.head().weight);
}

void Sampler::choose(const at::Tensor& logits, std::vector<Chosen>& chosen) {
  const at::Tensor wide = logits.to(at::kFloat).contiguous();
  const int64_t vocab = wide.size(1);
  at::parallel_for(0, std::ssize(chosen), 1, [&](int64_t begin, int64_t end) {
    PickScratch scratch;
    for (int64_t i = begin; i < end; ++i) {
      Chosen& c = chosen[static_cast<size_t>(i)];
      const SamplingParams& params = c.sequence->job->request.params;
      const std::span row(wide.const_data_ptr<float>() + c.row * vocab, static_cast<size_t>(vocab));
      const double u = uniform(params.seed, static_cast<uint64_t>(c.sequence->sample),
                               static_cast<uint64_t>(c.sequence->size()));
      c.token = pick(row, params, c.sequence->tokens, u, scratch);
      if (c.token == kNoToken || !params.logprobs) continue;
      const float temperature =
          params.temperature == 0 ? 1.0f : static_cast<float>(params.temperature);
      c.logprob = kernels::softmax_stats(logits, c.row, c.token, temperature, false).logprob;
    }
  });
}

void Sampler::accept(Sequence& sequence, int32_t token, float logprob) {
  Job& job = *sequence.job;
  const SamplingParams& params = job.request.params;
  sequence.tokens.push_back(token);
  Completion& out = job.completions[static_cast<size_t>(sequence.sample)];
  out.tokens.push_back(token);
  if (params.logprobs) out.logprobs.push_back(logprob);
  const bool stop_token = (!params.ignore_eos && contains(options_.eos_ids, token)) ||
                          contains(params.stop_token_ids, token);
  if (const std::string* match = sequence.stops.find(out.tokens)) out.matched = *match;
  if (stop_token || !out.matched.empty()) {
    out.stop_reason = "stop";
  } else if (std::ssize(out.tokens) == job.limit) {
    out.stop_reason = "length";
  } else {
    return;
  }
  sequence.done = true;
  if (--job.num_left == 0) outcomes_.push_back({job.ticket, std::move(job.completions), {}});
}

void Sampler::fail_job(Job& job, const std::string& error) {
  if (job.num_left == 0) return;
  job.num_left = 0;
  outcomes_.push_back({job.ticket, {}, error});
}

// Lets go of what has ended.
void Sampler::sweep() {
  schedule_.sweep();
  std::erase_if(jobs_, [](const auto& job) { return job.second->num_left == 0; });
}

bool Sampler::step() {
  if (schedule_.empty()) return false;
  const at::NoGradGuard no_grad;
  const Schedule::Work work = schedule_.plan();
  for (const auto& [from, to] : work.copies) cache_.copy_page(from, to);
  const at::Tensor logits = forward(work.batch);
  schedule_.advance(work.batch);
  if (!logits.defined()) return true;
  std::vector<Chosen> chosen;
  int64_t row = 0;
  for (Sequence* sequence : work.batch) {
    if (!sequence->finishes()) continue;
    for (Sequence* s : schedule_.fork(*sequence)) chosen.push_back({s, row});
    ++row;
  }
  choose(logits, chosen);
  for (const Chosen& c : chosen) {
    if (c.sequence->job->num_left == 0) continue;  // another sample of it failed
    if (c.token != kNoToken) {
      accept(*c.sequence, c.token, c.logprob);
      continue;
    }
    std::ostringstream text;
    text << "sampler: the logits of token " << c.sequence->size()
         << " hold NaN or infinity: no token can be chosen; look at the weights";
    fail_job(*c.sequence->job, text.str());
  }
  sweep();
  return true;
}

std::vector<Outcome> Sampler::take_outcomes() { return std::exchange(outcomes_, {}); }

bool Sampler::cancel(int64_t ticket) {
  const auto job = jobs_.find(ticket);
  if (job == jobs_.end()) return false;
  job->second->num_left = 0;
  sweep();
  return true;
}

std::vector<std::vector<Completion>> Sampler::generate(std::span<const Request> requests,
                                                       const Decode& decode) {
  require(jobs_.empty() && outcomes_.empty(), Code::kConflict,
          "sampler: generate() is called while ", jobs_.size(), " requests of add() are queued");
  for (const Request& request : requests) check(request, static_cast<bool>(decode));
  // Whatever is thrown below, nothing stays queued.
  struct Clear {
    Sampler& sampler;
    ~Clear() {
      sampler.schedule_.clear();
      sampler.jobs_.clear();
      sampler.outcomes_.clear();
    }
  } const clear{*this};
  const int64_t first = next_ticket_;
  for (const Request& request : requests) add(request, decode);
  std::vector<std::vector<Completion>> results(requests.size());
  while (step()) {
  }
  for (Outcome& outcome : outcomes_) {
    require(outcome.error.empty(), Code::kInvalid, outcome.error);
    results[static_cast<size_t>(outcome.ticket - first)] = std::move(outcome.completions);
  }
  return results;
}

}  // namespace twinkle::sampler
