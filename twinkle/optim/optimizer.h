// Optimizers over named float32 parameters, on the CPU or on one device, where a step is one
// launch. Knows no model, no loss and no schedule: the caller passes the learning rate and the
// scale of the gradients with every step. State is kept by parameter name. Not thread-safe; a step
// uses all threads of ATen, and its bits do not depend on their number, nor on which other
// parameters are in the same step.
#pragma once
#include <ATen/ATen.h>

#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "twinkle/base/json.h"
#include "twinkle/optim/peers.h"

namespace twinkle::optim {

struct Param {
  std::string name;   // unique within a step; the key of its state
  at::Tensor value;   // float32, contiguous; updated in place
  at::Tensor grad;    // the same shape, a sum over tokens; undefined: the parameter is left alone
  bool decay = true;  // false: no weight decay (biases, norms)
  bool here = true;   // false: another rank steps it; here its steps are counted
  bool is_b = false;  // B of LoRA's factors A and B, whose rate loraplus_lr_ratio multiplies
};

// The state from which training resumes bit for bit. The tensors are named "<parameter>.<buffer>".
// Options are not part of it; the caller passes them again.
struct State {
  Json fields;  // {"optimizer": "AdamW", "steps": {"<parameter>": 7, ...}}
  std::vector<std::pair<std::string, at::Tensor>> tensors;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  virtual std::string_view name() const = 0;             // torch's class name: "AdamW"
  virtual std::vector<std::string> buffers() const = 0;  // names of a parameter's; at most two

  // Replaces all options but loraplus_lr_ratio: fields named as in torch, defaults for those not
  // named. State is kept.
  // Error kInvalid: unknown field, value of another type or out of range, a number or a product of
  // the first update that is not finite in float32; nothing changes then.
  virtual void configure(const Json& options) = 0;

  double lr() const { return lr_; }  // the option, which a schedule multiplies

  // One update of every parameter that has a gradient, from grad * grad_scale (one over the token
  // count, times the clipping factor). Gradients are only read. Error kInvalid: dtype, shape or
  // layout, two parameters of one name, lr, grad_scale or a product of theirs not finite in
  // float32, a parameter or its state that would not be finite afterwards. What throws, want of
  // memory too, changes nothing. `largest_grad`: no |grad * grad_scale| is above it. Where lr and
  // it are of ordinary size, no update can leave the finite numbers; otherwise, and after load(),
  // the step is tried on copies first, which costs a second pass. Every one of `peers` calls it
  // with the same parameters, of which each has some `here`: none is stepped where one can't be.
  void step(std::span<const Param> params, double lr, double grad_scale = 1.0,
            double largest_grad = std::numeric_limits<double>::infinity(),
            const Peers& peers = Peers());

  int64_t num_steps() const;  // updates of the parameter that has had most

  State state() const;  // its tensors share memory with the optimizer: valid until the next step
  // All buffers, in one order until the next step: to be taken out of memory and put back.
  std::vector<at::Tensor*> tensors();
  // Copies. Error kInvalid: another optimizer's, a parameter's number of steps or a buffer that no
  // run of steps leaves (NaN, a negative mean of squares); nothing changes.
  void load(const State& state);
  // Forgets a parameter that another rank steps: its buffers go, its number of steps stays.
  void leave(const std::string& param);
  // Exchanges the states, not the options. Only between optimizers of one name.
  void swap_state(Optimizer& other) noexcept {
    slots_.swap(other.slots_);
    std::swap(loaded_, other.loaded_);
  }

 protected:
  // Everything that a parameter's update depends on in addition to its elements.
  struct Terms {
    double lr, grad_scale;
    int64_t step;  // this update's number, from 1
    bool fresh;    // the buffers were made for this update and hold zeros
    bool decay;
  };
  // A run of elements of one parameter, its gradient and its buffers.
  struct Run {
    float* value;
    const float* grad;
    float* buffers[2];
    int64_t size;
    Terms terms;
  };
  // All of one parameter, on a device, or of an optimizer that takes it whole.
  struct Whole {
    at::Tensor value, grad;
    at::Tensor buffers[2];
    Terms terms;
  };

  // Error kInvalid: an update would use a number that is not finite in float32.
  virtual void check_terms(const Terms& terms) const = 0;
  // True if options and gradients are of ordinary size, so that every update stays finite.
  virtual bool is_ordinary(const Terms& terms, double largest_grad) const = 0;
  // Error kInvalid: a parameter that it cannot update.
  virtual void check_param(const Param&) const {}
  // True: an update needs all of a parameter, and update(Run) is never called.
  virtual bool takes_whole() const { return false; }
  // True if no entry of this buffer is ever negative.
  virtual bool is_non_negative(std::string_view) const { return false; }
  virtual void update(const Run&) const {}
  virtual void update(std::span<const Whole> all) const = 0;

  double lr_ = 1e-5;
  double b_ratio_ = 1;  // the rate of B, in rates of A (LoRA+, Hayou et al. 2024)

 private:
  struct Slot {
    int64_t steps = 0;
    std::vector<at::Tensor> buffers;  // empty until the first step that has some
  };
  struct Target;
  friend std::unique_ptr<Optimizer> make(std::string_view name, const Json& options);
  bool is_whole(const Param& param) const { return takes_whole() || !param.value.is_cpu(); }
  bool ends_finite(const Target& target) const;
  Terms terms_of(const Param& param, double lr, double grad_scale) const;
  std::optional<Fault> fault_in(std::span<const Param> params, std::span<const Target> targets,
                                double largest_grad) const;
  std::vector<Target> targets(std::span<const Param> params, double lr, double grad_scale);

  std::map<std::string, Slot> slots_;
  bool loaded_ = false;  // and no step taken since: its numbers may be of any size
};

// Names: AdamW, Adam, SGD, Muon, Lion. Every one defaults to lr 1e-5 and weight_decay 0.01, and has
// the option loraplus_lr_ratio (1), above 0.
// Error kInvalid: unknown name (with the known ones), or as configure().
std::unique_ptr<Optimizer> make(std::string_view name, const Json& options = {});

}  // namespace twinkle::optim
