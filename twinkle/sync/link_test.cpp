// Engines that sample after a sync against the engine that was trained: the same bits.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "twinkle/base/error_for_test.h"
#include "twinkle/base/parallel.h"
#include "twinkle/mesh/counting_comm.h"
#include "twinkle/sync/link_for_test.h"

namespace twinkle::sync {
namespace {

// Rank 0: what "me" trains, an adapter or, "", all weights; of rank 1 what samples it then.
Synced exchange(Link& link, int rank, Engine& trainer, Engine& sampler,
                const std::string& adapter = "default") {
  return rank == 0 ? link.send(trainer, "me", adapter) : link.receive(sampler, "frozen");
}

// A model that trains `tenant`, and samplers; after each of three steps all sample the same.
void expect_same_samples(const std::string& lora_json, const Options& options, int num_samplers) {
  const model::TinyModel model;
  Engine trainer(options_of(model));
  trainer.run<Done>(Create{.tenant = "me", .lora_json = lora_json, .seed = 3});
  std::array<Texts, 3> truth;  // texts of each step
  int64_t num_bytes = 0;
  on_ranks(1 + num_samplers, options, [&](Link& link, int rank) {
    std::optional<Engine> sampler;
    if (rank > 0) {
      sampler.emplace(options_of(model));
      sampler->run<Done>(Create{.tenant = "frozen", .frozen = true});
    }
    for (size_t step = 0; step < truth.size(); ++step) {
      if (rank == 0) {
        train(trainer, "me");
        truth[step] = sampled(trainer, "me");
        const auto info = trainer.run<engine::InspectResult>(engine::Inspect{"me"});
        num_bytes = info.num_parameters * (lora_json.empty() ? 2 : 4);
        const Synced sent = link.send(trainer, "me", "default");
        EXPECT_EQ(sent.has_base, lora_json.empty());
        EXPECT_EQ(sent.adapter_name, lora_json.empty() ? "" : "default");
        EXPECT_EQ(sent.num_bytes, num_bytes * num_samplers);
      } else {
        const Synced got = link.receive(*sampler, "frozen");
        EXPECT_EQ(got.num_bytes, num_bytes);
        EXPECT_EQ(sampled(*sampler, got.tenant), truth[step]);
      }
    }
  });
}

TEST(Link, AnAdapterSamplesAsWhereItWasTrained) {
  expect_same_samples(kLora, {.num_senders = 1, .bucket_bytes = 999}, 1);
  expect_same_samples(kLora, {.num_senders = 1}, 2);
}

TEST(Link, AllWeightsSampleAsWhereTheyWereTrained) {
  expect_same_samples("", {.num_senders = 1, .bucket_bytes = 4096}, 1);
  expect_same_samples("", {.num_senders = 1}, 2);
}

TEST(Link, RanksThatMeetAnewMakeATenantOfAnotherName) {
  const model::TinyModel model;
  Engine trainer(options_of(model)), sampler(options_of(model));
  trainer.run<Done>(Create{.tenant = "me", .lora_json = kLora});
  sampler.run<Done>(Create{.tenant = "frozen", .frozen = true});
  std::set<std::string> names;
  for (int i = 1; i <= 2; ++i) {
    train(trainer, "me");
    std::string name;
    on_ranks(2, {}, [&](Link& link, int rank) {
      const Synced done = exchange(link, rank, trainer, sampler);
      if (rank == 1) name = done.tenant;
    });
    EXPECT_EQ(sampled(sampler, name), sampled(trainer, "me"));
    EXPECT_TRUE(name.starts_with("sync/") && name.ends_with("/1/default")) << name;
    EXPECT_TRUE(names.insert(name).second) << name;
  }
}

// No other name would help here.
TEST(Link, ATenantThatIsRefusedIsTriedOnce) {
  const model::TinyModel model;
  Engine trainer(options_of(model)), sampler(options_of(model));
  trainer.run<Done>(Create{.tenant = "me", .lora_json = kLora});
  sampler.run<Done>(Create{.tenant = "all"});  // trains all weights, beside which are no adapters
  on_ranks(2, {}, [&](Link& link, int rank) {
    if (rank == 0) {
      expect_error("sync: rank 1: engine: ", [&] { link.send(trainer, "me", "default"); });
      link.send(trainer, "me", "default");
      return;
    }
    expect_error("engine: ", [&] { link.receive(sampler, "all"); });
    sampler.run<Done>(engine::Delete{"all"});
    sampler.run<Done>(Create{.tenant = "frozen", .frozen = true});
    const std::string name = link.receive(sampler, "frozen").tenant;
    EXPECT_TRUE(name.ends_with("/2/default")) << name;  // the first was the one that was refused
  });
}

TEST(Link, AnAdapterBringsItsBaseWhereTheSamplerHasAnother) {
  const model::TinyModel model;
  const ScratchDir other;
  write_other(other);
  Engine trainer(options_of(model));
  EngineOptions options = options_of(model);
  options.model.path = other.path().string();
  Engine sampler(options);
  trainer.run<Done>(Create{.tenant = "me", .lora_json = kLora});
  sampler.run<Done>(Create{.tenant = "frozen", .frozen = true});
  std::string tenant;
  on_ranks(2, {}, [&](Link& link, int rank) {
    for (int i = 0; i < 3; ++i) {
      if (rank == 0) {
        train(trainer, "me");
        EXPECT_EQ(link.send(trainer, "me", "default").has_base, i == 0) << i;
      } else {
        const Synced got = link.receive(sampler, "frozen");
        EXPECT_EQ(got.has_base, i == 0);
        EXPECT_TRUE(i == 0 || got.tenant == tenant) << got.tenant;
        tenant = got.tenant;
      }
    }
  });
  EXPECT_EQ(sampled(sampler, tenant), sampled(trainer, "me"));
}

// It may lie where the last one lay.
TEST(Link, ANewEngineIsKnownFromTheOneInItsPlace) {
  const model::TinyModel model;
  const ScratchDir other;
  const JsonObject config = model::tiny_config();
  model::write_tiny(other.path(), config, model::tiny_weights(config, 2));
  Engine trainer(options_of(model));
  trainer.run<Done>(Create{.tenant = "me", .lora_json = kLora});
  std::optional<Engine> sampler;
  std::string tenant;
  on_ranks(2, {}, [&](Link& link, int rank) {
    for (int i = 0; i < 2; ++i) {
      if (rank == 0) {
        train(trainer, "me");
        EXPECT_EQ(link.send(trainer, "me", "default").has_base, i == 1) << i;
        continue;
      }
      EngineOptions options = options_of(model);
      if (i == 1) options.model.path = other.path().string();
      sampler.emplace(options);
      sampler->run<Done>(Create{.tenant = "frozen", .frozen = true});
      const std::string before = tenant;
      tenant = link.receive(*sampler, "frozen").tenant;
      EXPECT_NE(tenant, before);
    }
  });
  EXPECT_EQ(sampled(*sampler, tenant), sampled(trainer, "me"));
}

TEST(Link, SamplesThatHaveBegunEndWithTheWeightsThatTheyBeganWith) {
  const model::TinyModel model;
  Engine trainer(options_of(model)), sampler(options_of(model)), still(options_of(model));
  trainer.run<Done>(Create{.tenant = "me"});
  for (Engine* engine : {&sampler, &still})
    engine->run<Done>(Create{.tenant = "frozen", .frozen = true});
  train(trainer, "me");
  const engine::Sample long_one{.tenant = "frozen",
                                .prompts = {engine::drawn(7, 20).input_ids},
                                .params = {{.max_tokens = 200, .seed = 1, .ignore_eos = true}}};
  const auto tokens = [](engine::Future& future) {
    return std::get<engine::SampleResult>(future.get()).completions[0][0].tokens;
  };
  engine::Future running = sampler.submit(long_one);
  on_ranks(2, {}, [&](Link& link, int rank) { exchange(link, rank, trainer, sampler, ""); });
  engine::Future untouched = still.submit(long_one);
  EXPECT_EQ(tokens(running), tokens(untouched));
  EXPECT_EQ(sampled(sampler, "frozen"), sampled(trainer, "me"));
}

// A Sample of the base model that takes so long for each of 200 tokens, until finish().
class SlowSample {
 public:
  SlowSample(Engine& engine, std::chrono::milliseconds of_token)
      : future_(engine.submit(
            engine::Sample{.tenant = "frozen",
                           .prompts = {engine::drawn(7, 20).input_ids},
                           .params = {{.max_tokens = 200, .seed = 1, .ignore_eos = true}}},
            {.on_tokens = [finishes = finishes_, of_token](auto) {
              if (!*finishes) std::this_thread::sleep_for(of_token);
            }})) {}
  void finish() { *finishes_ = true; }
  void wait() { future_.get(); }

