// Plans of random tensors, slices and bucket sizes: every byte once, from who has it; and how ranks
// that do not fit are told so.
#include "twinkle/sync/plan.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "twinkle/base/error_for_test.h"
#include "twinkle/base/random.h"
#include "twinkle/mesh/counting_comm.h"
#include "twinkle/mesh/thread_comm.h"
#include "twinkle/sync/checksum.h"

namespace twinkle::sync {
namespace {

class Draw {
 public:
  explicit Draw(uint64_t seed) : key_(key_of(seed, "plan")) {}
  int64_t from(int64_t least, int64_t most) {
    key_ = key_of(key_, 1);
    return least + static_cast<int64_t>(key_ % static_cast<uint64_t>(most - least + 1));
  }

 private:
  uint64_t key_;
};

// [0, count) cut at random into one part for each rank; some are empty.
std::vector<Slice> cut(Draw& draw, int64_t count, int ranks) {
  std::vector<int64_t> ends{0, count};
  for (int r = 1; r < ranks; ++r) ends.push_back(draw.from(0, count));
  std::ranges::sort(ends);
  std::vector<Slice> out;
  for (size_t r = 0; r + 1 < ends.size(); ++r) out.push_back({ends[r], ends[r + 1]});
  return out;
}

struct World {
  int num_senders, num_receivers;
  std::vector<Manifest> ranks;
  std::vector<int64_t> counts;  // elements of each tensor
};

// Each side holds a tensor whole on every rank, or in slices; a slice may be cut once more.
World drawn_world(Draw& draw) {
  World out{static_cast<int>(draw.from(1, 3)), static_cast<int>(draw.from(1, 3)), {}, {}};
  out.ranks.resize(static_cast<size_t>(out.num_senders + out.num_receivers));
  for (int64_t t = draw.from(1, 6); t > 0; --t) {
    const int64_t rows = draw.from(1, 9), columns = draw.from(1, 9), count = rows * columns;
    const bool halves = draw.from(0, 1) == 1;
    out.counts.push_back(count);
    Entry entry{.name = std::string("t").append(std::to_string(t)),
                .shape = {rows, columns},
                .dtype = halves ? "c10::BFloat16" : "float",
                .element_size = halves ? 2 : 4};
    const auto add = [&](int first, int count_of_ranks) {
      const bool whole = draw.from(0, 1) == 1;
      const std::vector<Slice> parts = cut(draw, count, count_of_ranks);
      for (int r = 0; r < count_of_ranks; ++r) {
        Slice mine = whole ? Slice{0, count} : parts[static_cast<size_t>(r)];
        entry.slices.clear();
        if (mine.last - mine.first > 1 && draw.from(0, 1) == 1) {
          entry.slices.push_back({mine.first, mine.first + 1});
          ++mine.first;
        }
        if (mine.last > mine.first) entry.slices.push_back(mine);
        out.ranks[static_cast<size_t>(first + r)].push_back(entry);
      }
    };
    add(0, out.num_senders);
    add(out.num_senders, out.num_receivers);
  }
  return out;
}

// The value of element `i` of a tensor, whoever holds it.
at::Tensor values_of(const Entry& entry) {
  std::vector<at::Tensor> parts;
  for (const Slice& s : entry.slices)
    parts.push_back(at::arange(s.first, s.last) % 251 + static_cast<int64_t>(entry.name.back()));
  const at::Tensor all = parts.empty() ? at::empty({0}) : at::cat(parts);
  return all.to(entry.element_size == 2 ? at::kBFloat16 : at::kFloat);
}

TEST(Plan, BringsEveryByteOnceInBucketsOfTheSizeThatWasAsked) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Draw draw(seed);
    const World world = drawn_world(draw);
    const int64_t bucket_bytes = draw.from(4, 200), alone_bytes = draw.from(1, 100);
    require_same_tensors(world.ranks, world.num_senders);
    const Plan p = plan(world.ranks, world.num_senders, {bucket_bytes, alone_bytes});
    int64_t wanted = 0;
    for (size_t r = static_cast<size_t>(world.num_senders); r < world.ranks.size(); ++r)
      for (const Entry& e : world.ranks[r]) wanted += e.num_elements() * e.element_size;
    EXPECT_EQ(p.num_bytes, wanted);
    auto comms = mesh::thread_comms(world.num_senders + world.num_receivers);
    std::vector<std::thread> threads;
    std::vector<int64_t> sent(world.ranks.size());
    for (size_t r = 0; r < world.ranks.size(); ++r) {
      threads.emplace_back([&, r] {
        mesh::CountingComm counted(*comms[r]);
        const bool sends = std::cmp_less(r, world.num_senders);
        std::vector<Local> locals(p.tensors.size());
        for (const Entry& e : world.ranks[r]) {
          for (size_t t = 0; t < p.tensors.size(); ++t) {
            if (p.tensors[t].name != e.name) continue;
            const at::Tensor values = values_of(e);
            locals[t] = {sends ? values : at::full_like(values, -1), e.slices};
          }
        }
        transfer(counted, p, locals, bucket_bytes);
        sent[r] = counted.sent().send;
        for (const Entry& e : world.ranks[r]) {
          for (size_t t = 0; t < p.tensors.size(); ++t) {
            if (p.tensors[t].name != e.name) continue;
            EXPECT_TRUE(at::equal(locals[t].values, values_of(e))) << seed << ' ' << e.name;
          }
        }
      });
    }
    for (std::thread& t : threads) t.join();
    int64_t all_sent = 0;
    for (const int64_t bytes : sent) all_sent += bytes;
    EXPECT_EQ(all_sent, wanted);
    for (const Bucket& b : p.buckets) {
      EXPECT_LE(b.num_bytes, bucket_bytes);
      for (const Piece& piece : b.pieces) {
        const int64_t size = p.tensors[piece.tensor].element_size;
        EXPECT_TRUE(b.pieces.size() == 1 || (piece.last - piece.first) * size < alone_bytes);
      }
    }
  }
}

