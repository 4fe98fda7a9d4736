// The bytes that ranks send each other for an operation, by what it asks for and where the base
// lies, against formulas.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "twinkle/engine/exactness/sent_for_test.h"
#include "twinkle/engine/group/command.h"
#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle::engine {
namespace {

// Every operation here has sequences of as many tokens, all of them scored.
constexpr int64_t kSentSequences = 8, kTokens = 5, kRows = kSentSequences * kTokens;
// The sizes of smallest_config().
constexpr int64_t kVocabulary = 41, kWidth = 16;
constexpr int64_t kHeadFloats = kVocabulary * kWidth;
constexpr int64_t kLayerFloats = 2 * 16 * 16 + 2 * 8 * 16 + 3 * 24 * 16;

constexpr int64_t kAllBytes = int64_t{1} << 40;
constexpr Mesh kSentMeshes[] = {{2, 1}, {4, 1}, {1, 2}, {1, 4}, {2, 2}, {1, 2, kAllBytes}};

Create adapter() {
  return {.tenant = "a", .lora_json = R"({"r": 4, "target_modules": "all-linear"})"};
}

template <class Op>
Op with_sequences(Op op) {
  op.tenant = "a";
  for (uint64_t i = 0; i < kSentSequences; ++i)
    op.sequences.push_back(drawn(i, kTokens, kVocabulary));
  return op;
}

ForwardBackward with_loss(const char* loss, const char* options = "") {
  auto out = with_sequences(ForwardBackward{.loss = loss, .loss_options = options});
  for (Example& s : out.sequences) {
    if (out.loss == "DPOLoss") s.extras["ref_sums"] = {-20.0f};
    if (out.loss == "GSPOLoss") s.extras["advantages"].assign(kTokens, 0.7f);
  }
  return out;
}

// Bytes that a rank sends for one operation: to all ranks, and to those that share its base.
struct SentFor {
  int64_t data = 0, base = 0;
};

struct SentByAll {
  std::vector<SentFor> of_rank;
  int64_t parameters = 0;  // parameters of the adapter
  int64_t num_passes = 0;

  int64_t data() const {
    return std::accumulate(of_rank.begin(), of_rank.end(), int64_t{0},
                           [](int64_t sum, const SentFor& sent) { return sum + sent.data; });
  }
};

// The part of a rank, as large as every other's.
Operation own_part(const Operation& whole, int rank, int size) {
  const auto r = static_cast<size_t>(rank), share = kSentSequences / static_cast<size_t>(size);
  return sliced(whole, {r * share, (r + 1) * share});
}

// Each rank's part of a second run of the operation: what the first gathers ahead is there.
SentByAll sent_for(const Mesh& of, const Operation& operation, int64_t token_budget) {
  const model::TinyModel model(smallest_config());
  const EngineOptions options{.model = {.path = model.path(), .mixed_precision = "no"},
                              .scheduling = {.token_budget = token_budget}};
  SentByAll out{.of_rank = std::vector<SentFor>(static_cast<size_t>(of.size()))};
  on_counted_ranks(of, options, [&](Engine& engine, int rank, const Channels& sent) {
    engine.run<Done>(adapter());
    const Operation mine = own_part(operation, rank, of.size());
    engine.submit(mine).get();
    const SentFor before{sent.data.all_to_all, sent.base.all_to_all};
    const int64_t passes_before = engine.num_passes();
    engine.submit(mine).get();
    out.of_rank[static_cast<size_t>(rank)] = {sent.data.all_to_all - before.data,
                                              sent.base.all_to_all - before.base};
    const int64_t parameters = engine.run<InspectResult>(Inspect{"a"}).num_parameters;
    if (rank > 0) return;
    out.num_passes = engine.num_passes() - passes_before;
    out.parameters = parameters;
  });
  return out;
}

// An operation, and what one rank tells each other of it: floats of all rows, and passes of each
// kind, of each of which every rank tells whether its part is finite, and of one that learns
// whether the sums are, too.
struct Case {
  const char* what;
  Operation operation;
  int64_t floats;
  int64_t num_forwards, num_learning;

