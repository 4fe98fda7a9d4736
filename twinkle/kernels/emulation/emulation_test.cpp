#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "twinkle/kernels/cuda/device.cuh"

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

}  // namespace
}  // namespace twinkle::kernels::cuda
