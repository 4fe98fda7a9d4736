// The emulation's device as torch sees it: a backend of torch's own kind (PrivateUse1, named
// "emulated") whose tensors lie in memory that the host can neither read nor write. What does it
// anyway ends the program with the place where it did, as it would end on a GPU. Kernels run by the
// emulation; every other operator of torch runs on the CPU over copies.
#pragma once
#include <c10/core/Device.h>

namespace twinkle::kernels::emulation {

// Opens the device's memory while it lives.
class Access {
 public:
  Access();
  ~Access();
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;
};

// While it lives, this thread copies nothing between host and device: that is an error, as it would
// be while a GPU's launches are recorded.
class Apart {
 public:
  Apart();
  ~Apart();
  Apart(const Apart&) = delete;
  Apart& operator=(const Apart&) = delete;
};

at::Device device();

}  // namespace twinkle::kernels::emulation
