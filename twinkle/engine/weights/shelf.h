// What ReadWeights and ReplaceWeights name by numbers, since operations hold no tensors: who reads
// a tenant's weights, and weights that take the place of a tenant's. Any thread.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "twinkle/base/guarded.h"

namespace twinkle::engine {

struct Weight {
  std::string name;
  at::Tensor value;
};

// A tenant's weights as a reader sees them: during the call alone, and not to be changed.
struct WeightsView {
  bool trains_base = false;     // all weights of the base model are what the tenant trains
  uint64_t base_version = 0;    // a new number after every change of `base`
  std::vector<Weight> base;     // in the decoder's order, under the checkpoint's names
  std::string lora_json;        // the adapter's adapter_config.json; empty: there is none
  std::vector<Weight> adapter;  // float32: A [r, I] and B [O, r] of each linear
};
using WeightsReader = std::function<void(const WeightsView&)>;

class Shelf {
 public:
  // Holds what was put there until this goes. Must not outlive the shelf.
  class Place {
   public:
    Place(Shelf& shelf, int64_t number) : shelf_(shelf), number_(number) {}
    ~Place() { shelf_.clear(number_); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    int64_t number() const { return number_; }  // 1, 2, ... of this shelf

   private:
    Shelf& shelf_;
    const int64_t number_;
  };

  Place put(WeightsReader reader) { return {*this, add(std::move(reader))}; }
  Place put(std::vector<Weight> weights) { return {*this, add(std::move(weights))}; }

  // What lies there, once. Error kNotFound: nothing of this kind does.
  WeightsReader take_reader(int64_t number) { return take<WeightsReader>(number); }
  std::vector<Weight> take_weights(int64_t number) { return take<std::vector<Weight>>(number); }

 private:
  using Item = std::variant<WeightsReader, std::vector<Weight>>;
  int64_t add(Item item);
  void clear(int64_t number);
  template <class T>
  T take(int64_t number);

  Mutex mutex_;
  int64_t last_ GUARDED_BY(mutex_) = 0;
  std::map<int64_t, Item> items_ GUARDED_BY(mutex_);
};

}  // namespace twinkle::engine