  // Sequences of each rank: so many that the operation takes as many batches as it learns in.
  int64_t token_budget(int64_t num_ranks) const {
    return kRows / std::max<int64_t>(1, num_learning) / num_ranks;
  }
};

std::vector<Case> cases() {
  const int64_t logits = kRows * kVocabulary, embeddings = kSentSequences * kWidth;
  ForwardBackward with_logits = with_loss("CrossEntropyLoss");
  with_logits.logits = true;
  return {
      {"scores", with_sequences(Forward{}), kRows, 1, 0},
      {"entropies", with_sequences(Forward{.entropy = true}), 2 * kRows, 1, 0},
      {"logits", with_sequences(Forward{.logits = true}), kRows + logits, 1, 0},
      {"embeddings", with_sequences(Forward{.embedding = true}), kRows + embeddings, 1, 0},
      {"a loss of rows", with_loss("CrossEntropyLoss"), kRows, 0, 1},
      {"logits of what learns", with_logits, kRows + logits, 0, 1},
      // Rows are told twice: for the loss, of which each rank needs all, and as outputs.
      {"a loss of the whole", with_loss("DPOLoss"), 2 * kRows, 0, 1},
      {"one with entropies", with_loss("GSPOLoss", R"({"entropy_coef": 0.1})"), 4 * kRows, 0, 1},
      {"one of two batches", with_loss("DPOLoss"), 2 * kRows, 2, 2},
  };
}

TEST(Sent, OfAnAdaptersOperationsAreTheBytesOfTheFormulasOnEveryMesh) {
  for (const Case& of : cases()) {
    for (const Mesh& mesh : kSentMeshes) {
      SCOPED_TRACE(std::string(of.what) + ", " + testing::PrintToString(mesh));
      const int64_t n = mesh.size(), num_passes = of.num_forwards + of.num_learning;
      const SentByAll sent = sent_for(mesh, of.operation, of.token_budget(n));
      EXPECT_EQ(sent.num_passes, num_passes);
      const int64_t gradients = of.num_learning > 0 ? sent.parameters * kSentSequences / n : 0;
      EXPECT_EQ(sent.data(),
                4 * (n - 1) * (gradients + of.floats + n * (num_passes + of.num_learning)));
      // Each use of a piece: a rank's part, in lines of 64 bytes, to each other one. A head that is
      // the embedding is used twice in a pass, a layer twice where it learns. What stays gathered
      // is there since the first run.
      const auto part = [&](int64_t floats) {
        return (4 * floats + 64 * mesh.fsdp - 1) / (64 * mesh.fsdp) * 64;
      };
      const int64_t of_layer = part(kLayerFloats) * (num_passes + of.num_learning);
      const int64_t of_base = 2 * num_passes * part(kHeadFloats) + of_layer;
      for (const SentFor& rank : sent.of_rank)
        EXPECT_EQ(rank.base, mesh.gathered_bytes > 0 ? 0 : (mesh.fsdp - 1) * of_base);
    }
  }
}

int64_t all(const mesh::SentBytes& sent) { return sent.all_to_all + sent.broadcast + sent.send; }

// An inspection gives every rank all that has an owner, by its owner; the leader tells its result.
TEST(Sent, OfAnInspectionAreTheBytesOfTheFormulaOnEveryMesh) {
  const model::TinyModel model(smallest_config());
  for (const Mesh& mesh : kSentMeshes) {
    SCOPED_TRACE(testing::PrintToString(mesh));
    const int64_t n = mesh.size();
    std::vector<int64_t> of_data(static_cast<size_t>(n));
    int64_t parameters = 0;
    on_counted_ranks(mesh, {.model = {.path = model.path(), .mixed_precision = "no"}},
                     [&](Engine& engine, int rank, const Channels& sent) {
                       const Operation learn =
                           own_part(with_loss("CrossEntropyLoss"), rank, mesh.size());
                       engine.run<Done>(adapter());
                       engine.submit(learn).get();
                       engine.run<StepResult>(Step{.tenant = "a"});
                       engine.submit(learn).get();
                       const mesh::SentBytes door = sent.door, control = sent.control;
                       const int64_t data = all(sent.data), base = all(sent.base);
                       const auto result = engine.run<InspectResult>(Inspect{"a", true});
                       of_data[static_cast<size_t>(rank)] = all(sent.data) - data;
                       EXPECT_EQ(all(sent.base), base);
                       EXPECT_EQ(all(sent.door) - all(door), (n - 1) * kFrame);
                       EXPECT_EQ(sent.control.all_to_all - control.all_to_all, (n - 1) * kFrame);
                       if (rank > 0) return;
                       Command news;
                       news.told.push_back({.result = to_bytes(Result(result))});
                       EXPECT_EQ(sent.control.broadcast - control.broadcast,
                                 (n - 1) * (kFrame + framed(std::ssize(to_bytes(news)))));
                       parameters = result.num_parameters;
                     });
    // The gradient and two moments; the values are on every rank.
    EXPECT_EQ(std::accumulate(of_data.begin(), of_data.end(), int64_t{0}),
              3 * 4 * (n - 1) * parameters);
  }
}

// Each rank writes what it has: they tell each other that they have done it.
TEST(Sent, OfASaveAreTheBytesOfTheFormulaOnEveryMesh) {
  const model::TinyModel model(smallest_config());
  const ScratchDir scratch;
  for (const Mesh& mesh : kSentMeshes) {
    SCOPED_TRACE(testing::PrintToString(mesh));
    const int64_t n = mesh.size();
    on_counted_ranks(
        mesh, {.model = {.path = model.path(), .mixed_precision = "no"}},
        [&](Engine& engine, int rank, const Channels& sent) {
          const Operation learn = own_part(with_loss("CrossEntropyLoss"), rank, mesh.size());
          engine.run<Done>(adapter());
          engine.submit(learn).get();
          engine.run<StepResult>(Step{.tenant = "a"});
          engine.submit(learn).get();
          const mesh::SentBytes door = sent.door, control = sent.control;
          const int64_t data = all(sent.data), base = all(sent.base), saves = all(sent.saves);
          const Operation save = Save{
              .tenant = "a", .directory = (scratch.path() / "saved").string(), .optimizer = true};
          engine.submit(save).get();
          EXPECT_EQ(all(sent.data), data);
          EXPECT_EQ(all(sent.base), base);
          EXPECT_EQ(all(sent.door) - all(door), (n - 1) * framed(std::ssize(to_bytes(save))));
          EXPECT_EQ(all(sent.saves) - saves, (n - 1) * kFrame);
          // To begin with, to write, and news of the end.
          EXPECT_EQ(sent.control.broadcast - control.broadcast,
                    rank == 0 ? (n - 1) * 3 * kFrame : 0);
          EXPECT_EQ(sent.control.all_to_all - control.all_to_all, (n - 1) * 2 * kFrame);
        });
  }
}

// Bytes that a rank sends over each channel; commands: only the leader.
struct SentOver {
  int64_t door = 0, commands = 0, answers = 0, data = 0, saves = 0, base = 0;
  bool operator==(const SentOver&) const = default;
};

void PrintTo(const SentOver& sent, std::ostream* out) {
  *out << "door " << sent.door << " commands " << sent.commands << " answers " << sent.answers
       << " data " << sent.data << " saves " << sent.saves << " base " << sent.base;
}

SentOver now(const Channels& sent) {
  return {all(sent.door), sent.control.broadcast, sent.control.all_to_all,
          all(sent.data), all(sent.saves),        all(sent.base)};
}

SentOver operator-(const SentOver& a, const SentOver& b) {
  return {a.door - b.door, a.commands - b.commands, a.answers - b.answers,
          a.data - b.data, a.saves - b.saves,       a.base - b.base};
}

// One rank of a mesh, and what it sends for an operation.
struct Trainer {
  Engine& engine;
  const int rank;
  const Mesh& mesh;
  const Channels& sent;

