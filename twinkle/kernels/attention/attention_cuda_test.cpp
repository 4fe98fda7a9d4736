#include "twinkle/kernels/attention/attention.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "twinkle/base/error_for_test.h"
#include "twinkle/kernels/cuda/device_for_test.h"
#include "twinkle/kernels/cuda/launch.h"

namespace twinkle::kernels {
namespace {

struct Shape {
  int64_t heads, key_heads, dim, window;
};
// Groups of one, of three, of more heads than a block has; windows within a page and across chunks.
const std::vector<Shape> kShapes{{3, 1, 64, 0}, {4, 4, 128, 0}, {9, 1, 40, 50}, {2, 2, 64, 300}};

// Three sequences, whose pages lie anywhere. What no row may see is NaN on the device.
struct Decoding {
  PagedKeys host, device;
  PagedRows rows;
  at::Tensor q;
  AttentionOptions options;

  template <class On>
  Decoding(const Shape& s, at::ScalarType type, const On& on)
      : host(make_pages(17, s.key_heads, s.dim, type)),
        options{.scale = 1 / std::sqrt(static_cast<double>(s.dim)), .window = s.window} {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    device = {on(at::full_like(host.k, nan)), on(at::full_like(host.v, nan))};
    const std::vector<int64_t> lengths{1, 130, 600};
    const at::Tensor order = at::randperm(17).to(at::kInt);
    rows.block_tables = at::full({3, 10}, -1, at::kInt);
    std::vector<at::Tensor> sequences, positions;
    for (int64_t s = 0, page = 0; s < 3; ++s) {
      const int64_t pages = (lengths[s] + 63) / 64;
      rows.block_tables[s].slice(0, 0, pages).copy_(order.slice(0, page, page + pages));
      page += pages;
      sequences.push_back(at::full({lengths[s]}, s, at::kLong));
      positions.push_back(at::arange(lengths[s]));
    }
    rows.sequences = at::cat(sequences), rows.positions = at::cat(positions);
    const at::Tensor k = at::randn({731, s.key_heads, s.dim}).to(type), v = at::randn_like(k);
    write_pages(host, k, v, rows);
    cuda::write_pages(device, on(k), on(v), rows);
    rows.sequences = at::tensor({2, 0, 1, 1, 2}, at::kInt);
    rows.positions = at::tensor({599, 0, 129, 63, 320}, at::kInt);
    q = at::randn({5, s.heads, s.dim}).to(type);
  }

  PagedRows only(int64_t row) const {
    return {rows.block_tables, rows.sequences.slice(0, row, row + 1),
            rows.positions.slice(0, row, row + 1)};
  }
};

using AttentionOnDevice = OnDeviceOfType;

TEST_P(AttentionOnDevice, PagedEqualsTheCpuAndSeesNothingBehindARowsPosition) {
  for (const Shape& shape : kShapes) {
    const Decoding in(shape, GetParam(), on);
    for (const auto& [device, host] :
         {std::pair(in.device.k, in.host.k), {in.device.v, in.host.v}}) {
      const at::Tensor written = device.cpu();
      EXPECT_TRUE(at::equal(at::where(written.isnan(), at::zeros_like(host), written), host));
    }
    const at::Tensor want = attention_paged(in.q, in.host, in.rows, in.options);
    expect_like(cuda::attention_paged(on(in.q), in.device, in.rows, in.options), want);
  }
}

TEST_P(AttentionOnDevice, ARowHasTheSameBitsAloneAndAmongOthers) {
  const Decoding in({2, 1, 64, 0}, GetParam(), on);
  const at::Tensor q = on(in.q), all = cuda::attention_paged(q, in.device, in.rows, in.options);
  for (int64_t r = 0; r < 5; ++r) {
    const at::Tensor alone =
        cuda::attention_paged(q.slice(0, r, r + 1), in.device, in.only(r), in.options);
    EXPECT_TRUE(at::equal(alone, all.slice(0, r, r + 1))) << r;
  }
}

// Rows of a sequence that come together may be computed together; some share no page, some groups
// have more heads than a tile.
TEST_P(AttentionOnDevice, RowsOfAPromptHaveTheBitsThatTheyHaveAlone) {
  for (const Shape& shape : {Shape{4, 2, 64, 0}, {3, 1, 128, 0}, {20, 1, 64, 0}}) {
    Decoding in(shape, GetParam(), on);
    in.rows.positions = at::cat({at::arange(250, 300), at::arange(58, 69)}).to(at::kInt);
    in.rows.sequences = at::cat({at::full({50}, 2), at::full({11}, 1)}).to(at::kInt);
    in.q = at::randn({61, shape.heads, shape.dim}).to(GetParam());
    const at::Tensor q = on(in.q), all = cuda::attention_paged(q, in.device, in.rows, in.options);
    expect_like(all, attention_paged(in.q, in.host, in.rows, in.options));
    for (const int64_t r : {0, 5, 6, 49, 50, 55, 56, 60}) {
      const at::Tensor alone =
          cuda::attention_paged(q.slice(0, r, r + 1), in.device, in.only(r), in.options);
      EXPECT_TRUE(at::equal(alone, all.slice(0, r, r + 1))) << r;
    }
  }
}

struct PackedBatch {
  at::Tensor q, k, v, grad;
  std::vector<int64_t> cu_seqlens;

