#include "twinkle/sampler/sampler.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/kernels/simd/team.h"
#include "twinkle/nn/head/head.h"
#include "twinkle/sampler/logits/scores.h"

namespace twinkle::sampler {

namespace {

int64_t generation_limit(const Request& request, int64_t max_positions) {
  return std::min(request.params.max_tokens, max_positions - std::ssize(request.prompt));
}

std::string not_finite(int64_t token) {
  std::ostringstream text;
  text << "sampler: the logits of token " << token
       << " hold NaN or infinity: no token can be chosen; check the weights for NaN";
  return text.str();
}

int64_t num_tokens(const std::vector<Sequence*>& batch) {
  int64_t count = 0;
  for (const Sequence* s : batch) count += s->next - s->computed;
  return count;
}

// Where the tokens went that the batch computes, of the requests that ask for it.
void keep_routes(const nn::Routing& routing, const std::vector<Sequence*>& batch) {
  size_t width = 0;  // a token's experts in all layers
  for (const auto& [layer, ids] : routing.chosen) width += static_cast<size_t>(ids.size(1));
  int64_t row = 0;
  for (Sequence* s : batch) {
    const int64_t end = row + s->next - s->computed;
    if (s->job->request.params.routed_experts) {
      s->routes.resize(static_cast<size_t>(s->computed) * width);  // others are computed again
      for (; row < end; ++row) routing.add_row(row, s->routes);
    }
    row = end;
  }
}

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

Sampler::Sampler(model::Decoder& decoder, const SamplerOptions& options,
                 std::vector<int32_t> eos_ids, mesh::Comm& comm)
    : decoder_(decoder),
      options_(options),
      eos_ids_(std::move(eos_ids)),
      ranks_(comm),
      schedule_(options, layout_of(decoder.states())),
      cache_(decoder.states(), decoder.dtype(), decoder.device(), schedule_.pool().num_pages()),
      graphs_(decoder, cache_,
              decoder.spec().rope.num_rows(
                  std::min(decoder.spec().max_positions, num_pages() * kPageTokens))) {}

Sampler::~Sampler() = default;

void Sampler::check(const Request& request, bool has_decode) const {
  validate(request.params);
  const model::DecoderSpec& spec = decoder_.spec();
  const int64_t length = std::ssize(request.prompt);
  require(length >= 1, Code::kInvalid, "sampler: the prompt is empty, it must hold a token");
  require(length < spec.max_positions + (request.params.max_tokens == 0 ? 1 : 0), Code::kInvalid,
          "sampler: the prompt has ", length,
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
  const int64_t last_n = request.params.prompt_logprobs_last_n;
  require(last_n < length, Code::kInvalid, "sampler: prompt_logprobs_last_n is ", last_n,
          ", it must be at most ", length - 1, ", the prompt's tokens behind the first");
  const std::vector<PromptTarget>& targets = request.params.prompt_targets;
  for (size_t i = 0; i < targets.size(); ++i) {
    require(targets[i].position < length && targets[i].id < spec.vocab_size, Code::kInvalid,
            "sampler: prompt_targets[", i, "] has position ", targets[i].position, " and id ",
            targets[i].id, ", the prompt has ", length, " tokens and the vocabulary ",
            spec.vocab_size);
  }
  require(request.weight > 0, Code::kInvalid, "sampler: weight is ", request.weight,
          ", it must be above 0");
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
  // The row is that of the longest sequence the decoder may get, which lacks the last token. So all
  // of its keys are of one kind, and its scores are those that training gives a completion of that
  // length, without its last token.
  job->rope_row = decoder_.spec().rope.first_row(std::ssize(request.prompt) +
                                                 std::max<int64_t>(job->limit - 1, 0));
  job->num_left = request.params.num_samples;
  job->completions.resize(static_cast<size_t>(job->num_left));
  job->num_scored = first_scored(request);
  if (request.params.routed_experts) request.version = 0;  // others' pages do not know theirs
  job->request = std::move(request);
  job->decode = std::move(decode);
  ranks_.place(*job, jobs_);
  // The schedule never holds a sequence of a job that is not there, whatever throws.
  auto sequence = std::make_unique<Sequence>(job.get(), 0);
  const auto at = jobs_.emplace(next_ticket_, std::move(job)).first;
  try {
    schedule_.add(std::move(sequence));
  } catch (...) {
    jobs_.erase(at);
    throw;
  }
  return next_ticket_++;
}

// The state [T, D] behind every token that the batch computes, in its order.
at::Tensor Sampler::forward(const std::vector<Sequence*>& batch) {
  model::Batch packed;
  packed.input_ids = at::empty({num_tokens(batch)}, at::kLong);
  packed.rows.position_ids = at::empty({num_tokens(batch)}, at::kLong);
  packed.kv = &cache_;
  auto* id = packed.input_ids.mutable_data_ptr<int64_t>();
  auto* position = packed.rows.position_ids.mutable_data_ptr<int64_t>();
  std::vector<Chunk> chunks;
  for (const Sequence* each : batch) {
    const Sequence& s = *each;
    for (int64_t t = s.computed; t < s.next; ++t) {
      *id++ = s.tokens[static_cast<size_t>(t)];
      *position++ = s.job->rope_row + t;
    }
    packed.rows.add(s.next - s.computed, {.slot = s.job->request.slot});
    chunks.push_back({&s.blocks, s.computed, s.next, s.state.data()});
  }
  if (std::ranges::any_of(
          batch, [](const Sequence* s) { return s->job->request.params.routed_experts; })) {
    packed.routing = std::make_shared<nn::Routing>();
    packed.routing->keeps = true;
  }
  cache_.start(chunks);
  const at::Tensor hidden = decoder_.forward(packed);
  if (packed.routing) keep_routes(*packed.routing, batch);
  num_computed_ += num_tokens(batch);
  return hidden;
}

// The scores of prompt tokens behind those that the batch computes.
void Sampler::score_prompts(const at::Tensor& hidden, const std::vector<Sequence*>& batch,
                            std::span<Scored> scored) {
  int64_t row = 0;
  for (const Sequence* s : batch) {
    const auto of = std::ranges::find(scored, s->job, &Scored::job);
    if (of != scored.end()) {
      const Request& request = s->job->request;
      of->found = score_tokens(hidden.narrow(0, row + of->begin - s->computed, of->count),
                               {decoder_.head(), request.slot}, request.prompt, of->begin + 1,
                               request.params);
      if (ranks_.alone()) take(*of);
    }
    row += s->next - s->computed;
  }
}

// Fails the job if one of the scores is no number.
void Sampler::take(Scored& scored) {
  if (const int64_t bad = scored.keep(); bad >= 0) fail_job(*scored.job, not_finite(bad));
}

// The results of every rank go to all ranks, which go on alike.
void Sampler::share(std::span<Scored> scored, std::vector<Chosen>& chosen) {
  Ranks::Found mine;
  std::vector<const Job*> prompts, tokens;
  for (Scored& of : scored) {
    prompts.push_back(of.job);
    if (ranks_.has(*of.job)) mine.prompts.push_back(std::move(of.found));
  }
  for (Chosen& c : chosen) {
    tokens.push_back(c.sequence->job);
    if (c.row < 0) continue;
    Sequence& s = *c.sequence;
    const auto told = s.routes.begin() + static_cast<ptrdiff_t>(s.num_told);
    mine.tokens.push_back({c.token, c.logprob, std::move(c.top), {told, s.routes.end()}});
    s.num_told = s.routes.size();
  }
  Ranks::Found all = ranks_.gather(mine, prompts, tokens);
  for (size_t i = 0; i < scored.size(); ++i) {
    scored[i].found = std::move(all.prompts[i]);
    take(scored[i]);
  }
  for (size_t i = 0; i < chosen.size(); ++i) {
    chosen[i].token = all.tokens[i].token;
    chosen[i].logprob = all.tokens[i].logprob;
    chosen[i].top = std::move(all.tokens[i].top);
    if (chosen[i].row < 0) {
      std::vector<int32_t>& known = chosen[i].sequence->routes;
      known.insert(known.end(), all.tokens[i].routes.begin(), all.tokens[i].routes.end());
    }
  }
}

// Logits [R, V] of the batch's sequences whose last known token was computed; none: undefined.
at::Tensor Sampler::last_logits(const at::Tensor& hidden, const std::vector<Sequence*>& batch) {
  std::vector<int64_t> last;  // rows
  nn::Rows rows;
  int64_t end = 0;
  for (const Sequence* s : batch) {
    end += s->next - s->computed;
    if (!s->finishes()) continue;
    last.push_back(end - 1);
    rows.add(1, {.slot = s->job->request.slot});
  }
  if (last.empty()) return {};
  const at::Tensor index = at::from_blob(last.data(), {std::ssize(last)}, at::kLong);
  return nn::sampling_logits(hidden.index_select(0, index.to(hidden.device())), decoder_.head(),
                             rows);
}

// Makes tokens [0, count) of the sequence's completion events, if the request streams.
void Sampler::give(Sequence& sequence, size_t count) {
  const Job& job = *sequence.job;
  if (!job.request.stream) return;
  const Completion& out = job.completions[static_cast<size_t>(sequence.sample)];
  for (size_t& i = sequence.num_given; i < count; ++i) {
    events_.push_back({job.ticket, sequence.sample, out.tokens[i],
                       job.request.params.logprobs ? out.logprobs[i] : 0.0f,
                       i + 1 == out.tokens.size() ? out.stop_reason : "",
                       out.top_logprobs.empty() ? TopLogprobs() : out.top_logprobs[i]});
  }
}

void Sampler::finish(Sequence& sequence) {
  Job& job = *sequence.job;
  outcomes_.reserve(outcomes_.size() + 1);
  job.completions[static_cast<size_t>(sequence.sample)].routed_experts = std::move(sequence.routes);
  sequence.done = true;
  if (--job.num_left > 0) return;
  outcomes_.push_back({job.ticket, std::move(job.completions), std::move(job.prompt), {}});
}

// When it throws, the sequence is as it was before its token.
void Sampler::accept(Chosen& chosen) {
  Sequence& sequence = *chosen.sequence;
  Job& job = *sequence.job;
  const SamplingParams& params = job.request.params;
  Completion& out = job.completions[static_cast<size_t>(sequence.sample)];
  if (job.limit == 0) {
    out.stop_reason = "length";
    return finish(sequence);
  }
  const int32_t token = chosen.token;
  struct Taken {
    Sequence& sequence;
    Completion& out;
    const size_t size = sequence.tokens.size(), num_out = out.tokens.size();
    bool whole = false;
    ~Taken() {
      if (whole) return;
      sequence.tokens.resize(size);
      out.tokens.resize(num_out);
      if (out.logprobs.size() > num_out) out.logprobs.resize(num_out);
      if (out.top_logprobs.size() > num_out) out.top_logprobs.resize(num_out);
      out.matched.clear();
      out.stop_reason.clear();
    }
  } taken{sequence, out};
  sequence.tokens.push_back(token);
  out.tokens.push_back(token);
  if (params.logprobs) out.logprobs.push_back(chosen.logprob);
  if (params.top_logprobs > 0) out.top_logprobs.push_back(std::move(chosen.top));
  const bool stop_token =
      (!params.ignore_eos && contains(eos_ids_, token)) || contains(params.stop_token_ids, token);
  if (const std::string* match = sequence.stops.find(out.tokens)) out.matched = *match;
  if (stop_token || !out.matched.empty()) {
    out.stop_reason = "stop";
  } else if (std::ssize(out.tokens) == job.limit) {
    out.stop_reason = "length";
  }
  const std::span known(out.tokens);
  give(sequence, out.stop_reason.empty() ? sequence.stops.num_settled(known) : known.size());
  if (!out.stop_reason.empty()) finish(sequence);
  taken.whole = true;
}

// A decode that throws fails its own request; a shortage of memory concerns all, as does what may
// be of this rank alone: the others would go on with the request.
void Sampler::accept_or_fail(Chosen& chosen) {
  try {
    accept(chosen);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    if (!ranks_.alone() && !dynamic_cast<const Error*>(&e)) throw;
    fail_job(*chosen.sequence->job, e.what());
  }
}

void Sampler::fail_job(Job& job, const std::string& error) {
  if (job.num_left == 0) return;
  outcomes_.push_back({job.ticket, {}, {}, error});
  job.num_left = 0;
}

// Frees the requests that have ended: their outcomes are there.
void Sampler::sweep() {
  schedule_.sweep(false);
  for (const Outcome& outcome : outcomes_) jobs_.erase(outcome.ticket);
}

// The batch's forward, and the tokens that follow.
std::vector<Chosen> Sampler::forward_step(const std::vector<Sequence*>& batch,
                                          std::span<Scored> scored) {
  std::vector<Sequence*> mine;
  std::ranges::copy_if(batch, std::back_inserter(mine),
                       [this](const Sequence* s) { return ranks_.has(*s->job); });
  const bool records = options_.decode_graphs && ranks_.alone();
  at::Tensor logits = records ? graphs_.logits(mine) : at::Tensor();
  if (logits.defined()) {
    num_computed_ += num_tokens(mine);
  } else if (mine.empty()) {
    decoder_.walk_forward();  // others have rows
    const model::InUse head = decoder_.use_head();
  } else {
    const at::Tensor hidden = forward(mine);
    const model::InUse head = decoder_.use_head();
    score_prompts(hidden, mine, scored);
    logits = last_logits(hidden, mine);
  }
  schedule_.advance(batch);
  std::vector<Chosen> chosen;
  int64_t row = 0;
  for (Sequence* sequence : batch) {
    if (!sequence->finishes()) continue;
    const bool is_mine = ranks_.has(*sequence->job);
    for (Sequence* s : schedule_.fork(*sequence)) chosen.push_back({s, is_mine ? row : -1});
    row += is_mine;
  }
  if (logits.defined()) choose(logits, chosen);
  return chosen;
}

bool Sampler::step() {
  if (schedule_.empty()) return false;
  const at::NoGradGuard no_grad;
  // When something throws, such as a shortage of memory, tokens that were not taken are computed
  // again.
  struct Guard {
    Schedule& schedule;
    bool whole = false;
    ~Guard() {
      if (!whole) schedule.resume();
    }
  } guard{schedule_};
  const Schedule::Work work = schedule_.plan();
  for (const auto& [of, from, to] : work.copies) {
    if (!ranks_.has(*of->job)) continue;  // others' pages have nothing here
    cache_.copy_page(from, to);
    ++num_copied_;
  }
  std::vector<Scored> scored;
  for (const Sequence* s : work.batch) {
    if (Scored of = Scored::of(*s); of.count > 0) scored.push_back(std::move(of));
  }
  std::vector<Chosen> chosen;
  const auto compute = [&] { chosen = forward_step(work.batch, scored); };
  if (decoder_.keeps_team()) {
    kernels::with_team(compute);
  } else {
    compute();
  }
  if (!ranks_.alone()) share(scored, chosen);
  for (Chosen& c : chosen) {
    if (c.sequence->job->num_left == 0) continue;  // its prompt or another sample of it failed
    if (c.token == kNoToken) {
      fail_job(*c.sequence->job, not_finite(c.sequence->size()));
    } else {
      accept_or_fail(c);
    }
  }
  guard.whole = true;
  sweep();
  return true;
}

std::vector<Outcome> Sampler::take_outcomes() { return std::exchange(outcomes_, {}); }

std::vector<Event> Sampler::take_events() { return std::exchange(events_, {}); }

size_t Sampler::cancel(std::span<const int64_t> tickets) {
  for (const int64_t ticket : tickets) {
    const auto job = jobs_.find(ticket);
    if (job != jobs_.end()) job->second->num_left = 0;
  }
  schedule_.sweep();
  size_t count = 0;
  for (const int64_t ticket : tickets) {
    if (!jobs_.erase(ticket)) continue;
    ++count;
    std::erase_if(events_, [&](const Event& event) { return event.ticket == ticket; });
  }
  return count;
}

int64_t Sampler::num_generated(int64_t ticket) const {
  int64_t out = 0;
  const auto job = jobs_.find(ticket);
  if (job == jobs_.end()) return out;
  for (const Completion& c : job->second->completions) out += std::ssize(c.tokens);
  return out;
}

int64_t Sampler::newest() const {
  const Sequence* sequence = schedule_.newest();
  return sequence ? sequence->job->ticket : -1;
}

}  // namespace twinkle::sampler
