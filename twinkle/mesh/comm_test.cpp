#include "twinkle/mesh/comm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <thread>

#include "twinkle/base/error_for_test.h"
#include "twinkle/mesh/counting_comm.h"
#include "twinkle/mesh/thread_comm.h"

namespace twinkle::mesh {
namespace {

// Runs `f` of every rank in a thread of its own.
void on_ranks(int size, const std::function<void(Comm&)>& f) {
  const auto comms = thread_comms(size, 30);
  std::vector<std::thread> threads;
  for (const auto& comm : comms) threads.emplace_back([&f, &comm] { f(*comm); });
  for (std::thread& t : threads) t.join();
}

at::Tensor drawn(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  at::Tensor out = at::empty({count}, at::kFloat);
  for (int64_t i = 0; i < count; ++i) out.mutable_data_ptr<float>()[i] = normal(random);
  return out;
}

TEST(Comm, AllToAllOfUnevenPartsGivesEachRankItsOwn) {
  for (const int n : {1, 2, 3, 5}) {
    on_ranks(n, [n](Comm& comm) {
      // Rank s sends s + 2 r elements to rank r, each s * 100 + r; none to itself if that is rank
      // 0.
      std::vector<int64_t> to, from;
      std::vector<at::Tensor> in, expected;
      for (int r = 0; r < n; ++r) {
        to.push_back(comm.rank() + 2 * r);
        from.push_back(r + 2 * comm.rank());
        in.push_back(at::full({to.back()}, comm.rank() * 100 + r, at::kInt));
        expected.push_back(at::full({from.back()}, r * 100 + comm.rank(), at::kInt));
      }
      EXPECT_TRUE(at::equal(comm.all_to_all(at::cat(in), to, from), at::cat(expected)));
    });
  }
}

TEST(Comm, SumsAreAddedInTheOrderOfRanksWhereverAnElementLies) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    on_ranks(4, [type](Comm& comm) {
      // The same four values at every place of a buffer of 37, which 4 does not divide.
      const at::Tensor four = drawn(4, 7).to(type);
      at::Tensor x = four[comm.rank()].repeat({37});
      comm.all_reduce(x);
      at::Tensor sum = four[0].to(type == at::kDouble ? at::kDouble : at::kFloat);
      for (int r = 1; r < 4; ++r) sum = sum + four[r];
      EXPECT_TRUE(at::equal(x, sum.to(type).repeat({37})));
    });
  }
}

TEST(Comm, ReduceScatterOfUnevenPartsIsTheSumOfEachPart) {
  const std::vector<int64_t> counts{5, 0, 11};
  on_ranks(3, [&](Comm& comm) {
    const at::Tensor mine = drawn(16, static_cast<uint64_t>(comm.rank()));
    const at::Tensor sum = drawn(16, 0) + drawn(16, 1) + drawn(16, 2);
    const auto rank = static_cast<size_t>(comm.rank());
    const int64_t begin = rank == 0 ? 0 : 5;
    EXPECT_TRUE(
        at::equal(comm.reduce_scatter(mine, counts), sum.slice(0, begin, begin + counts[rank])));
  });
}

TEST(Comm, StringsOfAnyLengthComeInTheOrderOfRanks) {
  on_ranks(3, [](Comm& comm) {
    const std::vector<std::string> sent{"", "one", std::string(100'000, 'x')};
    EXPECT_EQ(comm.all_gather(sent[static_cast<size_t>(comm.rank())]), sent);
    for (int root = 0; root < 3; ++root) {
      const std::string mine = comm.rank() == root ? sent[static_cast<size_t>(root)] : "other";
      EXPECT_EQ(comm.broadcast(mine, root), sent[static_cast<size_t>(root)]);
    }
    comm.barrier();
  });
}

TEST(Comm, WhatIsSentArrivesInOrder) {
  on_ranks(2, [](Comm& comm) {
    for (int i = 0; i < 3; ++i) {
      at::Tensor x = at::full({4}, i, at::kFloat), y = at::empty({4}, at::kFloat);
      comm.send(x, 1 - comm.rank());
      comm.recv(y, 1 - comm.rank());
      EXPECT_TRUE(at::equal(x, y));
    }
  });
}

TEST(Comm, CallsThatDifferOrDoNotFitAreErrorsOnEveryRank) {
  on_ranks(2, [](Comm& comm) {
    at::Tensor x = at::zeros({4});
    const std::vector<int64_t> counts{2, 2};
    expect_error("rank 0 calls broadcast", [&] {
      if (comm.rank() == 0) return comm.broadcast(x, 0);
      comm.all_to_all(x, counts, counts);
    });
    expect_error("rank 0 calls broadcast", [&] { comm.barrier(); });
  });
  on_ranks(2, [](Comm& comm) {
    const std::vector<int64_t> to{1, 3 - comm.rank()}, from{1, 1};
    const at::Tensor x = at::zeros({to[0] + to[1]});
    expect_error("which expects", [&] { comm.all_to_all(x, to, from); });
  });
}

TEST(Comm, ARankThatClosesWakesTheOthersWithItsReason) {
  on_ranks(3, [](Comm& comm) {
    if (comm.rank() == 2) return comm.close("rank 2: no memory");
    expect_error("rank 2: no memory", [&] { comm.barrier(); });
    expect_error("rank 2: no memory", [&] { comm.barrier(); });
  });
}

TEST(Comm, ARankThatDoesNotComeIsWaitedForAsLongAsTheTimeout) {
  const auto comms = thread_comms(2, 0.05);
  expect_error("rank 1 of 2 has waited", [&] { comms[1]->barrier(); });
}

TEST(Comm, BytesSentAreThoseOfTheFormulas) {
  on_ranks(4, [](Comm& comm) {
    CountingComm counted(comm);
    at::Tensor x = at::zeros({64});
    counted.all_reduce(x);  // 2 bytes (n - 1) / n
    EXPECT_EQ(counted.sent().all_to_all, 2 * 64 * 4 * 3 / 4);
    counted.broadcast(x, 1);
    EXPECT_EQ(counted.sent().broadcast, comm.rank() == 1 ? 64 * 4 * 3 : 0);
    at::Tensor y = at::empty({64});
    counted.send(x, (comm.rank() + 1) % 4);
    counted.recv(y, (comm.rank() + 3) % 4);
    EXPECT_EQ(counted.sent().send, 64 * 4);
  });
}

TEST(Comm, AGroupOfOneHasNobodyToTalkTo) {
  Comm& comm = null_comm();
  at::Tensor x = drawn(5, 1), y = x.clone();
  comm.all_reduce(x);
  EXPECT_TRUE(at::equal(x, y));
  EXPECT_EQ(comm.all_gather(std::string("a")), std::vector<std::string>{"a"});
  EXPECT_EQ(comm.broadcast("b", 0), "b");
  expect_error("one rank", [&] { comm.send(x, 0); });
}

TEST(Comm, AGroupThatPythonHasNotRegisteredIsNotFound) {
  expect_error("twinkle/none", [&] { c10d_comm("twinkle/none"); });
}

}  // namespace
}  // namespace twinkle::mesh