  PackedBatch(const Shape& s, at::ScalarType type, int64_t length = 50)
      : q(at::randn({length, s.heads, s.dim}).to(type)),
        k(at::randn({length, s.key_heads, s.dim}).to(type)),
        v(at::randn_like(k)),
        grad(at::randn_like(q)),
        cu_seqlens{0, 1, 20, 20, length} {}
};

// Head sizes that the flash kernels take in bfloat16 and that they don't; the last sequence is
// longer than a tile of keys.
TEST_P(AttentionOnDevice, PackedEqualsTheCpuForwardAndBackward) {
  for (const Shape& s :
       {Shape{4, 2, 64, 0}, {4, 2, 64, 7}, {3, 1, 20, 0}, {2, 2, 20, 1}, {1, 1, 12, 0}}) {
    const PackedBatch in(s, GetParam(), s.dim == 12 ? 290 : 50);
    const AttentionOptions options{.scale = 0.125, .window = s.window};
    const auto host = attention(in.q, in.k, in.v, in.cu_seqlens, options);
    const auto device = attention(on(in.q), on(in.k), on(in.v), in.cu_seqlens, options);
    expect_like(device.out, host.out);
    expect_like(device.lse, host.lse);
    const auto want = attention_backward({in.grad, in.q, in.k, in.v, host}, in.cu_seqlens, options);
    const AttentionSaved saved{on(in.grad), on(in.q), on(in.k), on(in.v), device};
    const auto got = attention_backward(saved, in.cu_seqlens, options);
    expect_like(got.q, want.q, 2 * tolerance());
    expect_like(got.k, want.k, 2 * tolerance());
    expect_like(got.v, want.v, 2 * tolerance());
    const auto again = attention_backward(saved, in.cu_seqlens, options);
    EXPECT_TRUE(at::equal(again.q, got.q) && at::equal(again.k, got.k));
  }
}

TEST_P(AttentionOnDevice, APackedSequenceHasTheSameBitsAloneAndAmongOthers) {
  const PackedBatch in({3, 1, 20, 0}, GetParam());
  const at::Tensor q = on(in.q), k = on(in.k), v = on(in.v), grad = on(in.grad);
  const auto part = [](const at::Tensor& x) { return x.slice(0, 1, 20); };
  const std::vector<int64_t> one{0, 19};
  const auto all = attention(q, k, v, in.cu_seqlens, {});
  const auto alone = attention(part(q), part(k), part(v), one, {});
  EXPECT_TRUE(at::equal(part(all.out), alone.out) && at::equal(part(all.lse), alone.lse));
  const auto of_all = attention_backward({grad, q, k, v, all}, in.cu_seqlens, {});
  const auto of_one = attention_backward({part(grad), part(q), part(k), part(v), alone}, one, {});
  EXPECT_TRUE(at::equal(part(of_all.q), of_one.q) && at::equal(part(of_all.k), of_one.k) &&
              at::equal(part(of_all.v), of_one.v));
}

// Longer than a tile of keys, whose sums a library may order by how many sequences there are.
TEST_P(AttentionOnDevice, ALongPackedSequenceHasTheSameBitsAloneAndAmongOthers) {
  if (GetParam() != at::kBFloat16) GTEST_SKIP() << "attention_packed.cu has one order of sums";
  const std::vector<int64_t> ends{0, 300, 317, 767}, one{0, 300};
  const AttentionOptions options{.scale = 0.125};
  for (const Shape& s : {Shape{8, 2, 64, 0}, {4, 2, 128, 0}, {3, 3, 64, 0}}) {
    const PackedBatch in(s, GetParam(), 767);
    const at::Tensor q = on(in.q), k = on(in.k), v = on(in.v), grad = on(in.grad);
    const auto part = [](const at::Tensor& x) { return x.slice(0, 0, 300); };
    const auto all = attention(q, k, v, ends, options);
    const auto alone = attention(part(q), part(k), part(v), one, options);
    EXPECT_TRUE(at::equal(part(all.out), alone.out) && at::equal(part(all.lse), alone.lse));
    const auto of_all = attention_backward({grad, q, k, v, all}, ends, options);
    const auto of_one =
        attention_backward({part(grad), part(q), part(k), part(v), alone}, one, options);
    EXPECT_TRUE(at::equal(part(of_all.q), of_one.q)) << s.heads;
    EXPECT_TRUE(at::equal(part(of_all.k), of_one.k) && at::equal(part(of_all.v), of_one.v));
  }
}

// So long that it is cuDNN's, and no multiple of what that is padded to.
TEST_P(AttentionOnDevice, LongSequencesEqualTheCpuAndHaveTheSameBitsAloneAndAmongOthers) {
  if (GetParam() != at::kBFloat16) GTEST_SKIP() << "attention_packed.cu has one order of sums";
  const std::vector<int64_t> ends{0, 1100, 1117, 2653}, one{0, 1100};
  const AttentionOptions options{.scale = 0.125};
  for (const Shape& s : {Shape{4, 2, 64, 0}, {2, 1, 128, 0}}) {
    const PackedBatch in(s, GetParam(), 2653);
    const at::Tensor q = on(in.q), k = on(in.k), v = on(in.v), grad = on(in.grad);
    const auto part = [](const at::Tensor& x) { return x.slice(0, 0, 1100); };
    const auto host = attention(in.q, in.k, in.v, ends, options);
    const auto want = attention_backward({in.grad, in.q, in.k, in.v, host}, ends, options);
    const auto all = attention(q, k, v, ends, options);
    const auto of_all = attention_backward({grad, q, k, v, all}, ends, options);
    AttentionOptions any = options;
    any.deterministic = false;
    const auto in_any_order = attention_backward({grad, q, k, v, all}, ends, any);
    const auto near = [](const at::Tensor& got, const at::Tensor& wanted) {
      const at::Tensor truth = wanted.to(at::kDouble);
      EXPECT_LT((got.cpu().to(at::kDouble) - truth).norm().item<double>(),
                1e-2 * truth.norm().item<double>());
    };
    near(all.out, host.out);
    near(all.lse, host.lse);
    near(of_all.q, want.q);
    near(of_all.k, want.k);
    near(of_all.v, want.v);
    near(in_any_order.q, want.q);
    near(in_any_order.k, want.k);
    near(in_any_order.v, want.v);
    const auto alone = attention(part(q), part(k), part(v), one, options);
    EXPECT_TRUE(at::equal(part(all.out), alone.out) && at::equal(part(all.lse), alone.lse));
    const auto of_one =
        attention_backward({part(grad), part(q), part(k), part(v), alone}, one, options);
    EXPECT_TRUE(at::equal(part(of_all.q), of_one.q) && at::equal(part(of_all.k), of_one.k));
    EXPECT_TRUE(at::equal(part(of_all.v), of_one.v));
  }
}

// A device's whole width of blocks at once, which have no order by themselves.
TEST_P(AttentionOnDevice, ALongSequencesGradientRepeatsItself) {
  if (GetParam() != at::kBFloat16) GTEST_SKIP() << "attention_packed.cu has one order of sums";
  const bool is_gpu = cuda::current_device().is_cuda();
  const Shape s = is_gpu ? Shape{32, 8, 128, 0} : Shape{2, 1, 128, 0};
  const int64_t length = is_gpu ? 4096 : 1100;
  const PackedBatch in(s, GetParam(), length);
  const std::vector<int64_t> ends{0, length};
  const AttentionOptions options{.scale = 0.125};
  const at::Tensor q = on(in.q), k = on(in.k), v = on(in.v), grad = on(in.grad);
  const auto out = attention(q, k, v, ends, options);
  const auto first = attention_backward({grad, q, k, v, out}, ends, options);
  for (int repeat = 0; repeat < (is_gpu ? 10 : 1); ++repeat) {
    const auto again = attention_backward({grad, q, k, v, out}, ends, options);
    EXPECT_TRUE(at::equal(again.q, first.q) && at::equal(again.k, first.k));
    EXPECT_TRUE(at::equal(again.v, first.v));
  }
}

TEST_P(AttentionOnDevice, PackedGradientsThatAreNotWantedAreNotThere) {
  const PackedBatch in({2, 2, 20, 0}, GetParam());
  const at::Tensor q = on(in.q), k = on(in.k), v = on(in.v);
  const auto out = attention(q, k, v, in.cu_seqlens, {});
  const auto got = attention_backward({on(in.grad), q, k, v, out}, in.cu_seqlens, {}, {.q = false});
  EXPECT_TRUE(!got.q.defined() && got.k.defined() && got.v.defined());
}

INSTANTIATE_TEST_SUITE_P(Types, AttentionOnDevice, kDeviceTypes, name_of_type);

TEST(AttentionChunks, CoverEveryPageThatARowSeesOnceInFewChunks) {
  for (const int64_t window : {0, 1, 64, 100, 5000, 1'000'000}) {
    for (int64_t position = 0; position < 60'000; position += position < 300 ? 1 : 997) {
      const auto [first, each, count] = cuda::paged_chunks(position, window);
      const int64_t seen = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
      EXPECT_EQ(first, seen / 64);
      EXPECT_GE(first + each * count, position / 64 + 1);
      EXPECT_LE(first + each * (count - 1), position / 64) << "none is empty";
      EXPECT_LE(count, cuda::kMaxChunks);
      EXPECT_GE(each, cuda::kChunkPages);
    }
  }
}

}  // namespace
}  // namespace twinkle::kernels
