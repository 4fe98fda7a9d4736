#include "twinkle/engine/schedule/admission.h"

#include <algorithm>
#include <tuple>

namespace twinkle::engine {

void Admission::push(const std::string& tenant, Share share, int64_t id,
                     std::vector<int64_t> sizes) {
  Tenant& to = tenants_[tenant];
  to.share = share;
  if (to.num_samples++ == 0) to.last_turn = ++turn_;
  to.waiting.push_back(id);
  samples_[id] = {tenant, std::move(sizes)};
}

std::optional<Admitted> Admission::next() {
  if (running_ >= max_) return std::nullopt;
  Tenant* first = nullptr;
  const auto before = [](const Tenant& a, const Tenant& b) {
    const auto key = [](const Tenant& t) {
      return std::tuple(-int64_t{t.share.priority}, static_cast<double>(t.held) / t.share.weight,
                        t.last_turn);
    };
    return key(a) < key(b);
  };
  for (auto& [name, tenant] : tenants_) {
    if (!tenant.waiting.empty() && (!first || before(tenant, *first))) first = &tenant;
  }
  if (!first) return std::nullopt;
  const int64_t id = first->waiting.front();
  Sample& sample = samples_.at(id);
  const Admitted out{id, sample.next};
  const int64_t sequences = sample.sizes[sample.next++];
  if (sample.next == sample.sizes.size()) first->waiting.pop_front();
  first->last_turn = sample.last_turn = ++turn_;
  first->held += sequences;
  sample.held += sequences;
  running_ += sequences;
  return out;
}

int64_t Admission::newest() const {
  const auto it = std::max_element(
      samples_.begin(), samples_.end(),
      [](const auto& a, const auto& b) { return a.second.last_turn < b.second.last_turn; });
  return it->first;
}

void Admission::give_back(Sample& sample, int64_t sequences) {
  sample.held -= sequences;
  tenants_.at(sample.tenant).held -= sequences;
  running_ -= sequences;
}

void Admission::release(const Admitted& request) {
  Sample& sample = samples_.at(request.id);
  give_back(sample, sample.sizes[request.index]);
}

bool Admission::remove(int64_t id) {
  const auto it = samples_.find(id);
  if (it == samples_.end()) return false;
  give_back(it->second, it->second.held);
  const auto tenant = tenants_.find(it->second.tenant);
  std::erase(tenant->second.waiting, id);
  if (--tenant->second.num_samples == 0) tenants_.erase(tenant);
  samples_.erase(it);
  return true;
}

}  // namespace twinkle::engine
