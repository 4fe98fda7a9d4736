// Losses that are sums over the scored rows (weight != 0) of a function of the row alone: what a
// row contributes is known before any other row's log-probability is. In double; a row's weight, of
// either sign, multiplies it.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "twinkle/loss/loss.h"

namespace twinkle::loss {

struct Term {
  double value = 0;
  double grad = 0;  // d value / d logprob
};

struct RowLoss {
  std::function<Term(int64_t row, double logprob)> term;  // without the row's weight
  double num_tokens = 0;                                  // as of Output
  at::Tensor entropy_grad = {};                           // [N] or undefined, as of Loss
};

// Any of an Inputs' tensors, float32 or float64.
std::vector<double> doubles(const at::Tensor& values);
// One of the extras; where it is not given, `otherwise` for every row.
std::vector<double> doubles(const Inputs& inputs, const std::string& extra, double otherwise);

Output run_rows(const Inputs& inputs, const RowLoss& loss);
TokenGrad prepare_rows(const Inputs& inputs, const RowLoss& loss);
// Of each sequence its scored rows, in order.
std::vector<std::vector<size_t>> scored_rows(const Inputs& inputs);
// Sum of grad * value over rows, where the gradient is not 0.
double through(const Inputs& inputs, const at::Tensor& grad, const at::Tensor& values);
// The same of the inputs' entropies; 0 without a gradient.
double through_entropies(const Inputs& inputs, const at::Tensor& entropy_grad);

// The functions of a Loss from one that makes the RowLoss of its inputs and options.
template <RowLoss (*make)(const Inputs&, const Json&)>
Loss of_rows(Loss loss) {
  loss.run = [](const Inputs& in, const Json& json) { return run_rows(in, make(in, json)); };
  loss.prepare = [](const Inputs& in, const Json& json) {
    return prepare_rows(in, make(in, json));
  };
  loss.entropy_grad = [](const Inputs& in, const Json& json) {
    return make(in, json).entropy_grad;
  };
  loss.doubles = true;
  return loss;
}

}  // namespace twinkle::loss
