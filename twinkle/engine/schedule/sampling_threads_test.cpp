// The sampler's schedule and the engine's, driven by several threads over a null model: what
// ThreadSanitizer watches of the two.
#include <gtest/gtest.h>

#include <thread>

#include "twinkle/base/random.h"
#include "twinkle/engine/schedule/dispatcher.h"
#include "twinkle/engine/schedule/null_executor_for_test.h"
#include "twinkle/sampler/schedule/schedule.h"

namespace twinkle::engine {
namespace {

int32_t token_after(int32_t last, uint64_t seed) {
  return static_cast<int32_t>(key_of(seed, static_cast<uint64_t>(last)) % 50);
}

// The result of a Sample of one prompt, whatever runs beside it.
std::vector<int32_t> ids_of(const Sample& sample) {
  std::vector<int32_t> out;
  int32_t last = sample.prompts[0].back();
  for (int64_t i = 0; i < sample.params[0].max_tokens; ++i)
    out.push_back(last = token_after(last, sample.params[0].seed));
  return out;
}

// A NullExecutor whose Samples run through the sampler's pages, prefixes and prompts. A prompt's
// first token is -1 in a Sample that fails when its prompt has been computed.
class PagedExecutor : public NullExecutor {
 public:
  void start(int64_t id, const Sample& sample, Share share, SampleHooks hooks,
             Prepared* prepared) override {
    NullExecutor::start(id, sample, share, std::move(hooks), prepared);
    Begun& begun = samples_[id] = {&sample, share, {}, sample.prompts.size()};
    for (size_t index = 0; index < sample.prompts.size(); ++index) add(begun, index);
  }
  std::vector<Ended> step() override {
    ++num_steps;
    const auto work = schedule_.plan();
    schedule_.advance(work.batch);
    for (sampler::Sequence* s : work.batch) {
      if (!s->finishes()) continue;
      for (sampler::Sequence* chosen : schedule_.fork(*s)) accept(*chosen);
    }
    schedule_.sweep();
    std::vector<Ended> out;
    for (auto& [id, begun] : samples_) settle(id, begun, out);
    for (const Ended& e : out) {
      if (e.error) undo(e.id);
    }
    return out;
  }
  Result commit(int64_t id) override {
    const auto it = samples_.find(id);
    if (it == samples_.end()) return NullExecutor::commit(id);
    SampleResult out;
    for (auto& [index, job] : it->second.jobs) out.completions.push_back(job->completions);
    forget(it);
    NullExecutor::commit(id);
    return out;
  }
  void undo(int64_t id) override {
    const auto it = samples_.find(id);
    if (it != samples_.end()) forget(it);
    NullExecutor::undo(id);
  }
  bool all_pages_are_free() const {
    return schedule_.pool().num_free() == schedule_.pool().num_pages();
  }

 private:
  struct Begun {
    const Sample* sample;
    Share share;
    std::map<size_t, std::unique_ptr<sampler::Job>> jobs;
    size_t num_left;
  };

  void add(Begun& begun, size_t index) {
    auto job = std::make_unique<sampler::Job>();
    job->ticket = ++tickets_;
    job->request = {.prompt = begun.sample->prompts[index],
                    .params = begun.sample->params[0],
                    .version = 1,
                    .owner = begun.sample->tenant,
                    .weight = begun.share.weight,
                    .priority = begun.share.priority};
    job->limit = job->request.params.max_tokens;
    job->num_scored = job->prompt_size();
    job->num_left = job->request.params.num_samples;
    job->completions.resize(static_cast<size_t>(job->num_left));
    schedule_.add(std::make_unique<sampler::Sequence>(job.get(), 0));
    begun.jobs[index] = std::move(job);
  }
  static void accept(sampler::Sequence& s) {
    s.tokens.push_back(token_after(s.tokens.back(), s.job->request.params.seed));
    auto& out = s.job->completions[static_cast<size_t>(s.sample)];
    out.tokens.push_back(s.tokens.back());
    if (std::ssize(out.tokens) < s.job->limit) return;
    s.done = true;
    --s.job->num_left;
  }
  static void settle(int64_t id, Begun& begun, std::vector<Ended>& out) {
    for (auto& [index, job] : begun.jobs) {
      if (job->ticket == 0) continue;  // told before
      if (job->forked && job->request.prompt[0] == -1) {
        out.push_back({id, std::make_exception_ptr(Error(Code::kInvalid, "null: failed"))});
        return;
      }
      if (job->num_left > 0) continue;
      job->ticket = 0;
      if (--begun.num_left == 0) out.push_back({id, nullptr});
    }
  }
  void forget(std::map<int64_t, Begun>::iterator it) {
    for (auto& [index, job] : it->second.jobs) job->num_left = 0;
    schedule_.sweep();
    samples_.erase(it);
  }

