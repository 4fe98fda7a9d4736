#include "twinkle/lora/pool.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>

#include "twinkle/base/error.h"
#include "twinkle/base/random.h"
#include "twinkle/lora/variants/dora.h"

namespace twinkle::lora {

class Pool::LoraDelta : public nn::Delta {
 public:
  LoraDelta(Pool& pool, size_t index) : pool_(pool), index_(index) {}

  std::vector<at::Tensor> forward(const at::Tensor& x, const nn::Rows& rows,
                                  at::Tensor& y) override {
    const auto parts = parts_of(x.scalar_type(), rows, false);
    if (parts.empty()) return {};
    std::vector<at::Tensor> saved{kernels::lora_forward(x.contiguous(), parts, y)};
    each_dora(rows, [&](Factors& factors, size_t s) {
      saved.push_back(dora_forward(rows_of(y, rows, s), linear().bias, dora_of(factors)));
    });
    return saved;
  }

  at::Tensor grad_before(const at::Tensor& dy, const std::vector<at::Tensor>& saved,
                         const nn::Rows& rows) override {
    at::Tensor out = dy;
    size_t next = 1;
    each_dora(rows, [&](Factors& factors, size_t s) {
      if (out.is_same(dy)) out = dy.clone();
      const nn::Segment& segment = rows.segments[s];
      if (segment.learn && !factors.grads[2].defined()) pool_.at(segment.slot).make_grads();
      dora_backward(rows_of(out, rows, s), saved.at(next++), dora_of(factors),
                    segment.learn ? factors.grads[2] : at::Tensor());
    });
    return out;
  }

  int64_t saved_bytes(const nn::Rows& rows) const override {
    int64_t bytes = 0;
    for (size_t s = 0; s < rows.segments.size(); ++s) {
      const nn::Segment& segment = rows.segments[s];
      if (segment.slot < 0) continue;
      const Factors* entry = pool_.at(segment.slot).at(index_);
      if (entry) bytes += entry->f.saved_bytes(rows.cu_seqlens[s + 1] - rows.cu_seqlens[s]);
    }
    const int64_t row =
        linear().weight.size(0) * static_cast<int64_t>(linear().weight.element_size());
    each_dora(rows, [&](Factors&, size_t s) {
      bytes += (rows.cu_seqlens[s + 1] - rows.cu_seqlens[s]) * row;
    });
    return bytes;
  }

  void backward(const at::Tensor& dy, const at::Tensor& x, const std::vector<at::Tensor>& saved,
                const nn::Rows& rows, at::Tensor& dx) override {
    const auto parts = parts_of(x.scalar_type(), rows, true);
    if (!parts.empty()) kernels::lora_backward({dy, x.contiguous(), saved.at(0)}, parts, dx);
  }

 private:
  const nn::Linear& linear() const { return *pool_.linears_[index_].linear; }

  static at::Tensor rows_of(const at::Tensor& all, const nn::Rows& rows, size_t segment) {
    return all.slice(0, rows.cu_seqlens[segment], rows.cu_seqlens[segment + 1]);
  }

  Dora dora_of(Factors& factors) const {
    if (!factors.row_norms.defined()) factors.row_norms = row_norms(linear().weight, factors.f);
    return {factors.more[kMagnitude], factors.row_norms};
  }

  // The sequences whose owner's adapter has magnitudes here, in the order of the batch.
  template <class Visit>
  void each_dora(const nn::Rows& rows, const Visit& visit) const {
    for (size_t s = 0; pool_.num_dora_ > 0 && s < rows.segments.size(); ++s) {
      const nn::Segment& segment = rows.segments[s];
      if (segment.slot < 0) continue;
      Adapter& adapter = pool_.at(segment.slot);
      Factors* entry = adapter.config().use_dora ? adapter.at(index_) : nullptr;
      if (entry) visit(*entry, s);
    }
  }

  // One for each sequence whose owner has an adapter here, in the order of the batch.
  std::vector<kernels::LoraPart> parts_of(at::ScalarType type, const nn::Rows& rows,
                                          bool with_grads) const {
    std::vector<kernels::LoraPart> parts;
    parts.reserve(rows.segments.size());
    for (size_t s = 0; s < rows.segments.size(); ++s) {
      const nn::Segment& segment = rows.segments[s];
      if (segment.slot < 0) continue;
      Adapter& adapter = pool_.at(segment.slot);
      Factors* entry = adapter.at(index_);
      if (!entry) continue;
      if (!entry->f.packed()) adapter.pack(type);
      const double p = adapter.config().dropout;
      const bool drop = p > 0 && segment.key != 0, learn = with_grads && segment.learn;
      if (learn && !(entry->grads[0].defined() && entry->grads[1].defined())) adapter.make_grads();
      parts.push_back({.begin = rows.cu_seqlens[s],
                       .end = rows.cu_seqlens[s + 1],
                       .factors = &entry->f,
                       .dropout = {p, drop ? key_of(segment.key, index_) | 1 : 0},
                       .grad_a = learn ? entry->grads[0] : at::Tensor(),
                       .grad_b = learn ? entry->grads[1] : at::Tensor(),
                       .first = segment.first,
                       .scales_grad = entry->scales_grad});
    }
    return parts;
  }

