#include <vector>

#include "twinkle/base/error_for_test.h"
#include "twinkle/kernels/cuda/device_for_test.h"
#include "twinkle/kernels/lora/lora.h"

namespace twinkle::kernels {
namespace {

struct Adapter {
  LoraFactors factors;
  at::Tensor grad_a, grad_b;
};

// A batch of sequences of ragged ranks and lengths; some share an adapter, one has no rows, some
// rows have no adapter.
struct Widths {
  int64_t inputs, outputs;
};
// No multiples of anything; and those that tensor cores take, no multiples of their tiles.
constexpr Widths kWidths[] = {{35, 260}, {312, 584}};

struct Batch {
  static constexpr int64_t kTokens = 70;
  at::Tensor x, y, dy, dx;
  std::vector<Adapter> adapters;
  struct Sequence {
    int64_t begin, end;
    size_t adapter;
    LoraDropout dropout;
  };
  std::vector<Sequence> sequences{{2, 20, 0, {}},         {20, 21, 1, {0.3, 11}}, {21, 21, 1, {}},
                                  {21, 58, 2, {0.5, 12}}, {58, 63, 0, {0.1, 13}}, {63, 69, 1, {}}};

  Batch(at::ScalarType type, Widths widths) {
    const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
    x = at::randn({kTokens, widths.inputs}, wide).to(type);
    y = at::randn({kTokens, widths.outputs}, wide).to(type);
    dy = at::randn({kTokens, widths.outputs}, wide).to(type);
    dx = at::randn({kTokens, widths.inputs}, wide).to(type);
    for (const int64_t rank : {3, 16, 37}) {
      Adapter& made = adapters.emplace_back();
      made.factors.a = at::randn({rank, widths.inputs}, wide) / 8;
      made.factors.b = at::randn({widths.outputs, rank}, wide) / 8;
      made.factors.scale = 0.5 + 0.1 * static_cast<double>(rank);
      made.grad_a = at::ones({rank, widths.inputs}, wide);
      made.grad_b = at::ones({widths.outputs, rank}, wide);
      made.factors.repack(type);
    }
  }

  // Copies on the device.
  template <class On>
  Batch moved(const On& on) const {
    Batch to = *this;
    for (at::Tensor* t : {&to.x, &to.y, &to.dy, &to.dx}) *t = on(*t);
    for (Adapter& adapter : to.adapters) {
      LoraFactors& f = adapter.factors;
      for (at::Tensor* t : {&f.a, &f.b, &f.a_rI, &f.b_rO, &adapter.grad_a, &adapter.grad_b}) {
        if (t->defined()) *t = on(*t);
      }
    }
    return to;
  }

