// Losses as functions of per-token log-probabilities and entropies: numbers in, a number and its
// gradient out. Knows no model, no logits and no thread; a loss holds no state. One loss is one
// file here and one line in losses.def.
//
// Shapes: N scored rows of one operation, its sequences one after the other; S sequences.
#pragma once
#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/base/json.h"

namespace twinkle::loss {

// Inputs of a loss in addition to log-probabilities: [N] per row (old_logps, advantages, ...) or
// [S] per sequence, as the loss declares.
using Extras = std::map<std::string, at::Tensor>;

struct Inputs {
  at::Tensor logprobs;              // [N] float32: log p(target) of every row
  at::Tensor weights;               // [N] float32: of the row in the loss; 0 where it is ignored
  std::vector<int64_t> cu_seqlens;  // [S+1]: sequence s is rows cu_seqlens[s] to cu_seqlens[s+1]
  Extras extras;
  at::Tensor entropies;  // [N] float32, nats; defined where the loss has an entropy_grad
};

struct Output {
  double loss = 0;        // a sum over tokens, or a mean, as the loss defines it
  at::Tensor grad;        // [N] float32: d loss / d logprobs
  double num_tokens = 0;  // a step's divisor: a sum's scored rows, 1 for a mean; 0 when no
                          // row is scored
};

// d loss / d logprobs of rows [begin, begin + logprobs.size()), from their log-probabilities
// alone. May run on any thread, for any split of the rows; equal bit for bit to the rows' part of
// Output::grad.
using TokenGrad =
    std::function<void(int64_t begin, std::span<const float> logprobs, std::span<float> grad)>;

// An input that a loss reads, or may read.
struct Extra {
  std::string_view name;
  bool per_sequence = false;  // one number a sequence, not one a row
  bool optional = false;
};

struct Loss {
  std::string_view name;               // "cross_entropy": the file, and the function in it
  std::string_view class_name;         // "CrossEntropyLoss": as scripts name it
  std::vector<Extra> extras;           // others are refused
  void (*check)(const Json& options);  // throws what run() would throw for these options
  Json (*options)() = nullptr;         // as described() of options.h; null: it has none
  Output (*run)(const Inputs& inputs, const Json& options) = nullptr;
  // Null unless a row's derivative is known from that row alone. Then the head's forward and
  // backward can be one pass: prepare() before it, with `logprobs` undefined, and run() after it.
  TokenGrad (*prepare)(const Inputs& inputs, const Json& options) = nullptr;
  // Null unless the loss is linear in entropies: d loss / d entropies [N] float32, from the
  // weights, extras and options alone; undefined: all 0.
  at::Tensor (*entropy_grad)(const Inputs& inputs, const Json& options) = nullptr;
  // True: it computes in double, and run() takes log-probabilities, entropies and extras of either
  // type; the gradient has the log-probabilities'. The engine's are float32.
  bool doubles = false;
  bool many_targets = false;  // rows may be several targets of one token: nothing else ties them
  // True: a sequence's rows are the logits that a head of labels gives it, in place of
  // log-probabilities, and their weights are not read.
  bool of_labels = false;

  bool separable() const { return prepare != nullptr; }
  const Extra* extra(std::string_view name) const;  // null: it does not read it
};

// True: the loss reads this extra, one of a sequence.
bool per_sequence(const Loss& loss, std::string_view extra);

// By either name; null: unknown.
const Loss* look_up(std::string_view name);
// The same. Error kInvalid: unknown, with the names that are known.
const Loss& find(std::string_view name);
const std::vector<Loss>& all();

// loss.run after checking options, extras, shapes and dtypes. Error kInvalid names what is wrong;
// an extra that the loss does not read is.
Output run(const Loss& loss, const Inputs& inputs, const Json& options = {});

// loss.prepare after the same checks; `inputs.logprobs` is not read. The inputs' tensors are kept
// alive by the result.
TokenGrad prepare(const Loss& loss, const Inputs& inputs, const Json& options = {});
// loss.entropy_grad after the same checks; undefined where there is none.
at::Tensor entropy_grad(const Loss& loss, const Inputs& inputs, const Json& options = {});

// Output::num_tokens of any log-probabilities, which follows from weights, extras and options; the
// inputs' are not read. Errors as of run.
double num_tokens(const Loss& loss, Inputs inputs, const Json& options = {});

// True if the loss and every entry of its gradient are finite. A loss does not check this itself.
bool finite(const Output& output);

}  // namespace twinkle::loss
