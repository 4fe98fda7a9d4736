#include "twinkle/parallel/shards.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <fstream>
#include <functional>
#include <future>
#include <thread>

#include "twinkle/base/error_for_test.h"
#include "twinkle/mesh/counting_comm.h"
#include "twinkle/mesh/thread_comm.h"
#include "twinkle/model/decoder.h"
#include "twinkle/model/family.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::parallel {
namespace {

constexpr int64_t kAll = int64_t{1} << 40;

// Keeps d loss / d output of a linear.
struct Recorder : nn::Delta {
  std::vector<at::Tensor> forward(const at::Tensor&, const nn::Rows&, at::Tensor&) override {
    return {};
  }
  void backward(const at::Tensor& dy, const at::Tensor&, const std::vector<at::Tensor>&,
                const nn::Rows&, at::Tensor&) override {
    seen.push_back(dy.clone());
  }
  std::vector<at::Tensor> seen;
};

// A decoder of one rank, or alone.
struct Rank {
  Rank(const std::string& path, at::ScalarType type, model::Borders& borders)
      : checkpoint(Checkpoint::open(path)),
        decoder(model::read_spec(checkpoint.config()), checkpoint, type, at::kCPU, borders) {
    for (const model::NamedLinear& linear : decoder.linears()) {
      if (linear.linear != &decoder.head()) linear.linear->delta = &recorder;
    }
  }

  model::Batch batch(uint64_t seed) const {
    const auto number = static_cast<int64_t>(seed);
    return {.input_ids = (at::arange(9) * 37 + 11 * number).remainder(128),
            .rows = nn::pack(std::vector<int64_t>{5, 4})};
  }
  // A pass as training takes it, and what it has computed.
  std::vector<at::Tensor> train(uint64_t seed) {
    model::Tape tape{.batch = batch(seed)};
    std::vector<at::Tensor> out{decoder.forward_train(tape)};
    const at::Tensor x = out[0];
    out.push_back(logits(x, true));
    decoder.backward(tape, x.cos());
    for (at::Tensor& dy : std::exchange(recorder.seen, {})) out.push_back(std::move(dy));
    return out;
  }
  std::vector<at::Tensor> forward(uint64_t seed) {
    const at::Tensor x = decoder.forward(batch(seed));
    return {x, logits(x, false)};
  }
  at::Tensor logits(const at::Tensor& x, bool learns) {
    const at::NoGradGuard no_grad;
    const model::InUse here = decoder.use_head(learns);
    return nn::product(x, decoder.head());
  }

  Checkpoint checkpoint;
  model::Decoder decoder;
  Recorder recorder;
};

std::vector<at::Tensor> life(Rank& rank) {
  std::vector<at::Tensor> out;
  const auto add = [&](std::vector<at::Tensor> more) {
    for (at::Tensor& t : more) out.push_back(std::move(t));
  };
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    add(rank.train(seed));
    add(rank.forward(seed));
  }
  rank.decoder.limit_activations(1);  // every layer is computed twice
  add(rank.train(3));
  return out;
}

// Runs `script` on every rank, each in a thread of its own.
void on_ranks(int n, const std::function<void(mesh::Comm&)>& script) {
  auto comms = mesh::thread_comms(n);
  std::vector<std::thread> threads;
  for (auto& comm : comms) threads.emplace_back([&] { script(*comm); });
  for (std::thread& t : threads) t.join();
}

JsonObject config_of(const std::string& family, bool tied) {
  JsonObject config = model::tiny_config(family);
  config["vocab_size"] = 128;
  config["num_hidden_layers"] = 3;
  config["tie_word_embeddings"] = tied;
  return config;
}

class ShardsOf : public testing::TestWithParam<std::string> {};