  Pool& pool_;
  size_t index_;
};

Pool::Pool(model::Decoder& decoder) : linears_(decoder.linears()) {
  for (size_t i = 0; i < linears_.size(); ++i)
    deltas_.push_back(std::make_unique<LoraDelta>(*this, i));
  num_adapters_.resize(linears_.size());
  const auto head = std::ranges::find(linears_, &decoder.head(),
                                      [](const auto& l) { return std::as_const(l.linear); });
  if (head != linears_.end()) head_ = static_cast<size_t>(head - linears_.begin());
}

Pool::~Pool() {
  for (const auto& linear : linears_) linear.linear->delta = nullptr;
}

void Pool::make_room() {
  if (!free_.empty()) return;
  free_.reserve(slots_.size() + 1);  // for all: a slot that gets free must not need memory
  slots_.emplace_back();
  free_.push_back(static_cast<int32_t>(slots_.size()) - 1);
}

AdapterRef Pool::put(std::unique_ptr<Adapter> adapter, uint64_t version) {
  make_room();
  std::ranges::pop_heap(free_, std::greater());
  const int32_t slot = free_.back();
  free_.pop_back();
  attach(*adapter, 1);
  slots_[static_cast<size_t>(slot)] = {std::move(adapter), 1, version};
  return AdapterRef(this, slot);
}

AdapterRef Pool::add(std::unique_ptr<Adapter> adapter) {
  return put(std::move(adapter), ++last_version_);
}

void Pool::release(int32_t slot) {
  Slot& s = slots_[static_cast<size_t>(slot)];
  if (--s.num_shares > 0) return;
  attach(*s.adapter, -1);
  s.adapter.reset();
  free_.push_back(slot);
  std::ranges::push_heap(free_, std::greater());
}

Adapter* Pool::find(int32_t slot) {
  const auto i = static_cast<size_t>(slot);
  return slot >= 0 && i < slots_.size() ? slots_[i].adapter.get() : nullptr;
}

Adapter& Pool::at(int32_t slot) {
  Adapter* const found = find(slot);
  require(found != nullptr, Code::kInternal, "lora: slot ", slot, " is empty");
  return *found;
}

bool Pool::on_head(int32_t slot) const {
  return head_ && slots_.at(static_cast<size_t>(slot)).adapter->at(*head_) != nullptr;
}

void Pool::base_changed() {
  base_version_ = ++last_version_;
  for (const Slot& slot : slots_)
    if (slot.adapter && slot.adapter->config().use_dora) slot.adapter->weights_changed();
}

void Pool::copy_on_write(AdapterRef& pin) {
  if (pin.num_shares() <= 1) return;
  make_room();  // the gradients move with the copy: nothing may throw then
  pin = put(at(pin.slot()).fork(), pin.version());
}

void Pool::weights_changed(const AdapterRef& pin) {
  at(pin.slot()).weights_changed();
  slots_[static_cast<size_t>(pin.slot())].version = ++last_version_;
}

AdapterRef::AdapterRef(const AdapterRef& other) : pool_(other.pool_), slot_(other.slot_) {
  if (pool_) ++pool_->slots_[static_cast<size_t>(slot_)].num_shares;
}

AdapterRef::~AdapterRef() {
  if (pool_) pool_->release(slot_);
}

uint64_t AdapterRef::version() const {
  return pool_ ? pool_->slots_[static_cast<size_t>(slot_)].version : 0;
}

int64_t AdapterRef::num_shares() const {
  return pool_ ? pool_->slots_[static_cast<size_t>(slot_)].num_shares : 0;
}

void Pool::attach(const Adapter& adapter, int64_t change) {
  if (adapter.config().use_dora) num_dora_ += change;
  for (const size_t i : adapter.linears()) {
    num_adapters_[i] += change;
    linears_[i].linear->delta = num_adapters_[i] > 0 ? deltas_[i].get() : nullptr;
  }
}

}  // namespace twinkle::lora
