// Saves of ranks that train all weights, and loads on other meshes.
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "twinkle/base/error_for_test.h"
#include "twinkle/engine/checkpoint/training_state.h"
#include "twinkle/engine/exactness/all_weights_for_test.h"
#include "twinkle/engine/tenant.h"

namespace twinkle::engine {
namespace {

namespace fs = std::filesystem;

std::map<std::string, NamedTensor> by_name(const Told& told) {
  std::map<std::string, NamedTensor> out;
  for (const NamedTensor& t : told.tensors) out[t.name] = t;
  return out;
}

Save save_all_to(const fs::path& folder) {
  return {.tenant = "a", .directory = folder.string(), .optimizer = true, .gradients = true};
}

void learn_on(Rank& rank, uint64_t stage) {
  rank.learn(3 * stage);
  rank.step({.options = R"({"lr": 1e-3, "eps": 1e-5})", .max_grad_norm = 0.5});
  rank.learn(3 * stage + 1);
}

TEST(AllWeightsSaved, OnOneMeshHaveEqualValuesOnAnyOther) {
  for (const bool tied : {true, false}) {
    const model::TinyModel model(config_of("qwen2", tied));
    const EngineOptions options = in_float32(model);
    const ScratchDir scratch;
    fs::path saved;
    Told before;
    uint64_t stage = 0;
    for (const Mesh& mesh : {Mesh{2, 1}, Mesh{1, 1}, Mesh{1, 4}, Mesh{2, 2}, Mesh{3, 1}, Mesh{1, 2},
                             Mesh{1, 1}, Mesh{2, 4}, Mesh{1, 3, 8'000}, Mesh{1, 1}}) {
      SCOPED_TRACE(testing::PrintToString(mesh));
      const fs::path folder = scratch / std::to_string(stage);
      std::vector<Told> loaded(static_cast<size_t>(mesh.size()));
      std::vector<Told> after = on_mesh(mesh, options, [&](Rank& rank) {
        rank.create();
        if (!saved.empty())
          rank.run(Load{.tenant = "a", .directory = saved.string(), .optimizer = true});
        rank.inspect();
        const Told here = rank.told();
        learn_on(rank, stage);
        rank.run(save_all_to(folder));
        rank.inspect();
        loaded[rank.index()] = here;
      });
      if (!saved.empty()) {
        for (const Told& told : loaded) EXPECT_EQ(by_name(told), by_name(before));
      }
      // The model's files are those of one rank, and all of it.
      EXPECT_TRUE(fs::exists(folder / "model.safetensors"));
      EXPECT_EQ(fs::exists(folder / "training.safetensors"), mesh.size() == 1);
      for (int r = 0; mesh.size() > 1 && r < mesh.size(); ++r)
        EXPECT_TRUE(fs::exists(folder / training_part(r, mesh.size())));
      before = after[0];
      saved = folder;
      ++stage;
    }
  }
}

TEST(AllWeightsSaved, GoOnAsWithoutTheSaveOnTheSameMesh) {
  const model::TinyModel model(config_of("llama", true));
  const EngineOptions options = in_float32(model);
  const ScratchDir scratch;
  for (const Mesh& mesh : {Mesh{2, 1}, Mesh{2, 2}}) {
    const fs::path folder = scratch / std::to_string(mesh.size());
    const auto rest = [](Rank& rank) {
      rank.forget();
      learn_on(rank, 2);
      rank.inspect();
      rank.sample();
    };
    const std::vector<Told> want = on_mesh(mesh, options, [&](Rank& rank) {
      rank.create();
      learn_on(rank, 1);
      rank.run(save_all_to(folder));
      rest(rank);
    });
    const std::vector<Told> got = on_mesh(mesh, options, [&](Rank& rank) {
      rank.create();
      rank.learn(77);
      rank.run(Load{.tenant = "a", .directory = folder.string(), .optimizer = true, .exact = true});
      rest(rank);
    });
    for (size_t r = 0; r < got.size(); ++r) EXPECT_EQ(got[r].bits, want[r].bits) << r;
    const Mesh as_large = mesh.fsdp > 1 ? Mesh{mesh.size(), 1} : Mesh{1, mesh.size()};
    for (const Mesh& other : {Mesh{1, 1}, as_large}) {
      on_mesh(other, options, [&](Rank& rank) {
        rank.create();
        const std::string why = error_of([&] {
          rank.run(
              Load{.tenant = "a", .directory = folder.string(), .optimizer = true, .exact = true});
        });
        EXPECT_NE(why.find("was saved by ranks"), std::string::npos) << why;
        EXPECT_TRUE(why.ends_with("exact=false, or on the same mesh")) << why;
      });
    }
  }
}

// Each rank's part of the training state has 1/N of the elements, but for what fills lines.
TEST(AllWeightsSaved, AreInPartsOfOneSize) {
  const model::TinyModel model(config_of("llama", true));
  const EngineOptions options = in_float32(model);
  const ScratchDir scratch;
  const auto saved = [&](const Mesh& mesh) {
    const fs::path folder = scratch / (std::to_string(mesh.dp) + "x" + std::to_string(mesh.fsdp));
    on_mesh(mesh, options, [&](Rank& rank) {
      rank.create();
      learn_on(rank, 1);
      rank.run(save_all_to(folder));
    });
    std::vector<int64_t> bytes;
    for (int r = 0; r < mesh.size(); ++r) {
      const SafetensorsFile part(
          folder / (mesh.size() == 1 ? kTrainingTensors : training_part(r, mesh.size())));
      bytes.push_back(0);
      for (const StoredTensor& tensor : part.tensors()) {
        // One rank keeps two sums of a tied head.
        if (tensor.name != std::string("grad/") + kHeadWeight) bytes.back() += tensor.num_bytes();
      }
    }
    return bytes;
  };
  const int64_t whole = saved({1, 1})[0];
  for (const Mesh& mesh : {Mesh{2, 1}, Mesh{4, 1}, Mesh{1, 4}, Mesh{2, 2}}) {
    const std::vector<int64_t> parts = saved(mesh);
    EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), int64_t{0}), whole);
    for (const int64_t bytes : parts) EXPECT_NEAR(bytes, whole / mesh.size(), 4 * 4 * 64);
  }
}

TEST(AllWeightsSaved, ThatOneRankFindsDamagedAreTheErrorOfAllAndChangeNothing) {
  const model::TinyModel model(config_of("llama", true));
  const EngineOptions options = in_float32(model);
  const ScratchDir scratch;
  const fs::path folder = scratch / "saved";
  on_mesh({2, 2}, options, [&](Rank& rank) {
    rank.create();
    learn_on(rank, 1);
    rank.run(save_all_to(folder));
  });
  const auto is_refused = [&](const std::string& file, const std::string& text,
                              const std::string& why_not) {
    const std::string whole = read_text(folder / file);
    write_text(folder / file, text);
    on_mesh({1, 2}, options, [&](Rank& rank) {
      rank.create();
      learn_on(rank, 2);
      rank.inspect();
      const auto before = rank.told().tensors;
      const std::string why = invalid_of(
          [&] { rank.run(Load{.tenant = "a", .directory = folder.string(), .optimizer = true}); });
      EXPECT_NE(why.find(why_not), std::string::npos) << why;
      rank.inspect();
      EXPECT_EQ(rank.told().tensors, before);
      learn_on(rank, 3);
    });
    write_text(folder / file, whole);
  };
  for (const std::string& file : {std::string("model.safetensors"), training_part(1, 4)}) {
    std::string damaged = read_text(folder / file);
    damaged.replace(damaged.size() - 4, 4, std::string("\x00\x00\xc0\x7f", 4));  // NaN
    is_refused(file, damaged, "holds NaN or infinity");
  }
  // One number of the model's last weight is another save's.
  std::string mixed = read_text(folder / "model.safetensors");
  mixed.replace(mixed.size() - 4, 4, std::string("\x00\x00\x00\x42", 4));  // 32
  is_refused("model.safetensors", mixed, " is of another save than trainer_state.json");
}

TEST(AllWeightsDeleted, GiveTheBaseBackAndMakeRoomForAdapters) {
  const model::TinyModel model(config_of("llama", false));
  const EngineOptions options = in_float32(model);
  for (const Mesh& mesh : {Mesh{2, 1}, Mesh{1, 2}, Mesh{2, 2, 8'000}}) {
    on_mesh(mesh, options, [&](Rank& rank) {
      rank.run(Create{.tenant = "base", .frozen = true});
      const Result before = rank.run(Inspect{"base", true});
      rank.run(Delete{"base"});
      rank.create();
      learn_on(rank, 1);
      rank.run(Delete{"a"});
      rank.run(Create{.tenant = "base", .frozen = true});
      EXPECT_EQ(std::get<InspectResult>(rank.run(Inspect{"base", true})),
                std::get<InspectResult>(before));
      rank.run(Create{.tenant = "a", .lora_json = R"({"r": 2, "target_modules": "all-linear"})"});
      rank.learn(1);
      rank.step({});
    });
  }
}

}  // namespace
}  // namespace twinkle::engine
