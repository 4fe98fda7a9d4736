#include "twinkle/sampler/stop_strings.h"

#include <algorithm>
#include <string_view>

namespace twinkle::sampler {
namespace {

// Bytes that the end of the text may still change by: an unfinished UTF-8 character decodes to up
// to three replacement characters.
constexpr size_t kUnsettled = 16;

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

StopStrings::StopStrings(const std::vector<std::string>& stops, const Decode& decode)
    : stops_(stops), decode_(decode) {
  for (const std::string& stop : stops) longest_ = std::max(longest_, stop.size());
}

const std::string* StopStrings::find(std::span<const int32_t> generated) {
  if (stops_.empty()) return nullptr;
  text_ = decode_(generated.subspan(begin_));
  text_begin_ = begin_;
  const std::string* first = nullptr;
  size_t where = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = text_.find(stop);
    if (at < where) {
      where = at;
      first = &stop;
    }
  }
  // A long tail is halved where its rest still holds all that a stop string could begin in.
  const size_t settled = longest_ + kUnsettled;
  if (!first && text_.size() > 4 * settled) {
    const size_t middle = begin_ + (generated.size() - begin_) / 2;
    if (decode_(generated.subspan(middle)).size() >= settled) begin_ = middle;
  }
  return first;
}

size_t StopStrings::num_settled(std::span<const int32_t> generated) const {
  size_t count = generated.size();
  if (stops_.empty()) return count;
  // Replacement characters at the end may be the beginning of a character.
  std::string_view text = text_;
  while (text.ends_with(kReplacement)) text.remove_suffix(kReplacement.size());
  size_t open = text.size();  // where the first stop string that may still come would begin
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size(), text.size()); n > 0; --n) {
      if (!text.ends_with(std::string_view(stop).substr(0, n))) continue;
      open = std::min(open, text.size() - n);
      break;
    }
  }
  if (open == text_.size()) return count;
  while (count > text_begin_ &&
         decode_(generated.subspan(text_begin_, count - text_begin_)).size() > open) {
    --count;
  }
  return count;
}

}  // namespace twinkle::sampler
