#include "twinkle/engine/checkpoint/adapter_digest.h"

#include <algorithm>
#include <cstring>
#include <iomanip>
#include <span>
#include <sstream>
#include <vector>

#include "twinkle/base/file.h"
#include "twinkle/base/random.h"

namespace twinkle::engine {

std::string digest_of(const std::filesystem::path& file) {
  constexpr int64_t kChunk = 1 << 20;  // a multiple of a word's size
  const File opened(file);
  std::vector<std::byte> chunk(static_cast<size_t>(std::min(kChunk, opened.size())));
  auto digest = static_cast<uint64_t>(opened.size());
  for (int64_t at = 0; at < opened.size(); at += kChunk) {
    const auto size = static_cast<size_t>(std::min(kChunk, opened.size() - at));
    opened.read_at(at, std::span(chunk).first(size));
    for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, chunk.data() + i, std::min(sizeof(word), size - i));
      digest = mix64(digest ^ word);
    }
  }
  std::ostringstream out;
  out << std::hex << std::setfill('0') << std::setw(kDigestSize) << digest;
  return out.str();
}

}  // namespace twinkle::engine
