// Operations' bytes.
#include "tests/fuzz/fuzz.h"
#include "twinkle/engine/protocol/operation.h"

namespace twinkle::fuzz {
namespace {

// One of every kind.
std::vector<std::string> operations_corpus() {
  const engine::Example sequence{.input_ids = {1, 2, 3},
                                 .labels = {2, 3, 4},
                                 .weights = {1, 0, 0.5},
                                 .extras = {{"advantages", {0.5, 1, -1}}}};
  const std::vector<engine::Operation> all = {
      engine::Create{.tenant = "a", .lora_json = R"({"r": 2})"},
      engine::Delete{.tenant = "a"},
      engine::Forward{.tenant = "a", .sequences = {sequence, sequence}},
      engine::ForwardBackward{.tenant = "a", .sequences = {sequence}},
      engine::Step{.tenant = "a"},
      engine::ClipGradNorm{.tenant = "a"},
      engine::ZeroGrad{.tenant = "a"},
      engine::Sample{.tenant = "a", .prompts = {{1, 2}, {3}}},
      engine::Save{.tenant = "a", .directory = "/x"},
      engine::Load{.tenant = "a", .directory = "/x"},
      engine::Inspect{.tenant = "a"},
      engine::Publish{.tenant = "a"},
      engine::Release{.tenant = "a", .version = 1},
      engine::Park{.tenant = "a"},
      engine::ReadWeights{.tenant = "a", .number = 1},
      engine::ReplaceWeights{.tenant = "a", .number = 1}};
  std::vector<std::string> out;
  for (const engine::Operation& operation : all) out.push_back(engine::to_bytes(operation));
  return out;
}

void read_operations(const std::string& bytes) {
  const engine::Operation operation = engine::from_bytes(bytes);
  engine::from_bytes(engine::to_bytes(operation));
}

}  // namespace

Reader operations() {
  std::vector<std::string> cases = operations_corpus();
  // Twenty thousand sequences of no fields.
  const std::string fields = raw<uint16_t>(1) + raw<uint64_t>(1) + "a" + raw<uint16_t>(2) +
                             raw<uint64_t>(20000 * 8) + std::string(20000 * 8, '\0');
  cases.push_back(cases[2].substr(0, 2) + raw<uint64_t>(fields.size()) + fields);
  return {.name = "operations",
          .corpus = std::move(cases),
          .words = {raw<uint64_t>(1000)},
          .read = read_operations};
}

}  // namespace twinkle::fuzz
