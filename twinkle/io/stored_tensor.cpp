#include "twinkle/io/stored_tensor.h"

#include <algorithm>
#include <cassert>
#include <cstring>
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

StoredTensor in_bf16(StoredTensor tensor) {
  assert(tensor.dtype == Dtype::kF32);
  StoredTensor out = tensor;
  out.dtype = Dtype::kBF16;
  out.reader = [from = std::move(tensor)](int64_t offset, std::span<std::byte> to) {
    std::vector<uint32_t> wide(to.size() / 2);
    from.read(std::as_writable_bytes(std::span(wide)), 2 * offset);
    for (size_t i = 0; i < wide.size(); ++i) {
      const uint32_t bits = wide[i];
      const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
      const uint32_t rounded = bits + 0x7FFF + (bits >> 16 & 1);
      const auto upper = static_cast<uint16_t>(is_nan ? bits >> 16 | 0x40 : rounded >> 16);
      std::memcpy(to.data() + 2 * i, &upper, 2);
    }
  };
  return out;
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
