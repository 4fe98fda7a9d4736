// The objects that ReadWeights and ReplaceWeights name by numbers, since operations hold no
// tensors: who reads a tenant's weights, and weights that take the place of a tenant's. Any thread.
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

// For a base that ranks hold in parts, `value` is the part of this rank.
struct Weight {
  std::string name;
  at::Tensor value;            // in `shape`, or, for a part, its elements in row order, flat
  std::vector<int64_t> shape;  // shape of the whole
  int64_t first = 0;           // a part's first element in the whole

  bool is_part() const { return value.sizes() != shape; }
};

// A tenant's weights as a reader sees them: during the call alone, and not to be changed.
struct WeightsView {
  bool trains_base = false;     // all weights of the base model are what the tenant trains
  uint64_t base_version = 0;    // a new number after every change of `base`
  std::vector<Weight> base;     // in the decoder's order, under the checkpoint's names
  std::string lora_json;        // the adapter's adapter_config.json; empty: there is none
  std::vector<Weight> adapter;  // float32: A [r, I] and B [O, r] of each linear
};
// The weights that replace a tenant's, in the order and under the names of its WeightsView.
struct NewWeights {
  std::vector<Weight> base;     // empty: the base model stays as it is
  std::vector<Weight> adapter;  // empty: the tenant has none
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
  Place put(NewWeights weights) { return {*this, add(std::move(weights))}; }

  // Takes the object that lies there. Error kNotFound: nothing of this kind does.
  WeightsReader take_reader(int64_t number) { return take<WeightsReader>(number); }
  NewWeights take_weights(int64_t number) { return take<NewWeights>(number); }
  // True: weights that lie there are the base model's, too.
  bool has_base(int64_t number);

 private:
  using Item = std::variant<WeightsReader, NewWeights>;
  int64_t add(Item item);
  void clear(int64_t number);
  template <class T>
  T take(int64_t number);

  Mutex mutex_;
  int64_t last_ GUARDED_BY(mutex_) = 0;
  std::map<int64_t, Item> items_ GUARDED_BY(mutex_);
};

}  // namespace twinkle::engine
