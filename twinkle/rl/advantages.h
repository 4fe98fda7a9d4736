// Advantages: how much better a reply, or a token of it, is than expected. Pure functions of
// rewards and a critic's values, in doubles: the float32 mean of equal rewards is not always that
// reward, and what would be left is divided by next to nothing. No tensor is known here.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace twinkle::rl {

// A difference is divided by the sample standard deviation + 1e-8 of the prompt's rewards, or of
// all, or by 1.
enum class Scale { kGroup, kBatch, kNone };
// The mean that a reward is compared with: of its prompt's rewards (GRPO: Shao et al. 2024, arXiv
// 2402.03300, 4.1.2), or of the others among them (RLOO: Ahmadian et al. 2024, arXiv 2402.14740,
// eq. 7).
enum class Baseline { kGroup, kOthers };

struct GroupOptions {
  int64_t num_generations = 1;  // G rewards that follow each other are of one prompt, at least 1
  Scale scale = Scale::kGroup;
  Baseline baseline = Baseline::kGroup;  // kOthers needs a G of at least 2
};

// [N] advantages of N finite rewards: each less its baseline, divided as `scale` says. Equal
// rewards of a prompt give exact zeros. With G = 1 there is no mean of a prompt's: kGroup gives the
// rewards as they are, the other scales take the batch's mean off. Error kInvalid: N is no multiple
// of G.
std::vector<double> group_advantages(std::span<const double> rewards, const GroupOptions& options);

double mean_of(std::span<const double> values);       // there is at least one
double deviation_of(std::span<const double> values);  // the sample's; 0 of fewer than two

struct Decay {
  double gamma = 1, lambda = 0.95;  // both from 0 to 1
};

// Writes the advantages of one reply's T positions (Schulman et al. 2016, arXiv 1506.02438, eq.
// 16): A_t = d_t + gamma lambda A_t+1, d_t = r_t + gamma V_t+1 - V_t, V = A = 0 after the last. A
// position with a mask of 0 is stepped over and gets 0; its reward and value are not read.
void token_advantages(std::span<const double> rewards, std::span<const double> values,
                      std::span<const double> masks, const Decay& decay,
                      std::span<double> advantages);

// Gives the values whose mask is not 0 a mean of 0 and a deviation of 1: all are divided by the
// population's + 1e-8.
void whiten(std::span<double> values, std::span<const double> masks);

}  // namespace twinkle::rl
