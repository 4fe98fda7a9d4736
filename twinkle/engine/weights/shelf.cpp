#include "twinkle/engine/weights/shelf.h"

#include "twinkle/base/error.h"

namespace twinkle::engine {

int64_t Shelf::add(Item item) {
  const Lock lock(mutex_);
  items_.emplace(++last_, std::move(item));
  return last_;
}

void Shelf::clear(int64_t number) {
  const Lock lock(mutex_);
  items_.erase(number);
}

bool Shelf::has_base(int64_t number) {
  const Lock lock(mutex_);
  const auto found = items_.find(number);
  const auto* weights = found == items_.end() ? nullptr : std::get_if<NewWeights>(&found->second);
  return weights && !weights->base.empty();
}

template <class T>
T Shelf::take(int64_t number) {
  const Lock lock(mutex_);
  const auto found = items_.find(number);
  require(found != items_.end() && std::holds_alternative<T>(found->second), Code::kNotFound,
          "engine: weights of number ", number,
          " are neither awaited nor given in this process: they are exchanged by sync alone");
  T out = std::get<T>(std::move(found->second));
  items_.erase(found);
  return out;
}

template WeightsReader Shelf::take<WeightsReader>(int64_t number);
template NewWeights Shelf::take<NewWeights>(int64_t number);

}  // namespace twinkle::engine
