#include "twinkle/engine/memory/parking.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <ctime>

#include "twinkle/base/random.h"
#include "twinkle/engine/heap_shortage_for_test.h"
#include "twinkle/engine/shortage_for_test.h"
#include "twinkle/io/scratch_dir_for_test.h"
#include "twinkle/model/family.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::engine {
namespace {

namespace fs = std::filesystem;

// Tenants whose gradients are drawn instead of computed.
class Crew {
 public:
  explicit Crew(const ParkingOptions& options, size_t size = 6)
      : decoder_(model::read_spec(model::tiny_config()), Checkpoint::open(directory_.path()),
                 at::kFloat),
        pool_(decoder_),
        parking(options) {
    for (size_t i = 0; i < size; ++i) {
      const PeftConfig config{.rank = 4, .target_modules = std::string("all-linear")};
      tenants_.push_back(std::make_unique<Tenant>(
          std::string(1, static_cast<char>('a' + i)), Mode::kLora,
          pool_.add(std::make_unique<lora::Adapter>(config, pool_.linears(), i)), i,
          Tenant::Home{decoder_, pool_}));
    }
  }

  Tenant& operator[](size_t i) { return *tenants_[i]; }

  void learn(size_t i, uint64_t key) {
    Tenant& tenant = *tenants_[i];
    parking.use(tenant);
    pool_.at(tenant.slot()).make_grads();
    for (lora::Factors& f : pool_.at(tenant.slot()).factors()) {
      for (at::Tensor* g : {&f.grads[0], &f.grads[1]}) {
        float* to = g->mutable_data_ptr<float>();
        for (int64_t k = 0; k < g->numel(); ++k)
          to[k] += static_cast<float>(uniform_at(key_of(key, i), static_cast<uint64_t>(k)));
      }
    }
    tenant.count(3);
    parking.end_round();
  }
  void step(size_t i) {
    parking.use(*tenants_[i]);
    tenants_[i]->step({.options = R"({"lr": 0.1})"});
    parking.end_round();
  }
  std::vector<std::vector<float>> state(size_t i) {
    parking.use(*tenants_[i]);
    std::vector<std::vector<float>> out;
    for (const NamedTensor& t : tenants_[i]->inspect(true).tensors) out.push_back(t.values);
    parking.end_round();
    return out;
  }
  void remove(size_t i) {
    parking.forget(*tenants_[i]);
    tenants_[i].reset();
  }
  lora::Pool& pool() { return pool_; }

 private:
  const model::TinyModel directory_;
  model::Decoder decoder_;
  lora::Pool pool_;
  std::vector<std::unique_ptr<Tenant>> tenants_;

 public:
  Parking parking;
};

// Weights, gradients, two moments of one tenant of a crew.
int64_t most_bytes() {
  Crew crew({}, 1);
  crew.learn(0, 1);
  crew.step(0);
  crew.learn(0, 1);
  return crew[0].num_bytes();
}

std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) out.push_back(entry.path());
  }
  return out;
}

class ParkingTest : public testing::Test {
 protected:
  ParkingOptions two() const { return {2 * most_bytes(), (scratch_ / "park").string()}; }
  const ScratchDir scratch_{memory_folder()};
};

TEST_F(ParkingTest, SixTenantsInTurnWithinTheRoomOfTwoGetTheBitsOfThoseWithoutALimit) {
  Crew free({}), tight(two());
  for (uint64_t round = 0; round < 6; ++round) {
    for (size_t i = 0; i < 6; ++i) {
      for (Crew* crew : {&free, &tight}) {
        crew->learn(i, round);
        if (round % 2 == 1) crew->step(i);  // some are parked with gradients, some without
      }
      EXPECT_LE(tight.parking.stats().resident_bytes, two().resident_bytes);
    }
  }
  EXPECT_GE(tight.parking.stats().num_parked, 3);
  EXPECT_GE(tight.parking.stats().num_returns, 20);
  EXPECT_EQ(free.parking.stats().num_parked, 0);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(tight.state(i), free.state(i)) << i;
}

TEST_F(ParkingTest, WhatIsParkedIsNoLongerInMemoryAndItsFileGoesWithIt) {
  const fs::path folder = scratch_ / "park";
  {
    Crew crew(two());
    for (size_t i = 0; i < 6; ++i) crew.learn(i, 1);
    const int64_t parked = crew.parking.stats().num_parked;
    ASSERT_GE(parked, 2);
    EXPECT_EQ(crew[0].num_bytes(), 0);
    EXPECT_EQ(std::ssize(files_below(folder)), parked);
    crew.remove(0);
    EXPECT_EQ(std::ssize(files_below(folder)), parked - 1);
    crew.state(1);
    EXPECT_GT(crew[1].num_bytes(), 0);
    crew.remove(5);
    EXPECT_GE(crew.parking.stats().resident_bytes, 0);
  }
  EXPECT_TRUE(fs::is_empty(folder)) << "nothing stays behind";
}

