#include "twinkle/server/bodies/sending.h"

namespace twinkle::server {
namespace {

constexpr int64_t kShort = int64_t{64} << 10;

}  // namespace

Sending::One::One(std::shared_ptr<Sending> sending, const std::string& text,
                  std::function<void()> close)
    : sending_(std::move(sending)), at_(sending_->all_.end()) {
  if (std::ssize(text) <= kShort) return;
  at_ = sending_->all_.insert(at_, {&text, std::move(close)});
  if (++sending_->times_[&text] == 1) sending_->num_bytes_ += std::ssize(text);
  for (auto it = sending_->all_.begin(); it != at_ && sending_->num_bytes_ > sending_->max_bytes_;
       ++it) {
    if (!it->close) continue;
    const auto end = std::move(it->close);
    sending_->release(*it);
    end();
  }
}

Sending::One::~One() {
  if (at_ == sending_->all_.end()) return;
  if (at_->close) sending_->release(*at_);
  sending_->all_.erase(at_);
}

void Sending::release(Entry& entry) {
  entry.close = nullptr;
  const auto times = times_.find(entry.text);
  if (--times->second > 0) return;
  num_bytes_ -= std::ssize(*entry.text);
  times_.erase(times);
}

}  // namespace twinkle::server
