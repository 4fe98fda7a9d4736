// trainer_state.json and training.safetensors: the first is a case's bytes up to the first zero,
// the second what follows. A case that ends in kHole is continued by a gigabyte that takes no room
// on disk.
#include "twinkle/engine/checkpoint/training_state.h"

#include <algorithm>

#include "tests/fuzz/fuzz.h"

namespace twinkle::fuzz {
namespace {

constexpr std::string_view kHole = "\1hole";
constexpr uint64_t kHoleBytes = uint64_t{1} << 30;

struct Tensor {
  std::string name, shape;
  std::vector<float> values;
};

std::string state_file(const std::vector<Tensor>& tensors) {
  std::string header, data;
  for (const Tensor& tensor : tensors) {
    const std::string begin = std::to_string(data.size());
    for (const float value : tensor.values) data += raw(value);
    header += (header.empty() ? "{\"" : ",\"") + tensor.name + R"(":{"dtype":"F32","shape":)" +
              tensor.shape + ",\"data_offsets\":[" + begin + "," + std::to_string(data.size()) +
              "]}";
  }
  header += header.empty() ? "{}" : "}";
  return raw<uint64_t>(header.size()) + header + data;
}

// trainer_state.json with these fields of `training`, and the zero behind it.
std::string fields(const std::string& training, int version = 5) {
  return R"({"checkpoint_version": )" + std::to_string(version) +
         R"(, "num_ranks": 1, "arithmetic": {"threads": 2}, "training": {)" + training +
         R"(}, "extra": "{\"epoch\": 1}"})" + '\0';
}

std::vector<std::string> training_state_corpus() {
  const std::string none = R"("seed": 18446744073709551615, "calls": 0, "pending": 0, )"
                           R"("num_tokens": 0, "clipped": false, "published": 0)";
  const std::string some = R"("seed": 7, "calls": 3, "pending": 1, "num_tokens": 15.5, )"
                           R"("clipped": false, "published": 2)";
  const std::string adam = R"(, "optimizer": {"optimizer": "AdamW", "steps": {"a": 3}}, )"
                           R"("optimizer_options": {"lr": 1e-3, "betas": [0.9, 0.99]})";
  const std::string sgd = R"(, "optimizer": {"optimizer": "SGD", "steps": {"b": 1}}, )"
                          R"("optimizer_options": {"lr": 0.1, "momentum": 0.9})";
  const Tensor gradient{"grad/a", "[2,3]", {1, 2, 3, 4, 5, 6}};
  const Tensor first{"optimizer/a.exp_avg", "[2,3]", {1, -2, 3, 4, 5, 6}};
  const Tensor second{"optimizer/a.exp_avg_sq", "[2,3]", {1, 2, 3, 4, 5, 6}};
  const Tensor negative{second.name, "[2,3]", {-1, 2, 3, 4, 5, 6}};
  const Tensor momentum{"optimizer/b.momentum_buffer", "[4]", {1, 2, 3, 4}};
  const Tensor master_a{"master/a", "[2,3]", {1, 2, 3, 4, 5, 6}};
  const Tensor master_b{"master/b", "[4]", {1, 2, 3, 4}};
  const std::string junk = R"({"junk":{"dtype":"F32","shape":[268435456],)"
                           R"("data_offsets":[0,1073741824]}})";
  return {
      fields(none) + state_file({}), fields(some + adam) + state_file({first, second, gradient}),
      fields(some) + state_file({gradient, {"grad/head", "[4]", {1, 2, 3, 4}}}),
      fields(some, 4) + state_file({{"grad/0", "[2,3]", {1, 2, 3, 4, 5, 6}}}),
      fields(none + sgd) + state_file({momentum, master_a, master_b}),
      // These were accepted once: counts that no training leaves, gradients that are not there,
      // tensors that are nobody's, a second moment below zero; and a few bytes that are a gigabyte.
      fields(R"("seed": 1, "calls": 9223372036854775807, "pending": -1, "num_tokens": -3e300, )"
             R"("clipped": false, "published": 0)") +
          state_file({gradient}),
      fields(R"("seed": 1, "calls": 1, "pending": 9223372036854775807, )"
             R"("num_tokens": 1e308, "clipped": false, "published": 0)") +
          state_file({gradient}),
      fields(R"("seed": 1, "calls": 1, "pending": 0, "num_tokens": 0, "clipped": false, )"
             R"("published": -1)") +
          state_file({}),
      fields(some) + state_file({}),
      fields(some) + state_file({gradient, {"junk", "[1]", {1}}, {"grad/999", "[1]", {1}}}),
      fields(none + adam) + state_file({first, negative}),
      fields(none) + raw<uint64_t>(junk.size()) + junk + std::string(kHole)};
}

void read_training_state(const std::string& bytes) {
  const size_t end = std::min(bytes.find('\0'), bytes.size());
  const std::filesystem::path state = file_of(bytes.substr(0, end), engine::kTrainingFields);
  std::string rest = bytes.substr(std::min(end + 1, bytes.size()));
  const bool hole = rest.ends_with(kHole);
  if (hole) rest.resize(rest.size() - kHole.size());
  const std::filesystem::path tensors = file_of(rest, engine::kTrainingTensors);
  if (hole) std::filesystem::resize_file(tensors, rest.size() + kHoleBytes);
  const engine::TrainingShape shape{
      .params = {{"a", {2, 3}}, {"b", {4}}},
      .gradients = {{"a", {2, 3}}, {"b", {4}}, {"head", {4}}},
      .masters = bytes.find("master/") != std::string::npos};  // a tenant of all weights
  engine::read_training(state.parent_path(), shape, "t", nullptr);
}

}  // namespace

Reader training_state() {
  return {.name = "training_state",
          .corpus = training_state_corpus(),
          .words = {"\"pending\": ", "\"steps\": {\"a\": ", "\"optimizer\": \"SGD\"", "\"lr\": ",
                    "\"momentum\": ", "\"clipped\": true", "grad/", "optimizer/b.exp_avg_sq",
                    "master/b", "\"dtype\":\"BF16\"", raw<uint32_t>(0x7F800000),
                    raw<uint32_t>(0x7FC00000), std::string(kHole), "[[[["},
          .read = read_training_state};
}

}  // namespace twinkle::fuzz
