// Where an engine runs: the names of devices, and what this machine has. A machine without a card
// loads no library of CUDA for these.
#pragma once
#include <c10/core/Device.h>

#include <string>

namespace twinkle::engine {

// The form of a device's name, for errors.
inline constexpr const char* kDeviceNames = "'cpu', 'cuda' or 'cuda:' and a number";

bool is_device_name(const std::string& name);

// "cpu", or one that kernels/cuda finds. Error kInvalid: it is no device's name, or not here, with
// what would help.
at::Device device_named(const std::string& name);

// Why no engine can run on that device, "cuda" or "cuda:1"; empty: it can.
std::string why_not_on(const std::string& cuda);

struct DefaultDevice {
  std::string name;         // "cuda" where an engine can run there, else "cpu"
  std::string why_no_cuda;  // where the machine has a card that no engine can run on, else empty
};

// Where an engine runs if nobody names a device.
DefaultDevice default_device();

}  // namespace twinkle::engine
