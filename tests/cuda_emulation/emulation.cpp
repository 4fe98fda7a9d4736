#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/cuda_emulation/cuda_runtime.h"
#include "tests/cuda_emulation/device.h"

namespace twinkle::kernels::cuda {
// The memory that the kernels declare as `extern __shared__`.
alignas(16) unsigned char shared_bytes[228 << 10];
}  // namespace twinkle::kernels::cuda

namespace twinkle::kernels::emulation {
namespace {

constexpr size_t kStack = 64 << 10, kGuard = 256;
constexpr int kNanByte = 0xff, kGuardByte = 0xa5;

enum class State { kReady, kAtWarp, kAtBlock, kDone };

// Runs one thread of a block after the other, on a stack of its own. A context begins it; from then
// on it is left and entered by jumps, which need no call of the system.
struct Fiber {
  ucontext_t context;
  jmp_buf place;         // where it waits
  bool entered = false;  // place is known
  std::unique_ptr<char[]> stack{new char[kStack]};
  State state = State::kReady;
  unsigned exchanges = 0;
  // Two sets of slots: a lane may begin its next exchange before another has read of this one.
  alignas(16) unsigned char slots[2][32];

  void begin();
};

struct Block {
  std::vector<Fiber> fibers;
  jmp_buf scheduler;
  const std::function<void()>* thread = nullptr;
  unsigned current = 0;
  uint64_t random = 1;

  unsigned size() const { return blockDim.x; }
  Fiber& self() { return fibers[current]; }
  // A fixed sequence, so that a failure comes again.
  unsigned draw() {
    return static_cast<unsigned>((random = random * 0xd1342543de82ef95u + 1) >> 33);
  }
  void wait(State state);
  void resume(unsigned i);
  State step_warp(unsigned warp);
  void run();
} block;

void enter() {
  for (;;) {
    (*block.thread)();
    block.wait(State::kDone);
  }
}

void Fiber::begin() {
  const bool idle = entered && state == State::kDone;
  state = State::kReady;
  exchanges = 0;
  if (idle) return;
  entered = false;
  getcontext(&context);
  context.uc_stack = {stack.get(), 0, kStack};
  context.uc_link = nullptr;
  makecontext(&context, enter, 0);
}

void Block::wait(State state) {
  self().state = state;
  self().entered = true;
  if (_setjmp(self().place) == 0) _longjmp(scheduler, 1);
}

void Block::resume(unsigned i) {
  current = i;
  threadIdx = {i, 0, 0};
  fibers[i].state = State::kReady;
  if (_setjmp(scheduler) != 0) return;
  if (fibers[i].entered) _longjmp(fibers[i].place, 1);
  setcontext(&fibers[i].context);
}

// Runs a warp to the next barrier of the block, or its end. Its lanes run one after the other.
State Block::step_warp(unsigned warp) {
  const unsigned first = warp * kWarp, last = std::min(first + kWarp, size());
  if (fibers[first].state == State::kDone) return State::kDone;
  do {
    const bool backwards = draw() % 2 != 0;
    for (unsigned i = first; i < last; ++i) resume(backwards ? last - 1 - (i - first) : i);
    for (unsigned i = first; i < last; ++i) {
      if (fibers[i].state == fibers[first].state) continue;
      throw std::logic_error("emulation: lanes 0 and " + std::to_string(i - first) +
                             " of a warp part before a barrier");
    }
  } while (fibers[first].state == State::kAtWarp);
  return fibers[first].state;
}

void Block::run() {
  for (unsigned i = 0; i < size(); ++i) fibers[i].begin();
  std::vector<unsigned> warps((size() + kWarp - 1) / kWarp);
  std::iota(warps.begin(), warps.end(), 0u);
  for (State state = State::kReady; state != State::kDone;) {
    for (size_t i = warps.size(); i > 1; --i) std::swap(warps[i - 1], warps[draw() % i]);
    state = step_warp(warps[0]);
    for (size_t i = 1; i < warps.size(); ++i) {
      if (step_warp(warps[i]) == state) continue;
      throw std::logic_error("emulation: warps part before a barrier of the block");
    }
  }
}

}  // namespace

void block_barrier() { block.wait(State::kAtBlock); }
void warp_barrier() { block.wait(State::kAtWarp); }

void* exchange_slot(unsigned lane) {
  Fiber& fiber = block.fibers[block.current / kWarp * kWarp + lane];
  return fiber.slots[block.self().exchanges % 2];
}

void end_exchange() { ++block.self().exchanges; }

cudaError_t run(const cudaLaunchConfig_t& config, const std::function<void()>& thread) {
  unsigned char* const shared = cuda::shared_bytes;
  if (config.blockDim.x % kWarp != 0 ||
      config.dynamicSmemBytes + kGuard > sizeof cuda::shared_bytes || config.gridDim.y > 65535 ||
      config.gridDim.z > 65535) {
    return cudaErrorInvalidValue;
  }
  if (recorded([config, thread] { run(config, thread); })) return cudaSuccess;
  gridDim = config.gridDim, blockDim = config.blockDim;
  const Access access;
  while (block.fibers.size() < blockDim.x) block.fibers.emplace_back();
  block.thread = &thread;
  // A GPU promises no order of the blocks: here the last one comes first.
  const uint64_t count = uint64_t{gridDim.x} * gridDim.y * gridDim.z;
  for (uint64_t i = count; i-- > 0;) {
    blockIdx = {static_cast<unsigned>(i % gridDim.x),
                static_cast<unsigned>(i / gridDim.x % gridDim.y),
                static_cast<unsigned>(i / gridDim.x / gridDim.y)};
    std::memset(shared, kNanByte, config.dynamicSmemBytes);
    std::memset(shared + config.dynamicSmemBytes, kGuardByte, kGuard);
    block.run();
    const unsigned char* guard = shared + config.dynamicSmemBytes;
    if (std::any_of(guard, guard + kGuard, [](unsigned char c) { return c != kGuardByte; })) {
      throw std::logic_error("emulation: a block wrote behind its shared memory of " +
                             std::to_string(config.dynamicSmemBytes) + " bytes");
    }
  }
  return cudaSuccess;
}

}  // namespace twinkle::kernels::emulation