Entry whole(const std::string& name, std::vector<int64_t> shape) {
  int64_t count = 1;
  for (const int64_t n : shape) count *= n;
  return {name, std::move(shape), "float", 4, {{0, count}}};
}

TEST(Plan, SharesTheWorkAmongSendersThatHoldTheSame) {
  Manifest all;
  for (const char* name : {"a", "b", "c", "d"}) all.push_back(whole(name, {8}));
  const Plan p = plan({all, all, all}, 2, {1000});
  ASSERT_EQ(p.buckets.size(), 2U);
  EXPECT_EQ(p.buckets[0].from, 0);
  EXPECT_EQ(p.buckets[1].from, 1);
  EXPECT_EQ(p.buckets[0].num_bytes, 64);
  EXPECT_EQ(p.buckets[1].num_bytes, 64);
}

std::vector<Local> locals_of(const Plan& p, const Manifest& manifest) {
  std::vector<Local> out;
  for (const Plan::Tensor& t : p.tensors)
    for (const Entry& e : manifest)
      if (e.name == t.name) out.push_back({values_of(e), e.slices});
  return out;
}

TEST(Plan, TellsByChecksumsOfWhatItWouldSendWhetherReceiversHaveIt) {
  Entry left = whole("a", {30}), right = left;
  left.slices = {{0, 11}}, right.slices = {{11, 30}};
  const Entry b = whole("b", {3});
  const std::vector<Manifest> ranks{{left, b}, {right, b}, {whole("a", {30}), b}, {right, b}};
  const Plan p = plan(ranks, 2, {.bucket_bytes = 40});
  std::vector<std::vector<Local>> locals;
  for (const Manifest& manifest : ranks) locals.push_back(locals_of(p, manifest));
  const auto equal = [&] {
    std::vector<std::vector<uint64_t>> sums;
    for (int r = 0; r < 4; ++r) sums.push_back(checksums(p, r, locals[static_cast<size_t>(r)]));
    return are_equal(p, sums);
  };
  EXPECT_TRUE(equal());
  for (size_t r = 0; r < 4; ++r) {
    for (Local& local : locals[r]) {
      const at::Tensor last = local.values[-1];
      const at::Tensor before = last.clone();
      last.add_(1);
      // Only one of the senders that hold the same sends.
      if (r >= 2) {
        EXPECT_FALSE(equal()) << r;
      }
      last.copy_(before);
    }
  }
  EXPECT_TRUE(equal());
}

TEST(Plan, OfRanksThatDoNotFitNamesTheFirstTensor) {
  const Entry a = whole("a", {2, 3}), b = whole("b", {4});
  const auto error = [](const Manifest& model, const Manifest& sampler) {
    return invalid_of([&] { require_same_tensors({model, sampler}, 1); });
  };
  EXPECT_EQ(error({a, b}, {a}),
            "sync: the model's tensor 'b' is not among the sampler's: both must be of one model");
  EXPECT_EQ(error({a}, {a, b}),
            "sync: the sampler's tensor 'b' is not among the model's: both must be of one model");
  EXPECT_EQ(error({a, b}, {a, whole("b", {5})}),
            "sync: tensor 'b' is float [4] in the model, float [5] in the sampler: both must be of "
            "one model and one dtype");
  Entry half = b;
  half.dtype = "c10::BFloat16";
  EXPECT_EQ(error({a, b}, {a, half}),
            "sync: tensor 'b' is float [4] in the model, c10::BFloat16 [4] in the sampler: both "
            "must be of one model and one dtype");
  EXPECT_EQ(invalid_of([&] { require_same_tensors({{a}, {whole("a", {6})}, {a}}, 2); }),
            "sync: tensor 'a' is float [6] on rank 1, on another rank of its group it is float "
            "[2, 3]");
  Entry part = a;
  part.slices = {{0, 2}, {3, 6}};
  EXPECT_EQ(invalid_of([&] { plan({{part}, {a}}, 1, {100}); }),
            "sync: no rank of the model holds element 2 of 'a'");
  EXPECT_EQ(invalid_of([&] { plan({{a}, {a}}, 1, {0}); }),
            "sync: bucket_bytes is 0, it must be at least 1");
}

}  // namespace
}  // namespace twinkle::sync
