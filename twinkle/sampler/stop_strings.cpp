#include "twinkle/sampler/stop_strings.h"

#include <algorithm>

namespace twinkle::sampler {
namespace {

// Bytes that the end of the text may still change by: an unfinished UTF-8 character decodes to up
// to three replacement characters.
constexpr size_t kUnsettled = 16;

}  // namespace

StopStrings::StopStrings(const std::vector<std::string>& stops, const Decode& decode)
    : stops_(stops), decode_(decode) {
  for (const std::string& stop : stops) longest_ = std::max(longest_, stop.size());
}

const std::string* StopStrings::find(std::span<const int32_t> generated) {
  if (stops_.empty()) return nullptr;
  const std::string text = decode_(generated.subspan(begin_));
  const std::string* first = nullptr;
  size_t where = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = text.find(stop);
    if (at < where) {
      where = at;
      first = &stop;
    }
  }
  // A long tail is halved where its rest still holds all that a stop string could begin in.
  const size_t settled = longest_ + kUnsettled;
  if (!first && text.size() > 4 * settled) {
    const size_t middle = begin_ + (generated.size() - begin_) / 2;
    if (decode_(generated.subspan(middle)).size() >= settled) begin_ = middle;
  }
  return first;
}

}  // namespace twinkle::sampler
