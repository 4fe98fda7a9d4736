#include "twinkle/server/bodies/sending.h"

namespace twinkle::server {
namespace {

constexpr int64_t kShort = int64_t{64} << 10;

}  // namespace

Sending::One::One(Sending& sending, const std::string& text, std::function<void()> close)
    : sending_(sending), at_(sending.all_.end()) {
  if (std::ssize(text) <= kShort) return;
  at_ = sending.all_.insert(at_, {&text, std::move(close)});
  if (++sending.times_[&text] == 1) sending.num_bytes_ += std::ssize(text);
  for (auto it = sending.all_.begin(); it != at_ && sending.num_bytes_ > sending.max_bytes_; ++it) {
    if (!it->close) continue;
    const auto end = std::move(it->close);
    sending.release(*it);
    end();
  }
}

Sending::One::~One() {
  if (at_ == sending_.all_.end()) return;
  if (at_->close) sending_.release(*at_);
  sending_.all_.erase(at_);
}

void Sending::release(Entry& entry) {
  entry.close = nullptr;
  const auto times = times_.find(entry.text);
  if (--times->second > 0) return;
  num_bytes_ -= std::ssize(*entry.text);
  times_.erase(times);
}

}  // namespace twinkle::server