  sampler::Schedule schedule_{{.kv_tokens = 24 * 64, .max_sequences = 6, .prefill_tokens = 100}};
  std::map<int64_t, Begun> samples_;
  int64_t tickets_ = 0;
};

Sample some_sample(const std::string& tenant, uint64_t key) {
  Sample out{.tenant = tenant};
  for (uint64_t n = 1 + key % 3; n > 0; --n) {
    std::vector<int32_t> prompt(1 + key_of(key, n) % 200, 7);  // many begin alike
    if (key % 5 == 0) prompt[prompt.size() / 2] = 8;
    if (key % 11 == 0) prompt[0] = -1;
    out.prompts.push_back(std::move(prompt));
  }
  out.params = {{.max_tokens = 1 + static_cast<int64_t>(key % 9),
                 .seed = key,
                 .num_samples = 1 + static_cast<int64_t>(key % 2)}};
  return out;
}

struct Tally {
  std::atomic<int> ended = 0, failed = 0, cancelled = 0;
};

// One client: its Samples, and training between them; some are called back.
void run_client(Dispatcher& dispatcher, const std::string& tenant, uint64_t seed, Tally& tally) {
  const auto submit = [&](Operation operation) {
    std::vector<Operation> one;
    one.push_back(std::move(operation));
    return std::move(dispatcher.submit(std::move(one))[0]);
  };
  std::vector<std::pair<Sample, Future>> samples;
  std::vector<Future> training;
  int64_t seen = 0;
  for (uint64_t i = 0; i < 200; ++i) {
    const uint64_t key = key_of(seed, i);
    Sample sample = some_sample(tenant, key);
    samples.emplace_back(sample, submit(sample));
    ForwardBackward work{.tenant = tenant};
    work.sequences.resize(1 + key % 4);
    for (Example& s : work.sequences) s.input_ids.resize(1 + key % 30);
    training.push_back(submit(work));
    if (key % 3 == 0) training.push_back(submit(Step{.tenant = tenant}));
    if (key % 7 == 0) dispatcher.cancel(samples[key % samples.size()].second.id);
    if (key % 13 == 0) dispatcher.cancel(training[key % training.size()].id);
    if (key % 4 == 0) samples.back().second.wait();
    if (key % 6 == 0) seen = std::max(seen, dispatcher.stats().num_steps);
  }
  for (auto& [sample, future] : samples) {
    try {
      const auto result = std::get<SampleResult>(future.get());
      EXPECT_EQ(result.completions.size(), sample.prompts.size());
      for (const auto& completion : result.completions[0])
        EXPECT_EQ(completion.tokens, ids_of(sample));
      ++tally.ended;
    } catch (const Error& e) {
      ++(std::string(e.what()) == "engine: cancelled" ? tally.cancelled : tally.failed);
    }
  }
  for (Future& future : training) future.wait();
  EXPECT_LE(seen, dispatcher.stats().num_steps);
}

TEST(SamplingThreads, ManyClientsSubmitCancelAndReadWhileTheSamplerSteps) {
  PagedExecutor executor;
  Tally tally;
  {
    Dispatcher dispatcher({.token_budget = 64}, executor);
    std::vector<std::thread> clients;
    for (uint64_t t = 0; t < 4; ++t) {
      const std::string name = std::to_string(t);
      std::vector<Operation> create;
      create.push_back(Create{.tenant = name,
                              .weight = 1.0 + static_cast<double>(t),
                              .priority = static_cast<int32_t>(t % 2)});
      dispatcher.submit(std::move(create))[0].get();
      clients.emplace_back(
          [&dispatcher, &tally, name, t] { run_client(dispatcher, name, t, tally); });
    }
    for (std::thread& client : clients) client.join();
  }
  EXPECT_TRUE(executor.all_pages_are_free());
  EXPECT_GT(tally.ended, 400);
  EXPECT_GT(tally.failed, 0);
  EXPECT_GT(tally.cancelled, 0);
}

}  // namespace
}  // namespace twinkle::engine
