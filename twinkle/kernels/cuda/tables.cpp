#include <ATen/ATen.h>
#include <c10/core/AutogradState.h>

#include <list>
#include <mutex>
#include <string>
#include <unordered_map>

#include "twinkle/base/error.h"
#include "twinkle/kernels/cuda/place.h"

namespace twinkle::kernels::cuda {
namespace {

// Recently uploaded tables, found by their content: kernels only read them, so one serves all that
// ask for the same bytes.
class ConstantCache {
 public:
  at::Tensor find(const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto place = places_.find(key);
    if (place == places_.end()) return {};
    entries_.splice(entries_.begin(), entries_, place->second);
    return entries_.front().table;
  }

  void add(std::string key, const at::Tensor& table) {
    if (key.size() > kMaxBytes / 16) return;
    const std::lock_guard lock(mutex_);
    if (places_.contains(key)) return;
    num_bytes_ += key.size();
    entries_.push_front({std::move(key), table});
    places_.emplace(entries_.front().key, entries_.begin());
    while (num_bytes_ > kMaxBytes || entries_.size() > kMaxEntries) {
      num_bytes_ -= entries_.back().key.size();
      places_.erase(entries_.back().key);
      entries_.pop_back();
    }
  }

 private:
  static constexpr size_t kMaxBytes = size_t{16} << 20, kMaxEntries = 8192;
  struct Entry {
    std::string key;
    at::Tensor table;
  };
  std::mutex mutex_;
  std::list<Entry> entries_;  // the one used last first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> places_;
  size_t num_bytes_ = 0;
};

ConstantCache& tables() {
  static auto* const all = new ConstantCache;  // never destroyed: the device may be gone by then
  return *all;
}

thread_local std::vector<at::Tensor>* kept = nullptr;

}  // namespace

CaptureScope::CaptureScope(std::vector<at::Tensor>& tensors)
    : threads_(c10::AutogradState::get_tls_state().get_multithreading_enabled()) {
  kept = &tensors;
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}
CaptureScope::~CaptureScope() {
  kept = nullptr;
  c10::AutogradState::get_tls_state().set_multithreading_enabled(threads_);
}

void keep(const at::Tensor& x) {
  if (kept != nullptr) kept->push_back(x);
}

at::Tensor table_on(const at::Device& device, std::span<const std::byte> bytes) {
  std::string key = device.str() + ' ';
  key.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  at::Tensor table = tables().find(key);
  if (!table.defined()) {
    require(kept == nullptr, Code::kInternal, "kernels: a table of ", bytes.size(),
            " bytes is new while launches are recorded: run them once before");
    table = upload(device, bytes);
    tables().add(std::move(key), table);
  }
  keep(table);
  return table;
}

}  // namespace twinkle::kernels::cuda
