#include "twinkle/lora/pool.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "twinkle/base/error.h"
#include "twinkle/base/random.h"

namespace twinkle::lora {

class Pool::Seam : public nn::Delta {
 public:
  Seam(Pool& pool, size_t index) : pool_(pool), index_(index) {}

  std::vector<at::Tensor> forward(const at::Tensor& x, const nn::Packing& packing,
                                  const nn::Owners& owners, at::Tensor& y) override {
    const at::Tensor in = x.contiguous();
    std::vector<at::Tensor> saved;
    each(
        packing, owners,
        [&](Factors& entry, const kernels::LoraDropout& dropout, int64_t begin, int64_t end, bool) {
          saved.push_back(kernels::lora_forward(in, begin, end, entry.f, dropout, y));
        });
    return saved;
  }

  int64_t saved_bytes(const nn::Packing& packing, const nn::Owners& owners) const override {
    int64_t bytes = 0;
    for (size_t s = 0; s < owners.slot.size(); ++s) {
      if (owners.slot[s] < 0) continue;
      const Factors* entry = pool_.at(owners.slot[s]).at(index_);
      if (entry) bytes += entry->f.saved_bytes(packing.cu_seqlens[s + 1] - packing.cu_seqlens[s]);
    }
    return bytes;
  }

  void backward(const at::Tensor& dy, const at::Tensor& x, const std::vector<at::Tensor>& saved,
                const nn::Packing& packing, const nn::Owners& owners, at::Tensor& dx) override {
    const at::Tensor in = x.contiguous();
    size_t next = 0;
    each(packing, owners,
         [&](Factors& entry, const kernels::LoraDropout& dropout, int64_t begin, int64_t end,
             bool learn) {
           at::Tensor none;
           kernels::lora_backward(dy, in, saved[next++], begin, end, entry.f, dropout, dx,
                                  learn ? entry.grad_a : none, learn ? entry.grad_b : none);
         });
  }

 private:
  template <class F>
  void each(const nn::Packing& packing, const nn::Owners& owners, F&& run) {
    for (int64_t i = 0; i < packing.num_sequences(); ++i) {
      const auto s = static_cast<size_t>(i);
      if (owners.slot[s] < 0) continue;
      Adapter& adapter = pool_.at(owners.slot[s]);
      Factors* entry = adapter.at(index_);
      if (!entry) continue;
      const double p = adapter.config().dropout;
      const bool drop = p > 0 && owners.key[s] != 0;
      const kernels::LoraDropout dropout{p, drop ? key_of(owners.key[s], index_) | 1 : 0};
      run(*entry, dropout, packing.cu_seqlens[s], packing.cu_seqlens[s + 1], owners.learn[s] != 0);
    }
  }

  Pool& pool_;
  size_t index_;
};

Pool::Pool(model::Decoder& decoder) : linears_(decoder.linears()) {
  for (size_t i = 0; i < linears_.size(); ++i) seams_.push_back(std::make_unique<Seam>(*this, i));
}

Pool::~Pool() {
  for (const auto& linear : linears_) linear.linear->delta = nullptr;
}

int32_t Pool::add(std::unique_ptr<Adapter> adapter) {
  auto free = std::find(slots_.begin(), slots_.end(), nullptr);
  if (free == slots_.end()) free = slots_.insert(free, nullptr);
  *free = std::move(adapter);
  attach();
  return static_cast<int32_t>(free - slots_.begin());
}

void Pool::remove(int32_t slot) {
  slots_.at(static_cast<size_t>(slot)).reset();
  attach();
}

Adapter& Pool::at(int32_t slot) {
  const auto i = static_cast<size_t>(slot);
  require(slot >= 0 && i < slots_.size() && slots_[i], Code::kInternal, "lora: slot ", slot,
          " is empty");
  return *slots_[i];
}

void Pool::attach() {
  for (size_t i = 0; i < linears_.size(); ++i) {
    const bool used =
        std::any_of(slots_.begin(), slots_.end(), [&](const auto& a) { return a && a->at(i); });
    linears_[i].linear->delta = used ? seams_[i].get() : nullptr;
  }
}

}  // namespace twinkle::lora