TEST_F(ParkingTest, ALostOrChangedFileIsAnErrorOfItsTenantAloneUntilItIsBack) {
  Crew crew(two()), free({});
  for (size_t i = 0; i < 6; ++i) {
    crew.learn(i, 1);
    free.learn(i, 1);
  }
  ASSERT_EQ(crew[0].num_bytes(), 0);
  fs::path file;  // tenant a's, which is parked first
  for (const fs::path& f : files_below(scratch_ / "park")) {
    if (f.filename() == "1") file = f;
  }
  const std::string bytes = read_text(file),
                    who = "engine: tenant 'a' is parked in " + file.string() + ", which ";
  fs::remove(file);
  EXPECT_EQ(error_of([&] { crew.state(0); }), who + "is gone");
  write_text(file, bytes.substr(0, bytes.size() - 4));
  EXPECT_EQ(error_of([&] { crew.state(0); }), who + "has been cut");
  std::string other = bytes;
  other[17] ^= 1;
  write_text(file, other);
  EXPECT_EQ(error_of([&] { crew.state(0); }), who + "does not hold what was written to it");
  write_text(file, bytes + "more");
  EXPECT_EQ(error_of([&] { crew.state(0); }), who + "does not hold what was written to it");
  crew.learn(1, 2);
  free.learn(1, 2);
  EXPECT_EQ(crew.state(1), free.state(1)) << "a neighbour";
  write_text(file, bytes);
  EXPECT_EQ(crew.state(0), free.state(0)) << "nothing was lost";
}

TEST_F(ParkingTest, AFolderThatCannotBeWrittenToLeavesTenantsInMemoryAndSaysSo) {
  Crew crew(two()), free({});
  // A folder's permissions do not stop root; a file in its place does.
  const fs::path folder = fs::directory_iterator(scratch_ / "park")->path();
  fs::remove(folder);
  write_text(folder, "in the way");
  for (size_t i = 0; i < 6; ++i) {
    crew.learn(i, 1);
    free.learn(i, 1);
  }
  const ParkingStats stats = crew.parking.stats();
  EXPECT_GT(stats.num_failures, 0);
  EXPECT_NE(stats.last_failure.find(folder.string()), std::string::npos) << stats.last_failure;
  EXPECT_EQ(stats.num_parked, 0);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(crew.state(i), free.state(i));
  fs::remove(folder);
  fs::create_directory(folder);
  for (size_t i = 0; i < 6; ++i) crew.state(i);
  EXPECT_GE(crew.parking.stats().num_parked, 2) << "it is tried again";
}

// The earlier work has been done: an operation must not fail after it.
TEST_F(ParkingTest, WantOfMemoryWhileParkingIsCountedAndNotThrown) {
  Crew crew({1, (scratch_ / "park").string()}, 2), free({}, 2);
  for (Crew* c : {&crew, &free}) {
    c->learn(0, 1);
    at::Tensor& g = c->pool().at((*c)[0].slot()).factors()[0].grads[1];
    g = g.t().contiguous().t();  // only a copy can be written
  }
  {
    const Shortage shortage(0);
    crew.parking.use(crew[1]);
    crew.parking.end_round();
  }
  EXPECT_EQ(crew.parking.stats().num_failures, 1);
  EXPECT_EQ(crew.parking.stats().num_parked, 0);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(crew.state(i), free.state(i)) << i;
}

TEST_F(ParkingTest, ATenantIsForgottenWithoutMemory) {
  Crew crew(two());
  for (size_t i = 0; i < 6; ++i) crew.learn(i, 1);
  const int64_t parked = crew.parking.stats().num_parked;
  const fs::path folder = fs::directory_iterator(scratch_ / "park")->path();
  fs::remove_all(folder);
  write_text(folder, "in the way");
  // Others can't make room, which is counted with a long text, and its own file is gone.
  EXPECT_NE(error_of([&] { crew.parking.use(crew[0]); }), "no error");
  {
    const HeapShortage shortage(0);
    crew.parking.forget(crew[0]);
  }
  EXPECT_EQ(crew.parking.stats().num_parked, parked - 1);
  EXPECT_NE(crew.parking.stats().last_failure, "");
}

