// How a pass is cut over ranks. That its results are those of one rank: the tests beside this one.
#include "twinkle/engine/training/split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>

#include "twinkle/engine/training/training_for_test.h"
#include "twinkle/mesh/thread_comm.h"

namespace twinkle::engine {
namespace {

// All sequences of the pieces, in their order: how many tokens, and which rank has it.
struct Placed {
  int64_t tokens;
  int rank;
  bool operator==(const Placed&) const = default;
};

class CutOfAPass : public TrainingOnADecoder {
 protected:
  // A piece with sequences of such lengths. Only their number of tokens counts here.
  OpSlice piece(const char* tenant, const std::vector<int64_t>& lengths) {
    ForwardBackward op{.tenant = tenant};
    for (const int64_t n : lengths) {
      const auto size = static_cast<size_t>(n);
      op.sequences.push_back({std::vector<int32_t>(size, 1), std::vector<int32_t>(size, 2)});
    }
    operations_.emplace_back(std::move(op));
    ops_.emplace_back(std::ssize(ops_), *tenants_.at(tenant), operations_.back());
    return {&ops_.back(), 0, lengths.size(), true};
  }

  static std::vector<Placed> placed(const std::vector<OpSlice>& pieces, const Split::Cut& cut) {
    std::vector<Placed> out;
    for (size_t i = 0; i < pieces.size(); ++i) {
      for (size_t s = pieces[i].first; s < pieces[i].last; ++s) {
        const auto has = [&](const std::vector<OpSlice>& theirs) {
          return theirs[i].first <= s && s < theirs[i].last;
        };
        EXPECT_EQ(std::ranges::count_if(cut, has), 1) << "sequence " << s << " of piece " << i;
        const auto rank = std::ranges::find_if(cut, has) - cut.begin();
        out.push_back({std::ssize(pieces[i].op->sequences()[s].input_ids), static_cast<int>(rank)});
      }
    }
    return out;
  }

  std::list<Operation> operations_;
  std::list<TrainingOp> ops_;
};

// A pass takes as long as its slowest rank.
TEST_F(CutOfAPass, NoRankHasALongestSequenceMoreThanAnEqualShareOfTheTokens) {
  std::mt19937_64 random(17);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    const auto n = static_cast<int>(2 + below(7));
    const int64_t longest = 1 + below(round % 2 == 0 ? 8 : 250);
    std::vector<OpSlice> pieces;
    for (const char* tenant : {"a", "b"}) {
      std::vector<int64_t> lengths(static_cast<size_t>(1 + below(30)));
      for (int64_t& length : lengths) length = 1 + below(longest);
      pieces.push_back(piece(tenant, lengths));
    }
    const auto comms = mesh::thread_comms(n);
    const Split::Cut cut = Split(*comms[0]).cut(pieces);
    ASSERT_EQ(std::ssize(cut), n);
    std::vector<int64_t> held(static_cast<size_t>(n));
    int64_t all = 0, most = 0;
    int before = 0;
    for (const auto& [tokens, rank] : placed(pieces, cut)) {
      EXPECT_LE(before, rank) << "sequences of one rank follow one another";
      before = rank;
      held[static_cast<size_t>(rank)] += tokens;
      all += tokens, most = std::max(most, tokens);
    }
    for (const int64_t tokens : held) {
      EXPECT_LE(tokens * n, all + most * n);
      EXPECT_GE(tokens * n, all - most * n);
    }
    for (const auto& comm : comms)  // nothing is agreed: all come to the same
      EXPECT_EQ(placed(pieces, Split(*comm).cut(pieces)), placed(pieces, cut));
  }
}

}  // namespace
}  // namespace twinkle::engine
