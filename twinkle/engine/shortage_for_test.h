// For tests: memory for tensors runs out, after a number of allocations, while the object lives, or
// for some allocations. One at a time; other threads meet it too.
#pragma once
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstdint>
#include <new>

namespace twinkle::engine {

class Shortage : public c10::Allocator {
 public:
  explicit Shortage(int64_t num_left, int64_t num_refused = INT64_MAX)
      : num_left_(num_left), num_refused_(num_refused), usual_(c10::GetCPUAllocator()) {
    c10::SetCPUAllocator(this);
  }
  ~Shortage() override { c10::SetCPUAllocator(usual_); }
  Shortage(const Shortage&) = delete;
  Shortage& operator=(const Shortage&) = delete;

  c10::DataPtr allocate(size_t n) override {
    const int64_t left = num_left_--;
    if (left <= 0 && -left < num_refused_) throw std::bad_alloc();
    return usual_->allocate(n);
  }
  c10::DeleterFnPtr raw_deleter() const override { return usual_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t n) const override {
    usual_->copy_data(to, from, n);
  }

 private:
  std::atomic<int64_t> num_left_;
  const int64_t num_refused_;
  c10::Allocator* usual_;
};

}  // namespace twinkle::engine
