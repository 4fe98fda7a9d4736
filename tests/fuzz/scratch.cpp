#include <unistd.h>

#include <fstream>

#include "tests/fuzz/fuzz.h"

namespace twinkle::fuzz {

namespace fs = std::filesystem;

fs::path scratch_folder() {
  static const fs::path folder = [] {
    const fs::path memory = "/dev/shm";
    return (fs::is_directory(memory) ? memory : fs::temp_directory_path()) /
           ("twinkle-fuzz-" + std::to_string(::getpid()));
  }();
  fs::create_directories(folder);
  return folder;
}

fs::path file_of(const std::string& bytes, const std::string& name) {
  const fs::path file = scratch_folder() / name;
  std::ofstream(file, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return file;
}

}  // namespace twinkle::fuzz
