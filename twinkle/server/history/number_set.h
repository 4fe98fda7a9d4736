// A set of numbers that come nearly in order, as clients number their requests: its size is that of
// its gaps.
#pragma once
#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

namespace twinkle::server {

class NumberSet {
 public:
  NumberSet() = default;
  // Of what ranges() gave.
  explicit NumberSet(const std::vector<int64_t>& ranges) {
    for (size_t i = 0; i + 1 < ranges.size(); i += 2) last_by_first_[ranges[i]] = ranges[i + 1];
  }

  bool contains(int64_t number) const {
    const auto after = last_by_first_.upper_bound(number);
    return after != last_by_first_.begin() && number <= std::prev(after)->second;
  }

  void insert(int64_t number) {
    if (contains(number)) return;
    const auto after = last_by_first_.upper_bound(number);
    int64_t last = number;
    if (after != last_by_first_.end() && after->first - 1 == number) {
      last = after->second;
      last_by_first_.erase(after);
    }
    const auto before = last_by_first_.lower_bound(number);
    if (before != last_by_first_.begin() && std::prev(before)->second + 1 == number)
      std::prev(before)->second = last;
    else
      last_by_first_[number] = last;
  }

  // First and last of each range, in order.
  std::vector<int64_t> ranges() const {
    std::vector<int64_t> out;
    for (const auto& [first, last] : last_by_first_) out.insert(out.end(), {first, last});
    return out;
  }

 private:
  std::map<int64_t, int64_t> last_by_first_;
};

}  // namespace twinkle::server
