// A response's body that is there, and is read in pieces while it is sent: a file, an archive. It
// is never in memory as a whole.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "twinkle/base/file.h"

namespace twinkle::server {

class BodySource {
 public:
  virtual ~BodySource() = default;
  virtual int64_t size() const = 0;  // bytes; always the same
  // Fills `out` with the bytes from `offset` on, all within size(). On a thread that may wait for
  // the disk. If it throws, the response is cut.
  virtual void read_at(int64_t offset, std::span<std::byte> out) const = 0;
};

// The file stays readable if its name is removed meanwhile. Errors as of File.
class FileSource : public BodySource {
 public:
  explicit FileSource(const std::filesystem::path& path) : file_(path, "server") {}
  int64_t size() const override { return file_.size(); }
  void read_at(int64_t offset, std::span<std::byte> out) const override {
    file_.read_at(offset, out);
  }

 private:
  const File file_;
};

}  // namespace twinkle::server
