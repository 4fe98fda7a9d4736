// The emulation's device as torch sees it: a backend of torch's own kind (PrivateUse1, named
// "emulated") whose tensors lie in memory that the host can neither read nor write. What does it
// anyway ends the program with the place where it did, as it would end on a GPU. Kernels run by the
// emulation; every other operator of torch runs on the CPU over copies.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <string>
#include <vector>

namespace twinkle::kernels::emulation {

// Opens the device's memory while it lives.
class Access {
 public:
  Access();
  ~Access();
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;
};

// Launches as a GPU's graph keeps them: kernels, operators and copies within the device, with the
// memory that they were given. What the host did between them is done once.
class Recording {
 public:
  // Calls the body. Its launches do not run, but for operators that make new tensors: those run for
  // their shapes. What would wait for the device, or bring something from the host or there, is an
  // error.
  void record(const std::function<void()>& body);
  void replay() const;

 private:
  friend bool recorded(std::function<void()> launch);
  friend void hold(const at::Tensor& memory);
  std::vector<std::function<void()>> launches_;
  std::vector<at::Tensor> memory_;  // that the body took
};

// True if this thread records: then the launch is kept, and is not to run now.
bool recorded(std::function<void()> launch);
// Keeps memory that a recorded body has taken.
void hold(const at::Tensor& memory);
// An operator that the host computes: its results, which are written again when it is replayed.
std::vector<at::Tensor> computed(const std::function<std::vector<at::Tensor>()>& compute);

at::Device device();

// For tests: while it is not empty, recordings fail with this text.
std::string& failure_of_recordings();
// For tests: whether the last flash attention's backward was asked for a fixed order of its sums.
bool& flash_was_deterministic();

}  // namespace twinkle::kernels::emulation
