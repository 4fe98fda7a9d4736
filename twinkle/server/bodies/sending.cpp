#include "twinkle/server/bodies/sending.h"

namespace twinkle::server {
namespace {

constexpr int64_t kShort = int64_t{64} << 10;

}  // namespace

Sending::One::One(std::shared_ptr<Sending> sending, const std::string& text,
                  std::function<void()> close)
    : sending_(std::move(sending)), at_(sending_->all_.end()) {
  if (std::ssize(text) <= kShort) return;
  at_ = sending_->all_.insert(at_, {&text, 0, std::move(close)});
  if (++sending_->times_[&text] == 1) sending_->num_bytes_ += std::ssize(text);
  sending_->make_room(at_);
}

Sending::One::One(std::shared_ptr<Sending> sending, std::function<void()> close)
    : sending_(std::move(sending)), close_(std::move(close)), at_(sending_->all_.end()) {}

Sending::One::~One() {
  if (at_ == sending_->all_.end()) return;
  if (at_->close) sending_->release(*at_);
  sending_->all_.erase(at_);
}

void Sending::One::holds(int64_t bytes) {
  auto& all = sending_->all_;
  if (at_ == all.end()) {
    if (bytes <= kShort) return;
    at_ = all.insert(at_, {nullptr, 0, close_});
  }
  if (!at_->close) return;
  if (bytes <= kShort) {
    sending_->release(*at_);
    all.erase(std::exchange(at_, all.end()));
    return;
  }
  sending_->num_bytes_ += bytes - std::exchange(at_->num_bytes, bytes);
  sending_->make_room(all.end());
}

void Sending::make_room(At end) {
  for (auto it = all_.begin(); it != end && num_bytes_ > max_bytes_; ++it) {
    if (!it->close) continue;
    const auto close = std::move(it->close);
    release(*it);
    close();
  }
}

void Sending::release(Entry& entry) {
  entry.close = nullptr;
  if (!entry.text) {
    num_bytes_ -= entry.num_bytes;
    return;
  }
  const auto times = times_.find(entry.text);
  if (--times->second > 0) return;
  num_bytes_ -= std::ssize(*entry.text);
  times_.erase(times);
}

}  // namespace twinkle::server