TEST_P(ShardsOf, AnyNumberOfRanksComputeTheBitsOfOne) {
  for (const bool tied : {true, false}) {
    const model::TinyModel model(config_of(GetParam(), tied));
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      Rank alone(model.path(), type, model::no_borders());
      const std::vector<at::Tensor> expected = life(alone);
      for (int n = 2; n <= 8; ++n) {
        for (const int64_t gathered : {int64_t{0}, int64_t{60'000}, kAll}) {
          on_ranks(n, [&](mesh::Comm& comm) {
            Shards shards(comm, gathered);
            Rank rank(model.path(), type, shards);
            const std::vector<at::Tensor> got = life(rank);
            ASSERT_EQ(got.size(), expected.size());
            for (size_t i = 0; i < got.size(); ++i)
              ASSERT_TRUE(at::equal(got[i], expected[i])) << n << " ranks, " << i;
          });
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ShardsOf,
                         testing::Values("llama", "qwen2", "qwen3", "glm4", "internlm2"));

// Bytes of the pieces, by their numbers: the head with the embedding, and the layers. All sizes of
// the model are whole lines.
std::vector<int64_t> piece_bytes() {
  const int64_t d = 48, q = 48, kv = 24, f = 80, size = 4;
  const int64_t layer = (q * d + 2 * kv * d + d * q + 3 * f * d) * size;
  return {128 * d * size, layer, layer, layer};
}

// A pass that trains, or a forward alone, as sampling takes it.
int64_t sent_by_a_pass(const std::string& path, mesh::Comm& comm, int64_t gathered, bool trains) {
  mesh::CountingComm counted(comm);
  Shards shards(counted, gathered);
  Rank rank(path, at::kFloat, shards);
  const auto pass = [&](uint64_t seed) { trains ? rank.train(seed) : rank.forward(seed); };
  pass(1);  // pieces that stay are gathered once
  const int64_t before = counted.sent().all_to_all;
  pass(2);
  return counted.sent().all_to_all - before;
}

// On 2 and 4 ranks, what a pass of each kind sends at so many gathered_bytes, which each rank
// compares with its formula.
using Sent = std::function<int64_t(int64_t gathered)>;
void on_passes(const std::string& path,
               const std::function<void(int n, bool trains, const Sent&)>& compare) {
  for (const int n : {2, 4}) {
    on_ranks(n, [&](mesh::Comm& comm) {
      for (const bool trains : {true, false}) {
        SCOPED_TRACE(std::to_string(n) + (trains ? " ranks train" : " ranks, a forward"));
        compare(n, trains,
                [&](int64_t gathered) { return sent_by_a_pass(path, comm, gathered, trains); });
      }
    });
  }
}

TEST(Shards, SendTwiceTheBaseForAPassButWhatStays) {
  const model::TinyModel model(config_of("llama", true));
  const std::vector<int64_t> bytes = piece_bytes();
  const int64_t all = bytes[0] + 3 * bytes[1], half = bytes[0] + bytes[1];
  on_passes(model.path(), [&](int n, bool trains, const Sent& sent) {
    // A rank sends its part of a piece to each other rank. A forward alone uses a layer once, but
    // a head that is the embedding twice, as a training pass does.
    const auto formula = [&](int64_t head, int64_t layers) {
      return (2 * head + (trains ? 2 : 1) * layers) / n * (n - 1);
    };
    EXPECT_EQ(sent(0), formula(bytes[0], 3 * bytes[1]));
    EXPECT_EQ(sent(half), formula(0, all - half));
    EXPECT_EQ(sent(half - 1), formula(0, all - bytes[0])) << "a piece stays whole or not at all";
    EXPECT_EQ(sent(all), 0);
    EXPECT_EQ(sent(kAll), 0);
  });
}

TEST(Shards, SendAHeadAndAnEmbeddingThatAreNotOneOnceForAPass) {
  const model::TinyModel model(config_of("llama", false));
  const std::vector<int64_t> bytes = piece_bytes();
  const int64_t head = bytes[0], embedding = head, layers = 3 * bytes[1];
  on_passes(model.path(), [&](int n, bool trains, const Sent& sent) {
    const auto formula = [&](int64_t once, int64_t moving) {
      return (once + (trains ? 2 : 1) * moving) / n * (n - 1);
    };
    EXPECT_EQ(sent(0), formula(head + embedding, layers));
    EXPECT_EQ(sent(head), formula(embedding, layers));
    EXPECT_EQ(sent(head + layers), formula(embedding, 0));
    EXPECT_EQ(sent(kAll), 0);
  });
}

// Tells when the second piece has been gathered.
struct SecondGather : mesh::CountingComm {
  using CountingComm::CountingComm;
  void gather_into(at::Tensor& all, const at::Tensor& x) override {
    CountingComm::gather_into(all, x);
    if (++num_gathers == 2) seen.set_value();
  }
  int num_gathers = 0;  // by only the thread that gathers
  std::promise<void> seen;
};

TEST(Shards, GatherTheNextPieceWhileOneIsInUse) {
  const model::TinyModel model(config_of("llama", true));
  on_ranks(2, [&](mesh::Comm& comm) {
    SecondGather watched(comm);
    Shards shards(watched, 0);
    const Rank rank(model.path(), at::kFloat, shards);
    shards.use(0, 1);
    EXPECT_EQ(watched.seen.get_future().wait_for(std::chrono::seconds(20)),
              std::future_status::ready)
        << "nobody has gathered piece 1 ahead";
    shards.done(0);
  });
}

TEST(Shards, WalkWithoutRowsBesideRanksThatHaveSome) {
  const model::TinyModel model(config_of("qwen3", false));
  Rank alone(model.path(), at::kFloat, model::no_borders());
  const std::vector<at::Tensor> expected = alone.train(1);
  on_ranks(3, [&](mesh::Comm& comm) {
    Shards shards(comm, 0);
    Rank rank(model.path(), at::kFloat, shards);
    if (comm.rank() == 1) {
      rank.decoder.walk_forward();
      {
        const model::InUse here = rank.decoder.use_head(true);
      }
      rank.decoder.walk_backward();
      return;
    }
    const std::vector<at::Tensor> got = rank.train(1);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << i;
  });
}

TEST(Shards, ShowEveryWeightToWhoVisitsIt) {
  const model::TinyModel model(config_of("qwen2", false));
  Rank alone(model.path(), at::kFloat, model::no_borders());
  on_ranks(2, [&](mesh::Comm& comm) {
    Shards shards(comm, 0);
    Rank rank(model.path(), at::kFloat, shards);
    EXPECT_FALSE(rank.decoder.has_all());
    EXPECT_EQ(rank.decoder.head().weight.storage().data(), nullptr);
    size_t i = 0;
    rank.decoder.visit_weights([&](const model::NamedWeight& weight) {
      EXPECT_TRUE(at::equal(*weight.value, *alone.decoder.weights()[i++].value)) << weight.name;
    });
    EXPECT_EQ(i, alone.decoder.weights().size());
    EXPECT_FALSE(rank.decoder.has_all());
  });
}

TEST(Shards, OfARankThatHasGoneEndTheOthersPasses) {
  const model::TinyModel model(config_of("llama", true));
  on_ranks(3, [&](mesh::Comm& comm) {
    Shards shards(comm, 0);
    Rank rank(model.path(), at::kFloat, shards);
    rank.train(1);
    if (comm.rank() == 2) return shards.give_up("no memory on rank 2");
    const std::string why = error_of([&] { rank.train(2); });
    EXPECT_NE(why.find("no memory on rank 2"), std::string::npos) << why;
    EXPECT_EQ(error_of([&] { rank.train(3); }), why);
  });
}

// ---- what a rank reads, and holds. Of a base large beside everything else.

JsonObject large_config() {
  JsonObject config = model::tiny_config();
  config["hidden_size"] = 512;
  config["intermediate_size"] = 1024;
  config["vocab_size"] = 4096;
  config["num_hidden_layers"] = 8;
  config["num_attention_heads"] = 8;
  config["num_key_value_heads"] = 8;
  config["head_dim"] = 64;
  return config;
}

// "VmHWM" of /proc/self/status, "rchar" of /proc/self/io: bytes.
int64_t of_process(const char* file, const std::string& name, int64_t unit) {
  std::ifstream in(file);
  for (std::string word; in >> word;) {
    int64_t value = 0;
    if (word == name + ":" && in >> value) return value * unit;
  }
  ADD_FAILURE() << file << " has no " << name;
  return 0;
}

TEST(Shards, ReadAndHoldARanksPartOfTheFilesAlone) {
  const model::TinyModel model(large_config());
  const auto comms = mesh::thread_comms(4);  // nobody talks while a model is read
  int64_t all = 0, read = 0, peak = 0;
  {
    Shards shards(*comms[1], 0);
    ::malloc_trim(0);  // the memory of the making is not to be used again unseen
    std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins anew
    const auto held = [] { return of_process("/proc/self/status", "VmHWM", 1024); };
    const auto chars = [] { return of_process("/proc/self/io", "rchar", 1); };
    const int64_t held_before = held(), read_before = chars();
    const Rank rank(model.path(), at::kFloat, shards);
    read = chars() - read_before;
    peak = held() - held_before;
    for (const model::NamedWeight& w : const_cast<Rank&>(rank).decoder.weights())
      all += static_cast<int64_t>(w.value->nbytes());
  }
  ASSERT_GT(all, 50 << 20);
  EXPECT_GT(read, all / 4);
  EXPECT_LT(read, all / 4 + all / 50);
  EXPECT_GT(peak, all / 5) << "what is measured";
  EXPECT_LT(peak, all / 2) << "its part, and what the heap rounds up";
}

}  // namespace
}  // namespace twinkle::parallel