TEST_F(ParkingTest, WhatAKilledProcessLeftGoesAndTheFolderOfALivingOneStays) {
  const fs::path park = scratch_ / "park";
  fs::create_directories(park / "parked-4242-abcdef");
  write_text(park / "parked-4242-abcdef/7", "a tenant");
  write_text(park / "parked-notes.txt", "a file");
  const auto folders = [&] {
    std::set<std::string> out;
    for (const auto& entry : fs::directory_iterator(park)) out.insert(entry.path().filename());
    return out;
  };
  const Parking first(two());
  auto now = folders();
  EXPECT_FALSE(now.contains("parked-4242-abcdef"));
  EXPECT_TRUE(now.contains("parked-notes.txt"));
  const Parking second(two());
  EXPECT_EQ(folders().size(), now.size() + 1) << "the first one's is still there";
}

// By the thread's processor time, which neighbours do not lengthen much.
TEST_F(ParkingTest, AnOperationCostsTheSameAmongManyTenants) {
  const auto seconds = [&](size_t size) {
    Crew crew({int64_t{1} << 40, (scratch_ / "park").string()}, size);
    for (size_t i = 0; i < size; ++i) crew.parking.use(crew[i]);
    crew.parking.end_round();
    double least = INFINITY;
    for (int attempt = 0; attempt < 5; ++attempt) {
      const auto begin = std::clock();
      for (size_t i = 0; i < 500; ++i) {
        crew.parking.use(crew[i % 2]);
        crew.parking.end_round();
      }
      least = std::min(least, static_cast<double>(std::clock() - begin));
    }
    return least;
  };
  EXPECT_LT(seconds(1000), 5 * seconds(10));
}

TEST_F(ParkingTest, WhatIsUsedTogetherStaysTogetherThoughItExceedsTheLimit) {
  Crew crew({1, (scratch_ / "park").string()}, 3);
  for (size_t i = 0; i < 3; ++i) crew.parking.use(crew[i]);
  for (size_t i = 0; i < 3; ++i) EXPECT_GT(crew[i].num_bytes(), 0);
  crew.parking.end_round();
  EXPECT_EQ(crew.parking.stats().num_parked, 2);
  EXPECT_GT(crew[2].num_bytes(), 0) << "the one that was used last";
}

TEST_F(ParkingTest, AHeldTenantStays) {
  Crew crew({1, (scratch_ / "park").string()}, 3);
  for (size_t i = 0; i < 3; ++i) crew.parking.use(crew[i]);
  crew.parking.end_round({&crew[0]});
  EXPECT_GT(crew[0].num_bytes(), 0);
  EXPECT_EQ(crew[1].num_bytes(), 0);
}

TEST_F(ParkingTest, WeightsThatSomebodyReadsStayAndPublishedOnesGoAndComeBack) {
  Crew crew({1, (scratch_ / "park").string()}, 2);
  crew.parking.use(crew[0]);
  const int64_t version = crew[0].publish();
  crew.learn(0, 1);
  crew.step(0);
  const auto published = [&] {
    crew.parking.use(crew[0]);
    return crew.pool().at(crew[0].pinned(version).slot()).factors()[0].f.a.clone();
  };
  const at::Tensor before = published();
  {
    const lora::AdapterRef reader = crew[0].pinned(version);
    crew.learn(1, 1);
    EXPECT_GT(crew[0].num_bytes(), 0);
  }
  crew.learn(1, 1);
  EXPECT_EQ(crew[0].num_bytes(), 0);
  EXPECT_TRUE(at::equal(published(), before));
}

TEST_F(ParkingTest, WithAFolderTheLimitIsHalfOfTheMemoryUnlessItIsNamed) {
  const std::string folder = (scratch_ / "park").string();
  const auto limit = [](const ParkingOptions& options) {
    return Parking(options, 1000).stats().limit;
  };
  EXPECT_EQ(limit({.directory = folder}), 500);
  EXPECT_EQ(limit({}), 0) << "there is nowhere to park";
  EXPECT_EQ(limit({0, folder}), 0);
  EXPECT_EQ(limit({700, folder}), 700);
  EXPECT_EQ(Parking({.directory = folder}).stats().limit, memory_limit() / 2);
}

TEST_F(ParkingTest, ALimitNeedsAFolderThatCanBeWrittenTo) {
  EXPECT_EQ(error_of([] { Parking({-2, ""}); }),
            "engine: resident_bytes is -2, it must be an integer of at least -1, at most "
            "1125899906842624");
  EXPECT_EQ(error_of([] { Parking({5, ""}); }),
            "engine: resident_bytes is 5 but park_directory is empty; name a folder for idle "
            "tenants");
  write_text(scratch_ / "file", "");
  EXPECT_EQ(error_of([&] { Parking({5, (scratch_ / "file").string()}); }),
            "engine: park_directory " + (scratch_ / "file").string() +
                " cannot be written to; name a folder that can");
}

}  // namespace
}  // namespace twinkle::engine