  std::vector<LoraPart> parts() const {
    std::vector<LoraPart> out;
    for (const auto& [begin, end, i, dropout] : sequences) {
      const Adapter& adapter = adapters[i];
      const int64_t first = 5 * std::ssize(out);  // some begin inside their sequences
      out.push_back({begin, end, &adapter.factors, dropout, adapter.grad_a, adapter.grad_b, first});
    }
    return out;
  }
};

class LoraOnDevice : public OnDeviceOfType {
 protected:
  static void expect_same(const Batch& got, const Batch& want) {
    expect_like(got.y, want.y, 2 * tolerance());
    expect_like(got.dx, want.dx, 2 * tolerance());
    for (size_t i = 0; i < want.adapters.size(); ++i) {
      expect_like(got.adapters[i].grad_a, want.adapters[i].grad_a, 1e-4);
      expect_like(got.adapters[i].grad_b, want.adapters[i].grad_b, 1e-4);
    }
  }
};

TEST_P(LoraOnDevice, ForwardAndBackwardOfRaggedRanksEqualTheCpu) {
  for (const Widths widths : kWidths) {
    Batch host(GetParam(), widths), device = host.moved(on);
    const auto host_parts = host.parts(), device_parts = device.parts();
    const at::Tensor h = lora_forward(host.x, host_parts, host.y);
    const at::Tensor device_h = cuda::lora_forward(device.x, device_parts, device.y);
    expect_like(device_h, h, 1e-4);
    lora_backward({host.dy, host.x, h}, host_parts, host.dx);
    cuda::lora_backward({device.dy, device.x, device_h}, device_parts, device.dx);
    expect_same(device, host);
  }
}

TEST_P(LoraOnDevice, ASequenceHasTheSameBitsAloneAndAmongOthers) {
  for (const Widths widths : kWidths) {
    const Batch all(GetParam(), widths);
    Batch together = all.moved(on), alone = all.moved(on);
    const auto run = [](Batch& batch, std::span<const LoraPart> parts) {
      const at::Tensor h = cuda::lora_forward(batch.x, parts, batch.y);
      cuda::lora_backward({batch.dy, batch.x, h}, parts, batch.dx);
    };
    run(together, together.parts());
    for (const LoraPart& part : alone.parts()) run(alone, {&part, 1});
    EXPECT_TRUE(at::equal(together.y, alone.y));
    EXPECT_TRUE(at::equal(together.dx, alone.dx));
    for (size_t i = 0; i < all.adapters.size(); ++i) {
      EXPECT_TRUE(at::equal(together.adapters[i].grad_a, alone.adapters[i].grad_a)) << i;
      EXPECT_TRUE(at::equal(together.adapters[i].grad_b, alone.adapters[i].grad_b)) << i;
    }
  }
}

// A prompt may come in pieces, or token by token.
TEST_P(LoraOnDevice, ARowHasTheSameBitsInAnyPieces) {
  for (const Widths widths : kWidths) {
    const Batch all(GetParam(), widths);
    Batch whole = all.moved(on), pieces = all.moved(on);
    const auto forward = [](Batch& batch, const std::vector<int64_t>& ends) {
      LoraPart part = batch.parts()[3];
      for (size_t i = 0; i + 1 < ends.size(); ++i) {
        LoraPart piece = part;
        piece.begin = part.begin + ends[i], piece.end = part.begin + ends[i + 1];
        piece.first = part.first + ends[i];
        cuda::lora_forward(batch.x, {&piece, 1}, batch.y);
      }
    };
    forward(whole, {0, 37});
    forward(pieces, {0, 1, 2, 18, 35, 37});
    EXPECT_TRUE(at::equal(whole.y, pieces.y));
  }
}

TEST_P(LoraOnDevice, WhatIsNotWantedIsLeftAlone) {
  Batch host(GetParam(), kWidths[0]), device = host.moved(on), untouched = host.moved(on);
  const auto some = [](const Batch& batch) {
    auto parts = batch.parts();
    for (at::Tensor* grad :
         {&parts[0].grad_a, &parts[1].grad_b, &parts[3].grad_a, &parts[3].grad_b}) {
      *grad = at::Tensor();
    }
    return parts;
  };
  at::Tensor none;
  const at::Tensor h = lora_forward(host.x, some(host), host.y);
  lora_backward({host.dy, host.x, h}, some(host), none);
  const at::Tensor device_h = cuda::lora_forward(device.x, some(device), device.y);
  cuda::lora_backward({device.dy, device.x, device_h}, some(device), none);
  expect_same(device, host);
  EXPECT_TRUE(at::equal(device.adapters[2].grad_a, untouched.adapters[2].grad_a));
  EXPECT_TRUE(at::equal(device.y.slice(0, 0, 2), untouched.y.slice(0, 0, 2)));
}

TEST_P(LoraOnDevice, NoPartsAndUnpackedFactors) {
  Batch device = Batch(GetParam(), kWidths[0]).moved(on);
  EXPECT_EQ(cuda::lora_forward(device.x, {}, device.y).numel(), 0);
  device.adapters[0].factors.unpack();
  expect_error("lora's factors are not packed",
               [&] { cuda::lora_forward(device.x, device.parts(), device.y); });
}

INSTANTIATE_TEST_SUITE_P(Types, LoraOnDevice, kDeviceTypes, name_of_type);

}  // namespace
}  // namespace twinkle::kernels
