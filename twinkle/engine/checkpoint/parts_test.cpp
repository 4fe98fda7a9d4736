// Training states that several ranks have written, each its part, and any number reads.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <sstream>
#include <tuple>

#include "twinkle/base/error_for_test.h"
#include "twinkle/engine/checkpoint/training_state.h"
#include "twinkle/engine/group/groups_for_test.h"
#include "twinkle/io/atomic.h"
#include "twinkle/io/safetensors.h"

namespace twinkle::engine {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOfParts =
    R"({"r": 4, "lora_dropout": 0.2, "target_modules": ["q_proj", "v_proj", "down_proj"]})";

ForwardBackward parts_batch(uint64_t seed) {
  ForwardBackward out{.tenant = "a"};
  for (uint64_t i = 0; i < 6; ++i) out.sequences.push_back(drawn(10 * seed + i, 3 + i, 41));
  return out;
}

// The rest of a step, a step, and a part of the next one.
void train_part(Engine& engine, uint64_t stage, const Part& part) {
  engine.run<ForwardResult>(sliced(parts_batch(2 * stage), part));
  engine.run<StepResult>(Step{.tenant = "a", .options = R"({"lr": 0.02})", .max_grad_norm = 0.5});
  engine.run<ForwardResult>(sliced(parts_batch(2 * stage + 1), part));
}

std::string text(const State& s) {
  std::ostringstream out;
  std::apply([&](const auto&... part) { ((out << part << ' '), ...); }, s);
  return out.str();
}

Part part_of_rank(int rank, int size) {
  const auto at = [&](int r) { return 6 * static_cast<size_t>(r) / static_cast<size_t>(size); };
  return {at(rank), at(rank + 1)};
}

Save save_to(const fs::path& folder) {
  return {.tenant = "a", .directory = folder.string(), .optimizer = true, .gradients = true};
}

// All that a save's folder has, by its name: files as they are; of a training state, which several
// ranks write in parts, its fields without their number, and each tensor, whoever has written it.
std::map<std::string, std::string> contents_of(const fs::path& folder) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const fs::path& file = entry.path();
    const std::string name = file.filename().string();
    if (name == kTrainingFields) {
      JsonObject fields = read_json(file).as_object();
      EXPECT_EQ(fields.erase("num_ranks"), 1u);
      out[name] = boost::json::serialize(fields);
    } else if (name.starts_with("training-") || name == kTrainingTensors) {
      const SafetensorsFile part(file);
      for (const StoredTensor& tensor : part.tensors()) {
        const TensorView view = tensor.load();
        const auto* bytes = reinterpret_cast<const char*>(view.bytes.data());
        const bool is_new = out.emplace(tensor.name, std::string(bytes, view.bytes.size())).second;
        EXPECT_TRUE(is_new) << tensor.name << " is twice in " << folder;
      }
    } else if (name != "training.index.json") {
      out[name] = read_text(file);
    }
  }
  return out;
}

void expect_same_contents(const fs::path& folder, const fs::path& whole) {
  const std::map<std::string, std::string> want = contents_of(whole), got = contents_of(folder);
  EXPECT_TRUE(want.contains("adapter_model.safetensors") && want.contains("adapter_config.json"));
  EXPECT_GT(want.size(), 12u) << "moments and gradients";
  EXPECT_EQ(got.size(), want.size());
  for (const auto& [name, bytes] : want)
    EXPECT_TRUE(got.contains(name) && got.at(name) == bytes) << name;
}

