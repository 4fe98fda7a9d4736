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

INSTANTIATE_TEST_SUITE_P(Types, AttentionOnDevice, kDeviceTypes, name_of_type);

TEST(AttentionChunks, CoverEveryPageThatARowSeesOnceInFewChunks) {
  for (const int64_t window : {0, 1, 64, 100, 5000, 1'000'000}) {
    for (int64_t position = 0; position < 60'000; position += position < 300 ? 1 : 997) {
      const auto [first, each, count] = cuda::paged_chunks(position, window);
      const int64_t seen = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
      EXPECT_EQ(first, seen / 64);
      EXPECT_GE(first + each * count, position / 64 + 1);
      EXPECT_LE(first + each * (count - 1), position / 64) << "none is empty";
      EXPECT_LE(count, cuda::kMostChunks);
      EXPECT_GE(each, cuda::kChunkPages);
    }
  }
}

class FlashAttention : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    q = at::randn({200, 4, 64}).to(at::kBFloat16);
    k = at::randn({200, 2, 64}).to(at::kBFloat16), v = at::randn_like(k);
  }
  at::Tensor q, k, v;
  const std::vector<int64_t> cu_seqlens_{0, 1, 70, 70, 200};
};

TEST_F(FlashAttention, PackedEqualsTheCpuForwardAndBackward) {
  if (!cuda::current_device().is_cuda()) GTEST_SKIP() << "ATen's flash kernels need a GPU";
  for (const int64_t window : {0, 1, 50}) {
    const AttentionOptions options{.scale = 0.125, .window = window};
    const at::Tensor grad = at::randn_like(q);
    const auto host = attention(q, k, v, cu_seqlens_, options);
    const auto device = attention(on(q), on(k), on(v), cu_seqlens_, options);
    const auto close = [](const at::Tensor& got, const at::Tensor& want) {
      EXPECT_TRUE(at::allclose(got.cpu(), want, 2e-2, 2e-2));
    };
    close(device.out, host.out);
    close(device.lse, host.lse);
    const auto want = attention_backward({grad, q, k, v, host}, cu_seqlens_, options);
    const AttentionSaved saved{on(grad), on(q), on(k), on(v), device};
    const auto got = attention_backward(saved, cu_seqlens_, options);
    close(got.q, want.q);
    close(got.k, want.k);
    close(got.v, want.v);
    const auto again = attention_backward(saved, cu_seqlens_, options);
    EXPECT_TRUE(at::equal(again.q, got.q) && at::equal(again.k, got.k));
  }
}

TEST_F(FlashAttention, IsAskedForByItsNameInAten) {
  if (cuda::current_device().is_cuda()) GTEST_SKIP() << "it is there";
  const auto refusal = [](const auto& run) -> std::string {
    try {
      run();
    } catch (const c10::Error& e) {
      return e.what_without_backtrace();
    }
    return "none";
  };
  const auto forward = refusal([&] { cuda::attention(q, k, v, cu_seqlens_, {}); });
  EXPECT_NE(forward.find("aten::_flash_attention_forward"), std::string::npos) << forward;
  const AttentionSaved saved{q, q, k, v, {q, at::zeros({200, 4})}};
  const auto backward = refusal([&] { cuda::attention_backward(saved, cu_seqlens_, {}, {}); });
  EXPECT_NE(backward.find("aten::_flash_attention_backward"), std::string::npos) << backward;
}

TEST_F(FlashAttention, WhatItDoesNotTakeIsNamed) {
  const auto run = [&](const at::Tensor& x) { cuda::attention(x, x, x, cu_seqlens_, {}); };
  expect_error("attention's q is Float [200, 4, 64], on a CUDA device it must be bfloat16",
               [&] { run(on(q).to(at::kFloat)); });
  expect_error("attention's q is BFloat16 [200, 4, 60], on a CUDA device",
               [&] { run(on(q).slice(2, 0, 60)); });
}

}  // namespace
}  // namespace twinkle::kernels