 private:
  std::shared_ptr<std::atomic<bool>> finishes_ = std::make_shared<std::atomic<bool>>(false);
  engine::Future future_;
};

TEST(Link, SamplesThatTakeLongerThanTheTimeoutAreWaitedForSlow) {
  const model::TinyModel model;
  Engine trainer(options_of(model)), sampler(options_of(model));
  trainer.run<Done>(Create{.tenant = "me"});
  sampler.run<Done>(Create{.tenant = "frozen", .frozen = true});
  train(trainer, "me");
  SlowSample running(sampler, std::chrono::milliseconds(5));
  on_ranks(2, {}, [&](Link& link, int rank) { exchange(link, rank, trainer, sampler, ""); }, 0.5);
  running.wait();
  EXPECT_EQ(sampled(sampler, "frozen"), sampled(trainer, "me"));
}

TEST(Link, AnEngineThatIsBusyForLongerThanTheTimeoutIsWaitedForSlow) {
  const model::TinyModel model;
  Engine trainer(options_of(model)), sampler(options_of(model));
  trainer.run<Done>(Create{.tenant = "me", .lora_json = kLora});
  sampler.run<Done>(Create{.tenant = "frozen", .frozen = true});
  for (Engine* busy : {&trainer, &sampler}) {
    std::latch has_begun(1);
    std::thread holder([&] {
      busy->read_weights(busy == &trainer ? "me" : "frozen", [&](const engine::WeightsView&) {
        has_begun.count_down();
        std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      });
    });
    has_begun.wait();
    on_ranks(2, {}, [&](Link& link, int rank) { exchange(link, rank, trainer, sampler); }, 0.5);
    holder.join();
  }
}

TEST(Link, NothingSamplesTheNewBaseWithTheOldAdapter) {
  const model::TinyModel model;
  const ScratchDir other;
  write_other(other);
  EngineOptions options = options_of(model);
  options.model.path = other.path().string();
  Engine trainer(options_of(model)), sampler(options);
  trainer.run<Done>(Create{.tenant = "me", .lora_json = kLora});
  sampler.run<Done>(Create{.tenant = "frozen", .frozen = true});
  engine::NewWeights others;
  sampler.read_weights("frozen", [&](const engine::WeightsView& view) {
    for (engine::Weight w : view.base) {
      w.value = w.value.clone();
      others.base.push_back(std::move(w));
    }
  });
  const auto submit = [](Engine& engine, const std::string& who) {
    return engine.submit(
        engine::Sample{.tenant = who,
                       .prompts = {{5, 6, 7}},
                       .params = {{.max_tokens = 20, .seed = 4, .ignore_eos = true}}});
  };
  const auto of = [](engine::Future future) {
    return std::get<engine::SampleResult>(future.get()).completions[0][0].tokens;
  };
  std::string tenant;
  std::vector<int32_t> mixed, after;  // the new base with the adapter before, and with the new one
  std::promise<void> has_begun;
  on_ranks(2, {}, [&](Link& link, int rank) {
    if (rank == 0) {
      train(trainer, "me");
      mixed = of(submit(trainer, "me"));
      link.send(trainer, "me", "default");
      train(trainer, "me");
      after = of(submit(trainer, "me"));
      has_begun.get_future().wait();
      EXPECT_TRUE(link.send(trainer, "me", "default").has_base);
      return;
    }
    tenant = link.receive(sampler, "frozen").tenant;
    sampler.replace_weights("frozen", others);  // a base that differs once more
    const std::vector<int32_t> before = of(submit(sampler, tenant));
    SlowSample running(sampler, std::chrono::milliseconds(10));
    has_begun.set_value();
    std::thread syncs([&] { link.receive(sampler, "frozen"); });
    // The switch waits for the sample that runs, and later samples for the switch.
    for (int i = 0; i < 1000 && sampler.stats().tenants.at(tenant).num_queued == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::vector<engine::Future> between;
    for (int i = 0; i < 8; ++i) between.push_back(submit(sampler, tenant));
    running.finish();
    syncs.join();
    // Three that differ, so that each is known by its tokens.
    EXPECT_EQ(std::set({before, mixed, after}).size(), 3u);
    bool has_switched = false;
    for (engine::Future& future : between) {
      const std::vector<int32_t> got = of(std::move(future));
      EXPECT_TRUE(got == after || (got == before && !has_switched));
      has_switched = got == after;
    }
    EXPECT_EQ(of(submit(sampler, tenant)), after);
  });
}

TEST(Link, ASamplerOfAnotherModelIsRefusedOnEveryRankAndNothingChanges) {
  const model::TinyModel model;
  JsonObject config = model::tiny_config();
  config["intermediate_size"] = 96;
  const model::TinyModel wider(config);
  Engine trainer(options_of(model)), sampler(options_of(wider)), floats(options_of(model, "no"));
  trainer.run<Done>(Create{.tenant = "me", .lora_json = kLora});
  for (Engine* engine : {&sampler, &floats})
    engine->run<Done>(Create{.tenant = "frozen", .frozen = true});
  const Texts before = sampled(sampler, "frozen");
  on_ranks(2, {}, [&](Link& link, int rank) {
    for (int i = 0; i < 2; ++i) {  // the link stays as it was
      expect_error(
          "sync: tensor 'model.layers.0.mlp.gate_proj.weight' is c10::BFloat16 [80, 48] "
          "in the model, c10::BFloat16 [96, 48] in the sampler",
          [&] { exchange(link, rank, trainer, sampler); });
    }
    expect_error(
        "sync: tensor 'model.embed_tokens.weight' is c10::BFloat16 [131, 48] in the model, "
        "float [131, 48] in the sampler",
        [&] { exchange(link, rank, trainer, floats); });
  });
  EXPECT_EQ(sampled(sampler, "frozen"), before);
}

TEST(Link, WhatOneRankRefusesAllHear) {
  const model::TinyModel model;
  Engine trainer(options_of(model)), sampler(options_of(model));
  trainer.run<Done>(Create{.tenant = "me", .lora_json = kLora});
  sampler.run<Done>(Create{.tenant = "frozen", .frozen = true});
  on_ranks(2, {}, [&](Link& link, int rank) {
    if (rank == 0) {
      expect_error("engine: no tenant 'you'", [&] { link.send(trainer, "you", ""); });
      expect_error("has called receive_weights: the first 1 ranks send",
                   [&] { link.receive(trainer, "me"); });
      EXPECT_EQ(link.send(trainer, "me", "a").adapter_name, "a");
    } else {
      expect_error("sync: rank 0 (the model): engine: no tenant 'you'",
                   [&] { link.receive(sampler, "frozen"); });
      expect_error("has called receive_weights: the first 1 ranks send",
                   [&] { link.receive(sampler, "frozen"); });
      EXPECT_EQ(link.receive(sampler, "frozen").adapter_name, "a");
    }
  });
}

TEST(Link, ARankThatHasGoneEndsTheOthersAndTheOldWeightsStay) {
  const model::TinyModel model;
  Engine sampler(options_of(model));
  sampler.run<Done>(Create{.tenant = "frozen", .frozen = true});
  const Texts before = sampled(sampler, "frozen");
  for (const int gone : {0, 1}) {
    on_ranks(2, {}, [&](Link& link, int rank) {
      if (rank == gone) return;  // its link ends here
      expect_error("mesh: rank " + std::to_string(gone) + " has gone", [&] {
        if (rank == 0)
          link.send(sampler, "frozen", "");
        else
          link.receive(sampler, "frozen");
      });
    });
  }
  EXPECT_EQ(sampled(sampler, "frozen"), before);
}

// Over it a rank is interrupted when it sends its second message.
class InterruptedInMessages : public mesh::CountingComm {
 public:
  explicit InterruptedInMessages(std::unique_ptr<mesh::Comm> comm)
      : CountingComm(*comm), kept_(std::move(comm)) {}
  std::unique_ptr<mesh::Transfer> start_send(const at::Tensor& x, int to) override {
    if (++num_sent_ == 2) throw Interrupted();
    return CountingComm::start_send(x, to);
  }

 private:
  const std::unique_ptr<mesh::Comm> kept_;
  int num_sent_ = 0;
};

TEST(Link, ARankThatIsInterruptedBetweenItsMessagesEndsTheOthersWhichWaitForThem) {
  const model::TinyModel model;
  Engine trainer(options_of(model)), sampler(options_of(model));
  trainer.run<Done>(Create{.tenant = "me", .lora_json = kLora});
  sampler.run<Done>(Create{.tenant = "frozen", .frozen = true});
  const Options options{.num_senders = 1, .bucket_bytes = 999};
  auto comms = mesh::thread_comms(2, 20);
  Link sends(std::make_unique<InterruptedInMessages>(std::move(comms[0])), options);
  Link receives(std::move(comms[1]), options);
  std::string others;
  std::thread other([&] { others = error_of([&] { receives.receive(sampler, "frozen"); }); });
  EXPECT_THROW(sends.send(trainer, "me", "default"), Interrupted);
  other.join();
  EXPECT_EQ(others, "sync: rank 0: its script was interrupted; start all ranks again");
}

// Two of three ranks have switched, or have nothing to switch, and wait for the third, whose sample
// goes on until they have been told.
TEST(Link, RanksThatWaitForASwitchAreToldThatItsRankHasLeft) {
  const model::TinyModel model;
  Engine trainer(options_of(model)), slow(options_of(model)), quick(options_of(model));
  trainer.run<Done>(Create{.tenant = "me"});
  for (Engine* engine : {&slow, &quick})
    engine->run<Done>(Create{.tenant = "frozen", .frozen = true});
  train(trainer, "me");
  const Texts before = sampled(quick, "frozen"), after = sampled(trainer, "me");
  ASSERT_NE(before, after);
  SlowSample running(slow, std::chrono::milliseconds(100));
  std::latch told(2);
  on_ranks(3, {}, [&](Link& link, int rank) {
    const auto leaves = [&](const auto& call) { expect_error("sync: a rank has left", call); };
    if (rank == 1) {
      std::thread syncs([&] { leaves([&] { link.receive(slow, "frozen"); }); });
      for (int i = 0; i < 1000 && sampled(quick, "frozen") == before; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      link.close("sync: a rank has left");
      told.wait();
      running.finish();
      return syncs.join();
    }
    leaves([&] { exchange(link, rank, trainer, quick, ""); });
    told.count_down();
  });
  running.wait();
  EXPECT_EQ(sampled(quick, "frozen"), after);
}

TEST(Link, NeedsSomebodyOnEitherSide) {
  for (const int num_senders : {0, 2}) {
    EXPECT_NE(invalid_of([&] {
                Link(std::move(mesh::thread_comms(2)[0]), {num_senders});
              }).find("it must be from 1 to 1"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace twinkle::sync
