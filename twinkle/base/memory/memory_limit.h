// The memory that this process may use: the machine's, or less where a control group of Linux says
// so.
#pragma once
#include <cstdint>
#include <filesystem>

namespace twinkle {

// Where the system states it; a test names folders of its own.
struct MemoryFiles {
  std::filesystem::path cgroup = "/proc/self/cgroup";
  std::filesystem::path mounts = "/proc/self/mountinfo";
};

// Bytes. The least of the machine's memory and the limits of the process's group and of all groups
// around it, in both versions of control groups. A group whose files cannot be read has no limit.
int64_t memory_limit(const MemoryFiles& files = {});

}  // namespace twinkle
