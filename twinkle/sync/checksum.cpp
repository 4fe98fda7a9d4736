#include "twinkle/sync/checksum.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cstring>

#include "twinkle/base/random.h"

namespace twinkle::sync {
namespace {

uint64_t checksum(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.cpu().contiguous();
  const auto* bytes = static_cast<const unsigned char*>(flat.const_data_ptr());
  uint64_t hash = flat.nbytes();
  size_t i = 0;
  for (; i + sizeof(uint64_t) <= flat.nbytes(); i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, sizeof(word));
    hash = key_of(hash, word);
  }
  for (; i < flat.nbytes(); ++i) hash = key_of(hash, uint64_t{bytes[i]});
  return hash;
}

}  // namespace

std::vector<uint64_t> checksums(const std::vector<engine::Weight>& tensors) {
  std::vector<uint64_t> out(tensors.size());
  at::parallel_for(0, std::ssize(tensors), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      out[static_cast<size_t>(i)] = checksum(tensors[static_cast<size_t>(i)].value);
  });
  return out;
}

}  // namespace twinkle::sync
