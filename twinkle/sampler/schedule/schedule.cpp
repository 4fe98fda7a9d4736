#include "twinkle/sampler/schedule/schedule.h"

#include <algorithm>
#include <cstring>

#include "twinkle/base/error.h"

namespace twinkle::sampler {

Schedule::Schedule(const SamplerOptions& options, const StateLayout& states)
    : options_((check_options(options, "sampler: "), options)),
      pool_(options.kv_tokens),
      prefixes_(pool_),
      states_(states, options.max_sequences),
      snapshots_(states, options.max_sequences) {}

void Schedule::add(std::unique_ptr<Sequence> sequence) {
  arrived_.push_back(std::move(sequence));
  ++num_waiting_;
}

int64_t Schedule::num_running() const {
  return std::count_if(sequences_.begin(), sequences_.end(),
                       [](const auto& s) { return s->running; });
}

int64_t Schedule::num_placed() const {
  return std::count_if(sequences_.begin(), sequences_.end(),
                       [](const auto& s) { return s->has_place(); });
}

const Sequence* Schedule::newest() const {
  const auto it = std::find_if(sequences_.rbegin(), sequences_.rend(),
                               [](const auto& s) { return s->running; });
  return it == sequences_.rend() ? nullptr : it->get();
}

namespace {

// True if the page behind its first `end` tokens may be taken from others.
bool may_skip(const Sequence& s, int64_t end) {
  return s.size() - end > kPageTokens &&
         std::min(end + kPageTokens + 1, s.job->prompt_size()) <= s.job->num_scored;
}

}  // namespace

// Takes the pages of a beginning that has been computed before. The last token is always computed:
// its logits are what the next one is chosen from. Nor does a prompt skip tokens whose successors
// are to be scored.
void Schedule::attach(Sequence& s) {
  if (s.version == 0 || std::ssize(s.blocks) * kPageTokens != s.computed) return;
  if (!states_.layout().empty()) return attach_state(s);
  while (may_skip(s, s.computed)) {
    auto found = prefixes_.find(s.version, s.linked_id, s.page(s.num_linked));
    if (!found) return;
    s.blocks.push_back(std::move(found->block));
    s.computed += kPageTokens;
    num_shared_ += kPageTokens;
    s.linked_id = found->id;
    ++s.num_linked;
  }
}

// The same with a state, which there is only at some pages' ends: up to the last of those.
void Schedule::attach_state(Sequence& s) {
  std::vector<PrefixCache::Found> found;
  size_t taken = 0;  // pages up to the last snapshot
  for (int64_t end = s.computed; may_skip(s, end); end += kPageTokens) {
    const uint64_t parent = found.empty() ? s.linked_id : found.back().id;
    auto page = prefixes_.find(s.version, parent, s.page(end / kPageTokens));
    if (!page) break;
    found.push_back(*std::move(page));
    if (snapshots_.contains(found.back().id)) taken = found.size();
  }
  s.shared_end = s.computed + std::ssize(found) * kPageTokens;
  if (taken == 0) return;
  if (!s.state) s.state = states_.take();
  if (!s.state) return;
  snapshots_.load(found[taken - 1].id, s.state.data());
  for (size_t i = 0; i < taken; ++i) s.blocks.push_back(std::move(found[i].block));
  const auto count = static_cast<int64_t>(taken);
  s.computed += count * kPageTokens;
  num_shared_ += count * kPageTokens;
  s.linked_id = found[taken - 1].id;
  s.num_linked += count;
}

Sequence* leader_of(const Sequence& s, const std::vector<Sequence*>& computing) {
  if (s.version == 0 || s.job->forked || s.computed % kPageTokens != 0 ||
      s.job->num_scored < s.job->prompt_size()) {
    return nullptr;
  }
  const auto page = s.page(s.num_linked);
  Sequence* leader = nullptr;
  for (Sequence* other : computing) {
    const bool prompt = !other->job->forked;
    if (other == &s || (!prompt && other->left() == 1)) continue;  // it decodes
    if (other->version != s.version || other->linked_id != s.linked_id ||
        !std::ranges::equal(other->page(other->num_linked), page)) {
      continue;
    }
    if (prompt && other->tokens == s.tokens) return other;
    if (!leader && s.left() > kPageTokens) leader = other;
  }
  return leader;
}

// Finds the sequences that wait for a prompt that the batch completes: their samples begin with it.
void Schedule::follow(const std::vector<Sequence*>& batch) {
  for (const auto& s : sequences_) {
    if (s->planned()) continue;
    Sequence* leader = leader_of(*s, batch);
    if (leader && leader->finishes() && leader->tokens == s->tokens)
      followers_.emplace_back(leader, s.get());
  }
}

// Makes room for tokens [computed, end) of a sequence, its pages there its own. When none are free,
// those that are not in the plan give theirs (giver_of_pages). False when that is not enough.
bool Schedule::reserve(Sequence& s, int64_t end, Work& work) {
  std::vector<Block>& blocks = s.blocks;
  const auto first = static_cast<size_t>(s.computed / kPageTokens);
  // Only the last page can be both partly filled and shared: with the samples of its prompt.
  const auto copies = [&] { return first < blocks.size() && blocks[first].shared() ? 1 : 0; };
  const int64_t grown = pages_for(end) - std::ssize(blocks);
  const bool stateless = !states_.layout().empty() && !s.state;
  while (pool_.num_free() < grown + copies() || (stateless && states_.num_free() == 0)) {
    Sequence* const other = giver_of_pages(s);
    if (!other) return false;
    owners_.at(other->job->request.owner).held -= other->running ? std::ssize(other->blocks) : 0;
    if (other->has_place()) other->gave_way = num_steps_;
    other->release();
  }
  if (stateless) s.state = states_.take();
  const bool copy = copies() == 1;
  std::vector<Block> taken = pool_.take(grown + copies());
  if (copy) {
    work.copies.push_back({&s, blocks[first].page(), taken.back().page()});
    blocks[first] = std::move(taken.back());
    taken.pop_back();
  }
  std::move(taken.begin(), taken.end(), std::back_inserter(blocks));
  return true;
}

// Plans tokens up to `end`. False: the batch or the cache has no room for them.
bool Schedule::extend(Sequence& s, int64_t end, Work& work) {
  if (!s.planned()) {
    const auto batch = std::ssize(work.batch);
    if (batch == options_.max_sequences) return false;
    // A newcomer waits until the others can each take one more page, lest it be sent back at once.
    const int64_t grown = pages_for(s.size()) - std::ssize(s.blocks);
    if (!s.running && batch > 0 && pool_.num_free() < grown + batch) return false;
  }
  if (!reserve(s, end, work)) return false;
  if (!s.planned()) work.batch.push_back(&s);
  s.next = end;
  if (!s.running) s.placed_size = s.size();
  s.running = true;
  return true;
}

Schedule::Work Schedule::plan() {
  Work work;
  followers_.clear();
  ++num_steps_;
  admit();
  begin_round();
  for (const auto& s : sequences_) {
    if (s->left() == 1 && s->may_run && !leader_of(*s, work.batch)) extend(*s, s->size(), work);
  }
  prefill(work);
  follow(work.batch);
  return work;
}

void Schedule::advance(const std::vector<Sequence*>& batch) {
  for (Sequence* s : batch) {
    s->computed = s->next;
    while (s->version != 0 && (s->num_linked + 1) * kPageTokens <= s->computed) {
      Block& block = s->blocks[static_cast<size_t>(s->num_linked)];
      auto found = prefixes_.insert(s->version, s->linked_id, s->page(s->num_linked), block);
      block = std::move(found.block);
      s->linked_id = found.id;
      ++s->num_linked;
    }
    if (s->wants_snapshot()) snapshots_.keep(s->linked_id, s->state.data());
  }
}

// Pages are shared, a state is copied; a sequence for which there is no room computes it again.
void Schedule::adopt(Sequence& s, const Sequence& other) {
  s.adopt(other);
  if (states_.layout().empty()) return;
  if (!s.state) s.state = states_.take();
  if (!s.state || !other.state) return s.release();
  std::memcpy(s.state.data(), other.state.data(), static_cast<size_t>(states_.layout().size));
}

// A sequence that has taken over what another has computed gets a place as long as there are some.
// One that is beyond them keeps its pages, which it shares, but no state.
void Schedule::settle(Sequence& s, int64_t& places) {
  if (!s.running) return;
  if (places > 0) {
    --places;
    s.beyond = false;
  } else if (states_.layout().empty()) {
    s.beyond = true;
  } else {
    s.release();
  }
}

// A prompt that has just been computed becomes all its samples: they share its pages.
void Schedule::split(Sequence& sequence, std::vector<Sequence*>& out, int64_t& places) {
  Job& job = *sequence.job;
  std::vector<std::unique_ptr<Sequence>> samples;  // all of them, or the prompt is not split
  for (int64_t i = 1; i < job.request.params.num_samples; ++i) {
    samples.push_back(std::make_unique<Sequence>(&job, i));
    adopt(*samples.back(), sequence);
    settle(*samples.back(), places);
  }
  sequences_.reserve(sequences_.size() + samples.size());
  out.reserve(out.size() + samples.size() + 1);
  out.push_back(&sequence);
  for (const auto& sample : samples) out.push_back(sample.get());
  const auto at = std::find_if(sequences_.begin(), sequences_.end(),
                               [&](const auto& s) { return s.get() == &sequence; });
  sequences_.insert(at + 1, std::make_move_iterator(samples.begin()),
                    std::make_move_iterator(samples.end()));
  job.forked = true;
}

std::vector<Sequence*> Schedule::fork(Sequence& sequence) {
  std::vector<Sequence*> out;
  if (sequence.job->forked) return {&sequence};
  int64_t places = options_.max_sequences - num_placed();
  split(sequence, out, places);
  for (const auto& [leader, follower] : followers_) {
    if (leader != &sequence) continue;
    num_shared_ += sequence.computed - follower->computed;
    const bool has_place = follower->has_place();
    adopt(*follower, sequence);
    if (!has_place) settle(*follower, places);
    split(*follower, out, places);
  }
  return out;
}

void Schedule::sweep(bool waiting) {
  const auto over = [](const auto& s) {
    const bool out = s->done || s->job->num_left == 0;
    if (out) s->release();
    return out;
  };
  std::erase_if(sequences_, over);
  if (!waiting) return;
  num_waiting_ -= static_cast<int64_t>(std::erase_if(arrived_, over));
  for (auto& [name, owner] : owners_)
    num_waiting_ -= static_cast<int64_t>(std::erase_if(owner.waiting, over));
}

void Schedule::resume() {
  followers_.clear();
  for (const auto& s : sequences_) {
    // A state is behind tokens that a pass may have computed in part.
    if (!s->done && (s->left() == 0 || (s->state && s->planned()))) s->release();
  }
}

void Schedule::reset_prefixes() {
  prefixes_.clear();
  snapshots_.clear();
  const auto forget = [](const auto& sequences) {
    for (const auto& s : sequences) s->version = 0;
  };
  forget(sequences_);
  forget(arrived_);
  for (const auto& [name, owner] : owners_) forget(owner.waiting);
}

}  // namespace twinkle::sampler
