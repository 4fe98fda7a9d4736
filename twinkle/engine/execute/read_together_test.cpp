// Files that ranks have read alike, and others.
#include "twinkle/engine/execute/read_together.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <new>
#include <thread>
#include <utility>

#include "twinkle/base/error_for_test.h"
#include "twinkle/base/parallel.h"
#include "twinkle/io/scratch_dir_for_test.h"
#include "twinkle/mesh/thread_comm.h"

namespace twinkle::engine {
namespace {

void on_two(const std::function<void(mesh::Comm& comm)>& script) {
  const auto comms = mesh::thread_comms(2, 10);
  std::thread other([&] { script(*comms[1]); });
  script(*comms[0]);
  other.join();
}

lora::SavedAdapter adapter_of(int64_t rank, float value) {
  lora::SavedAdapter out;
  out.config.rank = rank;
  out.modules.push_back({"layers.0.q_proj", at::full({rank, 4}, 1.0), at::full({4, rank}, value)});
  return out;
}

constexpr const char* kOther =
    "engine: /models/mine holds other values on rank 1 than on rank 0: every rank reads it, it "
    "must "
    "be the same on all machines";

TEST(ReadAlike, AdaptersOfOtherShapesOrValuesAreRefusedOnEveryRank) {
  on_two([](mesh::Comm& comm) {
    const auto read = [&](const lora::SavedAdapter& of_0, const lora::SavedAdapter& of_1) {
      return read_alike(comm, "/models/mine",
                        [&] { return Loaded{.adapter = comm.rank() == 0 ? of_0 : of_1}; });
    };
    EXPECT_TRUE(read(adapter_of(4, 2), adapter_of(4, 2)).adapter);
    EXPECT_EQ(invalid_of([&] { read(adapter_of(4, 2), adapter_of(8, 2)); }), kOther);
    EXPECT_EQ(invalid_of([&] { read(adapter_of(4, 2), adapter_of(4, 3)); }), kOther);
    lora::SavedAdapter scaled = adapter_of(4, 2);
    scaled.config.alpha = 7;
    EXPECT_EQ(invalid_of([&] { read(adapter_of(4, 2), scaled); }), kOther);
  });
}

TEST(ReadAlike, StatesThatDifferInNumbersOfStepsAloneAreRefusedOnEveryRank) {
  on_two([](mesh::Comm& comm) {
    const auto read = [&](int64_t of_0, int64_t of_1) {
      const JsonObject steps{{"w", comm.rank() == 0 ? of_0 : of_1}};
      TrainingState state{.optimizer = optim::make("AdamW")};
      state.optimizer->load(
          {.fields = JsonObject{{"optimizer", "AdamW"}, {"steps", steps}},
           .tensors = {{"w.exp_avg", at::ones({4})}, {"w.exp_avg_sq", at::ones({4})}}});
      read_alike(comm, "/models/mine",
                 [&] { return Loaded{.adapter = adapter_of(4, 2), .training = std::move(state)}; });
    };
    EXPECT_EQ(error_of([&] { read(3, 3); }), "no error");
    EXPECT_EQ(invalid_of([&] { read(3, 4); }), kOther);
  });
}

TEST(ReadAlike, FoldersOfAllWeightsAreComparedByTheirFiles) {
  const ScratchDir same, other;
  for (const ScratchDir* dir : {&same, &other}) {
    std::ofstream(dir->path() / "model.safetensors") << std::string(20'000, 'x');
    std::ofstream(dir->path() / "trainer_state.json") << "{}";
    std::ofstream(dir->path() / "README.md") << dir->path();  // nobody reads it
  }
  const auto read = [](mesh::Comm& comm, const std::filesystem::path& of_1) {
    read_alike(comm, of_1, [] { return Loaded(); });
  };
  on_two([&](mesh::Comm& comm) {
    EXPECT_EQ(error_of([&] { read(comm, comm.rank() ? other.path() : same.path()); }), "no error");
  });
  const auto end_in = [&](const char* file, char with) {
    std::ofstream(other.path() / file, std::ios::in | std::ios::out | std::ios::ate)
        .seekp(-1, std::ios::end)
        .put(with);
  };
  for (const char* file : {"model.safetensors", "trainer_state.json"}) {
    const char same_end = *file == 'm' ? 'x' : '}';
    end_in(file, ' ');
    on_two([&](mesh::Comm& comm) {
      const std::string why =
          invalid_of([&] { read(comm, comm.rank() ? other.path() : same.path()); });
      EXPECT_NE(why.find("holds other values on rank 1 than on rank 0"), std::string::npos) << why;
    });
    end_in(file, same_end);
  }
}

TEST(ReadTogether, WhatOneRankLacksMemoryForOrIsInterruptedInAllAreTold) {
  on_two([](mesh::Comm& comm) {
    const auto fails = [&](const auto& raise) {
      return error_of([&] {
        read_together(comm, [&] {
          if (comm.rank() == 1) raise();
        });
      });
    };
    constexpr const char* kTold =
        "engine: rank 1 can't go on: the machine has no memory left for this: make it smaller";
    EXPECT_EQ(fails([] { throw Interrupted(); }),
              std::string("engine: rank 1 can't go on: ") + Interrupted::kText);
    EXPECT_EQ(fails([] { throw std::bad_alloc(); }), kTold);
    EXPECT_EQ(fails([] { at::empty({int64_t{1} << 58}, at::kByte); }), kTold);
  });
}

TEST(ReadTogether, WhatOneRankFindsAllAreToldByItsNumberAndWhatAllFindAsItIs) {
  on_two([](mesh::Comm& comm) {
    const auto fails = [&](int first, const std::string& text) {
      return invalid_of([&] {
        read_together(comm, [&] { require(comm.rank() < first, Code::kInvalid, text); });
      });
    };
    EXPECT_EQ(fails(2, ""), "no error");
    EXPECT_EQ(fails(1, "io: damaged"), "engine: rank 1: io: damaged");
    EXPECT_EQ(fails(0, "io: damaged"), "io: damaged");
    const std::string own = "io: damaged on rank " + std::to_string(comm.rank());
    EXPECT_EQ(fails(0, own), "engine: rank 0: io: damaged on rank 0");
  });
}

}  // namespace
}  // namespace twinkle::engine
