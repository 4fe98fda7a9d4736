#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/cuda_emulation/device.h"
#include "twinkle/base/error_for_test.h"
#include "twinkle/kernels/cuda/device.cuh"
#include "twinkle/kernels/cuda/graph.h"
#include "twinkle/kernels/cuda/place.h"

namespace twinkle::kernels::cuda {
namespace {

constexpr Grid kOneBlock{.shared = kThreads * sizeof(int)};

void reverse(bool barrier, int* out) {
  int* const of_thread = shared<int>();
  of_thread[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (barrier) __syncthreads();
  out[threadIdx.x] = of_thread[kThreads - 1 - threadIdx.x];
}

TEST(Emulation, AThreadReadsWhatOthersWroteBehindABarrierAndRubbishBeforeIt) {
  std::vector<int> want(kThreads), out(kThreads);
  std::iota(want.rbegin(), want.rend(), 0);
  launch("reverse", kOneBlock, nullptr, reverse, true, out.data());
  EXPECT_EQ(out, want);
  launch("reverse", kOneBlock, nullptr, reverse, false, out.data());
  EXPECT_GT(std::count(out.begin(), out.end(), -1), 0);
}

void number(int64_t* out) {
  const int64_t block = (int64_t{blockIdx.z} * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  out[block * blockDim.x + threadIdx.x] = block * blockDim.x + threadIdx.x;
}

TEST(Emulation, RunsEveryThreadOfEveryBlockOnce) {
  std::vector<int64_t> want(kThreads * 24), out(kThreads * 24);
  std::iota(want.begin(), want.end(), 0);
  launch("number", {.x = 3, .y = 4, .z = 2}, nullptr, number, out.data());
  EXPECT_EQ(out, want);
}

void sums(double* out) {
  const double of_warp = over_warp(double(threadIdx.x), [](double a, double b) { return a + b; });
  out[threadIdx.x] = of_warp;
  if (threadIdx.x == 0) out[kThreads] = 0;  // lanes may part between two exchanges
  out[threadIdx.x] += block_sum(of_warp / 32);
}

TEST(Emulation, LanesExchangeValuesWithinTheirWarp) {
  std::vector<double> out(kThreads + 1);
  launch("sums", {}, nullptr, sums, out.data());
  for (int i = 0; i < kThreads; ++i) {
    EXPECT_EQ(out[i], 32 * (i / 32 * 32) + 496 + kThreads * (kThreads - 1) / 2);
  }
}

void half_a_warp_waits(unsigned from) {
  if (threadIdx.x >= from) __syncthreads();
}

void write_behind(int count) {
  if (threadIdx.x == 0) shared<int>()[count] = 0;
}

std::string fault_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const std::logic_error& e) {
    return e.what();
  }
  return "none";
}

TEST(Emulation, WhatHangsAGpuOrSpoilsItsMemoryIsAnError) {
  const auto waits = [](unsigned from) {
    return fault_of([=] { launch("waits", {}, nullptr, half_a_warp_waits, from); });
  };
  EXPECT_EQ(waits(16), "emulation: lanes 0 and 16 of a warp part before a barrier");
  EXPECT_EQ(waits(32), "emulation: warps part before a barrier of the block");
  EXPECT_EQ(waits(0), "none");
  const auto writes = [](int at) {
    return fault_of([=] { launch("writes", kOneBlock, nullptr, write_behind, at); });
  };
  EXPECT_EQ(writes(kThreads), "emulation: a block wrote behind its shared memory of 1024 bytes");
  EXPECT_EQ(writes(kThreads - 1), "none");
}

TEST(Emulation, LaunchesThatAGpuRefusesAreErrors) {
  const auto refused = [](const Grid& grid) {
    try {
      launch("number", grid, nullptr, number, nullptr);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("none");
  };
  EXPECT_EQ(refused({.y = 65536}),
            "kernels: number takes 1 x 65536 x 1 blocks, at most 2^31 - 1 x 65,535 x 65,535 can "
            "be: give it less at a time");
  EXPECT_EQ(refused({.shared = 1 << 20}),
            "kernels: number did not start: refused by the emulation");
  EXPECT_EQ(refused({.x = 0}), "none");
}

float first_of(const at::Tensor& x) {
  return *static_cast<const volatile float*>(x.const_data_ptr());
}

TEST(EmulatedDevice, AHostThatTouchesItsMemoryEndsThere) {
  const at::Tensor x = at::ones({100}, emulation::device());
  EXPECT_EQ(x.cpu().sum().item<float>(), 100);
  EXPECT_DEATH(first_of(x), "the host touched the device's memory");
}

TEST(EmulatedDevice, FreshMemoryIsNaNAndComesBack) {
  for (int i = 0; i < 20; ++i) {  // together more than there is
    const at::Tensor x = at::empty({16 << 20}, at::device(emulation::device()));
    EXPECT_TRUE(std::isnan(x[5].item<float>()));
  }
}

TEST(EmulatedDevice, ARecordingExchangesNothingWithTheHost) {
  const at::Tensor there = at::ones({2}, emulation::device()), here = at::ones({2});
  const auto fault = [](const std::function<void()>& body) {
    return fault_of([&] { record(emulation::device(), body)->replay(); });
  };
  const std::string text = "emulation: while launches are recorded ";
  EXPECT_EQ(fault([&] { there.cpu(); }), text + "host and device exchange a tensor");
  EXPECT_EQ(fault([&] { at::Tensor(there).copy_(here); }),
            text + "host and device exchange a tensor");
  EXPECT_EQ(fault([&] { there.sum().item<float>(); }), text + "the host reads a number");
  EXPECT_EQ(fault([&] { there.equal(there); }), text + "the host reads a result of aten::equal");
  EXPECT_EQ(fault([&] { at::Tensor(there).add_(there); }), "none");
  const std::vector<int64_t> table{1, 2, 3};
  const auto use = [&] { table_on<int64_t>(emulation::device(), table); };
  expect_error("a table of 24 bytes is new while launches are recorded",
               [&] { record(emulation::device(), use)->replay(); });
  use();
  EXPECT_EQ(fault(use), "none");
}

void add_one(float* x) { x[threadIdx.x] += 1; }

TEST(EmulatedDevice, AReplayIsTheLaunchesAloneOnTheMemoryThatTheyWereGiven) {
  at::Tensor x = at::zeros({kThreads}, emulation::device()), sum, copy = at::zeros_like(x);
  int num_calls = 0;
  const auto graph = record(emulation::device(), [&] {
    ++num_calls;
    launch("add_one", {}, nullptr, add_one, static_cast<float*>(x.mutable_data_ptr()));
    sum = x + 1;
    sum.mul_(2);
    copy.copy_(sum.narrow(0, 0, 1));
  });
  const auto first = [](const at::Tensor& t) { return t.select(0, 0).item<float>(); };
  EXPECT_EQ(first(x), 0);
  const at::Tensor old = x;
  x = at::full_like(x, 40);
  for (int i = 1; i <= 3; ++i) {
    graph->replay();
    EXPECT_EQ(first(old), i);
    EXPECT_EQ(first(sum), 2 * (i + 1));
    EXPECT_EQ(first(copy), 2 * (i + 1));
  }
  EXPECT_EQ(first(x), 40);
  EXPECT_EQ(num_calls, 1);
}

}  // namespace
}  // namespace twinkle::kernels::cuda