  int64_t others() const { return mesh.size() - 1; }
  // To each other rank what was submitted; to the followers so many commands and the `news` of the
  // end, and their answers.
  SentOver told(const Operation& operation, int64_t num_commands, int64_t news = 0) const {
    return {.door = others() * framed(std::ssize(to_bytes(operation))),
            .commands = rank > 0 ? 0 : others() * (num_commands * kFrame + framed(news)),
            .answers = others() * num_commands * kFrame};
  }
  Result run(const Operation& operation, const std::function<SentOver(const Result&)>& formula) {
    const SentOver before = now(sent);
    Result out = engine.submit(operation).get();
    EXPECT_EQ(now(sent) - before, formula(out))
        << std::visit([](const auto& op) { return op.kName; }, operation) << " of rank " << rank
        << ", " << testing::PrintToString(mesh);
    return out;
  }
  void learn() const {
    engine.submit(own_part(with_loss("CrossEntropyLoss"), rank, mesh.size())).get();
  }
};

// The other ranks learn what each has found in its files, and how the making of the engine went.
TEST(Sent, OfWhatIsReadFromFoldersAreTheBytesOfTheFormulaOnEveryMesh) {
  const model::TinyModel model(smallest_config());
  const ScratchDir scratch;
  for (const Mesh& mesh : kSentMeshes) {
    const std::string folder = (scratch.path() / std::to_string(&mesh - kSentMeshes)).string();
    on_counted_ranks(
        mesh, {.model = {.path = model.path(), .mixed_precision = "no"}},
        [&](Engine& engine, int r, const Channels& sent) {
          Trainer rank{engine, r, mesh, sent};
          const int64_t of_files = rank.others() * kFrame;
          EXPECT_EQ(all(sent.data), of_files);
          engine.run<Done>(adapter());
          rank.learn();
          engine.run<StepResult>(Step{.tenant = "a"});
          engine.submit(Save{.tenant = "a", .directory = folder, .optimizer = true}).get();
          const std::vector<Operation> reads{
              Load{.tenant = "a", .directory = folder, .optimizer = true},
              Create{.tenant = "b", .directory = folder}};
          for (const Operation& operation : reads) {
            rank.run(operation, [&](const Result&) {
              SentOver out = rank.told(operation, 1);
              out.data = of_files;
              return out;
            });
          }
        });
  }
}

// ---- all weights

// A model of one layer, whose weights all ranks have equal runs of, in whole lines.
constexpr int64_t kTrainedVocabulary = 48, kNormFloats = 3 * kWidth;
constexpr int64_t kTrainedHeadFloats = kTrainedVocabulary * kWidth;
constexpr int64_t kMatrixFloats = kTrainedHeadFloats + kLayerFloats;
constexpr int64_t kTrainedFloats = kMatrixFloats + kNormFloats;

void life_of_all_weights(Trainer& rank, const std::string& folder) {
  const Mesh& mesh = rank.mesh;
  const int64_t n = mesh.size(), others = rank.others();
  // Each piece once, of which a rank has a part, but the head, which is the embedding and last,
  // too, twice; nothing of what stays.
  const int64_t floats = mesh.gathered_bytes > 0 ? 0 : kMatrixFloats + kTrainedHeadFloats;
  const int64_t pieces = 4 * floats * (mesh.fsdp - 1) / mesh.fsdp;
  // New values, to those that hold them: all ranks, or those with the same part.
  const int64_t by_all = mesh.gathered_bytes > 0 ? kTrainedFloats : kNormFloats;
  const int64_t values =
      4 * (kTrainedFloats - by_all) / n * (mesh.dp - 1) + 4 * by_all / n * others;

  rank.engine.run<Done>(Create{.tenant = "a"});
  rank.learn();
  rank.engine.run<StepResult>(Step{.tenant = "a"});
  rank.learn();
  const Inspect inspect{"a", true};
  rank.run(inspect, [&](const Result& result) {
    Command news;
    news.told.push_back({.result = to_bytes(result)});
    SentOver out = rank.told(inspect, 1, std::ssize(to_bytes(news)));
    out.data = 4 * 4 * kTrainedFloats / n * others;  // values, gradients, two moments
    return out;
  });
  Save save{.tenant = "a", .directory = folder, .optimizer = true, .gradients = true};
  rank.run(save, [&](const Result&) {
    SentOver out = rank.told(save, 2);
    out.saves = others * kFrame;
    out.base = pieces;
    return out;
  });
  save.optimizer = save.gradients = false;  // one rank writes
  save.directory += "-alone";
  rank.run(save, [&](const Result&) {
    SentOver out = rank.told(save, 2);
    out.base = pieces;
    return out;
  });
  const auto of_values = [&](const Operation& operation) {
    return [&](const Result&) {
      SentOver out = rank.told(operation, 1);
      out.data = values + others * kFrame;  // each rank's findings in its files
      return out;
    };
  };
  const Operation load = Load{.tenant = "a", .directory = folder, .optimizer = true};
  rank.run(load, of_values(load));
  const Operation remove = Delete{"a"};
  rank.run(remove, of_values(remove));
}

TEST(Sent, OfAllWeightsInspectionsSavesAndLoadsAreTheBytesOfTheFormulasOnEveryMesh) {
  JsonObject config = smallest_config();
  config["vocab_size"] = kTrainedVocabulary;
  const model::TinyModel model(config);
  const ScratchDir scratch;
  for (const Mesh& mesh : kSentMeshes) {
    const std::string folder = (scratch.path() / std::to_string(&mesh - kSentMeshes)).string();
    on_counted_ranks(mesh, {.model = {.path = model.path(), .mixed_precision = "no"}},
                     [&](Engine& engine, int r, const Channels& sent) {
                       Trainer rank{engine, r, mesh, sent};
                       life_of_all_weights(rank, folder);
                     });
  }
}

}  // namespace
}  // namespace twinkle::engine
