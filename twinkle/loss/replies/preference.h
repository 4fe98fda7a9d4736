// Shared by the losses of preferences: pairs of a chosen and a rejected reply, adjacent in a
// batch, and functions of the sums of log p over each reply's scored rows. Of the whole operation.
#pragma once
#include <vector>

#include "twinkle/loss/options.h"
#include "twinkle/loss/rows.h"

namespace twinkle::loss {

struct Replies {
  std::vector<double> sums, counts;  // [S] of log p, of scored rows

  size_t num_pairs() const { return sums.size() / 2; }
  std::vector<double> means() const;  // [S]
};

// Error kInvalid: an odd number of sequences where these are pairs, one without a scored row, a
// weight other than 0 and 1.
Replies replies_of(const Inputs& inputs, std::string_view loss, bool pairs = true);

// [S] the same sums of the reference, from one of the extras ref_logps, per row, and ref_sums, per
// sequence. Error kInvalid: none of them, or both.
std::vector<double> reference_sums(const Inputs& inputs, std::string_view loss);

// A loss of the sums, and d loss / d sums.
struct OfReplies {
  double loss = 0;
  std::vector<double> grad;  // [S]
};
// Adds coefficient times the chosen replies' -log p, the mean over all of their rows.
void add_chosen_nll(const Replies& replies, double coefficient, OfReplies& out);
// Adds the mean over pairs of -log sigmoid(margin), given d margin / d sum of [S].
void add_preferred(const std::vector<double>& margins, const std::vector<double>& slopes,
                   double coefficient, OfReplies& out);
Output output_of(const Inputs& inputs, const OfReplies& of_replies);

template <OfReplies (*make)(const Inputs&, const Json&)>
Loss of_pairs(Loss loss) {
  loss.run = [](const Inputs& in, const Json& json) { return output_of(in, make(in, json)); };
  loss.doubles = true;
  return loss;
}

}  // namespace twinkle::loss
