#include "twinkle/io/stored_tensor.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace twinkle {

int64_t StoredTensor::num_bytes() const { return bytes_of(dtype, shape).value(); }

void StoredTensor::read(std::span<std::byte> out, int64_t offset) const {
  assert(offset >= 0 && std::ssize(out) <= num_bytes() && offset <= num_bytes() - std::ssize(out));
  assert(offset % size_of(dtype) == 0 && std::ssize(out) % size_of(dtype) == 0);
  if (!out.empty()) reader(offset, out);
}

TensorView StoredTensor::load() const {
  const auto size = static_cast<size_t>(num_bytes());
  const std::shared_ptr<std::byte[]> bytes(new std::byte[size]);  // not cleared
  read({bytes.get(), size});
  return {
      .name = name, .dtype = dtype, .shape = shape, .bytes = {bytes.get(), size}, .owner = bytes};
}

StoredTensor::Reader read_from(std::shared_ptr<const File> file, int64_t begin) {
  return [file = std::move(file), begin](int64_t offset, std::span<std::byte> out) {
    file->read_at(begin + offset, out);
  };
}

bool equal_bytes(const StoredTensor& a, const StoredTensor& b) {
  constexpr int64_t kChunk = int64_t{1} << 20;
  const int64_t size = a.num_bytes();
  if (a.dtype != b.dtype || size != b.num_bytes()) return false;
  std::vector<std::byte> left(static_cast<size_t>(std::min(size, kChunk))), right(left.size());
  for (int64_t at = 0; at < size; at += kChunk) {
    const auto count = static_cast<size_t>(std::min(size - at, kChunk));
    a.read(std::span(left).first(count), at);
    b.read(std::span(right).first(count), at);
    if (!std::equal(left.begin(), left.begin() + static_cast<ptrdiff_t>(count), right.begin()))
      return false;
  }
  return true;
}

}  // namespace twinkle