TEST(Parts, OfOneMeshAreLoadedByAnyOtherAndTrainingGoesOnAsOnOneRank) {
  const model::TinyModel model(smallest_config());
  const ScratchDir scratch;
  const EngineOptions options{.model = {.path = model.path()}};
  Engine one(options);
  one.run<Done>(Create{.tenant = "a", .lora_json = kOfParts, .seed = 5});
  fs::path saved;
  uint64_t stage = 0;
  for (const Mesh of : {Mesh{2, 1}, Mesh{1, 1}, Mesh{4, 1}, Mesh{2, 2}, Mesh{1, 1}, Mesh{1, 4},
                        Mesh{8, 1}, Mesh{3, 1}, Mesh{1, 1}, Mesh{1, 3}, Mesh{2, 1}}) {
    const int size = of.size();
    SCOPED_TRACE(std::to_string(of.dp) + " by " + std::to_string(of.fsdp));
    const fs::path folder = scratch / std::to_string(stage), whole = scratch / "one";
    train_part(one, stage, {0, 6});
    one.run<SaveResult>(save_to(whole));
    const std::string expected = text(state_of(one, "a"));
    const auto life = [&](Engine& engine, int rank) {
      engine.run<Done>(Create{.tenant = "a", .lora_json = kOfParts, .seed = 5});
      if (!saved.empty())
        engine.run<LoadResult>(
            Load{.tenant = "a", .directory = saved.string(), .optimizer = true, .exact = true});
      train_part(engine, stage, part_of_rank(rank, size));
      engine.run<SaveResult>(save_to(folder));
      EXPECT_EQ(text(state_of(engine, "a")), expected) << "rank " << rank;
    };
    if (size == 1) {
      Engine engine(options);
      life(engine, 0);
    } else {
      on_ranks(of, options, [&](Engine& engine, int rank, const auto&) { life(engine, rank); });
    }
    expect_same_contents(folder, whole);
    EXPECT_EQ(fs::exists(folder / "training.safetensors"), size == 1);
    for (int rank = 0; size > 1 && rank < size; ++rank)
      EXPECT_TRUE(fs::exists(folder / training_part(rank, size)));
    saved = folder;
    ++stage;
  }
}

TEST(Parts, ThatAreMissingOrDamagedAreNamedAndChangeNothing) {
  const model::TinyModel model(smallest_config());
  const ScratchDir scratch;
  const EngineOptions options{.model = {.path = model.path()}};
  const fs::path folder = scratch / "saved", later = scratch / "later";
  on_ranks({2}, options, [&](Engine& engine, int rank, const auto&) {
    engine.run<Done>(Create{.tenant = "a", .lora_json = kOfParts});
    train_part(engine, 1, part_of_rank(rank, 2));
    engine.run<SaveResult>(save_to(folder));
    train_part(engine, 2, part_of_rank(rank, 2));
    engine.run<SaveResult>(save_to(later));
  });
  Engine engine(options);
  engine.run<Done>(Create{.tenant = "a", .lora_json = kOfParts, .seed = 9});
  const State before = state_of(engine, "a");
  const auto refusal = [&] {
    const std::string why = error_of([&] {
      engine.run<LoadResult>(Load{.tenant = "a", .directory = folder.string(), .optimizer = true});
    });
    EXPECT_EQ(state_of(engine, "a"), before);
    return why;
  };
  const fs::path index = folder / "training.index.json", part = folder / training_part(1, 2);
  const std::string all = read_text(index);
  const auto write = [](const fs::path& file, const std::string& bytes) {
    write_file_atomically(file, bytes);
  };
  fs::rename(part, folder / "elsewhere");
  EXPECT_NE(
      refusal().find("names the shard 'training-00002-of-00002.safetensors', but there is no"),
      std::string::npos);
  fs::rename(folder / "elsewhere", part);
  const std::string own = read_text(part);
  write(part, read_text(later / training_part(1, 2)));
  EXPECT_NE(refusal().find(part.string() + " is of another save than training.index.json"),
            std::string::npos);
  write(part, own);
  const size_t at = all.find(".exp_avg\"");
  write(index, all.substr(0, at) + ".other\"" + all.substr(at + 9));
  EXPECT_NE(refusal().find("but it is not"), std::string::npos);
  fs::remove(index);
  EXPECT_NE(refusal().find("training.index.json"), std::string::npos);
  write(index, all);
  EXPECT_NO_THROW(
      engine.run<LoadResult>(Load{.tenant = "a", .directory = folder.string(), .optimizer = true}));
}

}  // namespace
}  // namespace twinkle::engine
