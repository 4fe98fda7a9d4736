// The losses of policies and of preferences against their formulas, written out in float64, and
// their gradients against finite differences of their own values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "twinkle/base/error_for_test.h"
#include "twinkle/loss/loss.h"

namespace twinkle::loss {
namespace {

constexpr int64_t kReplyRows = 15;
const std::vector<int64_t> kBounds{0, 4, 10, 11, kReplyRows};
const std::vector<double> kOfSequence{0.7, -1.3, 2.0, -0.4};
using Row = std::vector<double>;

Inputs batch() {
  at::manual_seed(9);
  Inputs in{.logprobs = -at::rand({kReplyRows}, at::kDouble) * 3 - 0.01,
            .weights = at::ones({kReplyRows}),
            .cu_seqlens = kBounds};
  in.weights[2] = 0;
  in.weights[14] = 0;
  at::Tensor advantages = at::empty({kReplyRows});
  for (size_t s = 0; s < 4; ++s)
    advantages.slice(0, kBounds[s], kBounds[s + 1]).fill_(kOfSequence[s]);
  in.extras = {{"advantages", advantages},
               {"old_logps", in.logprobs + at::randn({kReplyRows}, at::kDouble) * 0.4},
               {"ref_logps", in.logprobs + at::randn({kReplyRows}, at::kDouble) * 0.3}};
  return in;
}

// Per sequence what `of` gives of its scored rows' log p and the extras'.
std::vector<Row> rows_of(
    const std::function<double(double lp, double old, double ref, double a)>& of) {
  const Inputs in = batch();
  const auto at = [&](const at::Tensor& x, int64_t t) { return x[t].item<double>(); };
  std::vector<Row> out(4);
  for (size_t s = 0; s < 4; ++s)
    for (int64_t t = kBounds[s]; t < kBounds[s + 1]; ++t)
      if (at(in.weights, t) != 0)
        out[s].push_back(of(at(in.logprobs, t), at(in.extras.at("old_logps"), t),
                            at(in.extras.at("ref_logps"), t), at(in.extras.at("advantages"), t)));
  return out;
}
double sum(const Row& row) { return std::accumulate(row.begin(), row.end(), 0.0); }
double mean(const Row& row) { return sum(row) / static_cast<double>(row.size()); }
double of_sequences(const std::vector<Row>& rows) {
  Row means;
  for (const Row& row : rows) means.push_back(mean(row));
  return mean(means);
}
double of_rows(const std::vector<Row>& rows) {
  Row all;
  for (const Row& row : rows) all.insert(all.end(), row.begin(), row.end());
  return mean(all);
}
double clipped(double lp, double old, double, double a) {
  const double r = std::exp(lp - old);
  return -std::min(r * a, std::clamp(r, 0.8, 1.2) * a);
}

Inputs read_by(const Loss& loss) {
  Inputs in = batch();
  std::erase_if(in.extras, [&](const auto& extra) { return !loss.extra(extra.first); });
  return in;
}
double value(const char* name, const char* options = "{}") {
  const Loss& loss = find(name);
  return run(loss, read_by(loss), parse_json(options, "options")).loss;
}

TEST(PolicyLosses, AreTheirFormulas) {
  const std::vector<Row> surrogate = rows_of(clipped);
  EXPECT_NEAR(value("GRPOLoss"), of_sequences(surrogate), 1e-7);
  EXPECT_NEAR(value("BNPOLoss"), of_rows(surrogate), 1e-7);
  EXPECT_NEAR(value("PPOLoss"), of_rows(surrogate), 1e-7);
  EXPECT_NEAR(value("PPOLoss", R"({"loss_agg_mode": "seq-mean-token-mean"})"),
              of_sequences(surrogate), 1e-7);
  EXPECT_NEAR(value("DRGRPOLoss", R"({"max_completion_length": 10})"), of_rows(surrogate) * 13 / 40,
              1e-7);
  EXPECT_NEAR(value("GRPOLoss", R"({"beta": 0.3})"),
              of_sequences(surrogate) +
                  0.3 * of_sequences(rows_of([](double lp, double, double ref, double) {
                    return std::exp(ref - lp) - (ref - lp) - 1;
                  })),
              1e-7);
  const auto weight = [](double lp, double old, double, double a) {
    return -std::min(std::exp(lp - old), 1.3) * a * lp;
  };
  EXPECT_NEAR(value("CISPOLoss", R"({"epsilon_high": 0.3})"), of_rows(rows_of(weight)), 1e-7);
  EXPECT_NEAR(value("CISPOLoss", R"({"epsilon_high": 0.3, "num_items_in_batch": 26})"),
              of_rows(rows_of(weight)) / 2, 1e-7);
  EXPECT_NEAR(value("SAPOLoss", R"({"tau_pos": 1.5, "tau_neg": 0.6})"),
              of_sequences(rows_of([](double lp, double old, double, double a) {
                const double tau = a > 0 ? 1.5 : 0.6;
                return -4 / tau / (1 + std::exp(-tau * (std::exp(lp - old) - 1))) * a;
              })),
              1e-7);
  const auto gaps = rows_of([](double lp, double old, double, double) { return lp - old; });
  Row each;
  for (size_t s = 0; s < 4; ++s) each.push_back(clipped(mean(gaps[s]), 0, 0, kOfSequence[s]));
  EXPECT_NEAR(value("GSPOLoss"), mean(each), 1e-7);
}

TEST(PolicyLosses, TakeEntropyOff) {
  for (const char* name : {"GRPOLoss", "GSPOLoss"}) {
    Inputs in = read_by(find(name));
    in.entropies = at::full({kReplyRows}, 2.0);
    const Json options = JsonObject{{"entropy_coef", 0.01}};
    EXPECT_NEAR(run(find(name), in, options).loss, value(name) - 0.02, 1e-7) << name;
    const at::Tensor grad = entropy_grad(find(name), in, options);
    EXPECT_NEAR(grad[0].item<double>(), -0.01 / 3 / 4, 1e-9);
    EXPECT_EQ(grad[2].item<double>(), 0) << "a row without weight";
    EXPECT_FALSE(entropy_grad(find(name), in, Json{}).defined());
  }
}

TEST(PolicyLosses, WithoutOldOnesThePolicyItselfSampled) {
  for (const char* name : {"GRPOLoss", "GSPOLoss"}) {
    Inputs in = read_by(find(name));
    in.extras.erase("old_logps");
    const Output out = run(find(name), in);
    EXPECT_NEAR(out.loss, -mean(kOfSequence), 1e-7);
    EXPECT_NEAR(out.grad[0].item<double>(), -0.7 / 3 / 4, 1e-7) << "the policy gradient";
  }
}

TEST(PolicyLosses, HoldRatiosBeyondE20) {
  Inputs in = read_by(find("CISPOLoss"));
  in.extras["old_logps"] = in.logprobs - 100;
  const Json options = JsonObject{{"epsilon", 1e12}};
  const double all = of_rows(
      rows_of([](double lp, double, double, double a) { return -std::exp(20.0) * a * lp; }));
  EXPECT_NEAR(run(find("CISPOLoss"), in, options).loss / all, 1, 1e-7);
}

struct Sums {
  Row of, reference, means;
  double chosen_nll;
};
Sums sums_of() {
  const auto rows = rows_of([](double lp, double, double, double) { return lp; });
  const auto refs = rows_of([](double, double, double ref, double) { return ref; });
  Sums out;
  for (size_t s = 0; s < 4; ++s) {
    out.of.push_back(sum(rows[s]));
    out.reference.push_back(sum(refs[s]));
    out.means.push_back(mean(rows[s]));
  }
  out.chosen_nll = -(out.of[0] + out.of[2]) / 4;  // 3 rows and 1
  return out;
}
double preferred(double margin) { return std::log1p(std::exp(-margin)); }
double of_margins(const Row& x, double beta, double gamma = 0) {
  return (preferred(beta * (x[0] - x[1]) - gamma) + preferred(beta * (x[2] - x[3]) - gamma)) / 2;
}

TEST(PreferenceLosses, AreTheirFormulas) {
  const Sums s = sums_of();
  Row gains, odds;
  for (size_t i = 0; i < 4; ++i) {
    gains.push_back(s.of[i] - s.reference[i]);
    odds.push_back(s.means[i] - std::log(1 - std::exp(s.means[i])));
  }
  EXPECT_NEAR(value("SimPOLoss", R"({"beta": 2.0, "gamma": 0.3})"), of_margins(s.means, 2, 0.3),
              1e-9);
  EXPECT_NEAR(value("CPOLoss", R"({"beta": 0.2, "bc_coef": 0.7})"),
              of_margins(s.of, 0.2) + 0.7 * s.chosen_nll, 1e-9);
  EXPECT_NEAR(value("ORPOLoss", R"({"lambda_orpo": 0.4})"),
              s.chosen_nll + 0.4 * of_margins(odds, 1), 1e-9);
  EXPECT_NEAR(value("DPOLoss", R"({"beta": 0.7, "sft_weight": 0.5})"),
              of_margins(gains, 0.7) + 0.5 * s.chosen_nll, 1e-9);
  EXPECT_NEAR(value("DPOLoss", R"({"beta": 0.3, "label_smoothing": 0.2})"),
              0.8 * of_margins(gains, 0.3) + 0.2 * of_margins(gains, -0.3), 1e-9);
  EXPECT_NEAR(value("DPOLoss", R"({"reference_free": true})"), of_margins(s.of, 0.1), 1e-9);
  const auto over_pairs = [&](const std::function<double(double, double)>& of) {
    return (of(gains[0], gains[1]) + of(gains[2], gains[3])) / 2;
  };
  EXPECT_NEAR(value("DPOLoss", R"({"loss_type": "hinge", "beta": 0.4})"),
              over_pairs([](double w, double l) { return std::max(0.0, 1 - 0.4 * (w - l)); }),
              1e-9);
  EXPECT_NEAR(value("DPOLoss", R"({"loss_type": "ipo", "beta": 0.5})"),
              over_pairs([](double w, double l) { return std::pow(0.5 * (w - l) - 1, 2); }), 1e-9);
  EXPECT_NEAR(value("DPOLoss", R"({"loss_type": "kto_pair", "beta": 0.2})"),
              over_pairs([](double w, double l) {
                return 1 - 1 / (1 + std::exp(-0.2 * w)) + 1 / (1 + std::exp(-0.2 * l));
              }),
              1e-9);
}

TEST(PreferenceLosses, TakeTheReferencesSumsOfEachSequence) {
  Inputs in = read_by(find("DPOLoss"));
  const double expected = run(find("DPOLoss"), in).loss;
  in.extras = {{"ref_sums", at::tensor(sums_of().reference, at::kDouble)}};
  EXPECT_NEAR(run(find("DPOLoss"), in).loss, expected, 1e-12);
  in.extras["ref_sums"] = at::zeros({kReplyRows});
  EXPECT_EQ(invalid_of([&] { run(find("DPOLoss"), in); }),
            "loss: dpo: ref_sums has 15 entries, it must have one per sequence (4)");
}

TEST(PreferenceLosses, RefuseWhatAreNoPairs) {
  const auto text = [](const char* name, const std::function<void(Inputs&)>& change) {
    Inputs in = read_by(find(name));
    change(in);
    return invalid_of([&] { run(find(name), in); });
  };
  EXPECT_EQ(text("CPOLoss", [](Inputs& in) { in.cu_seqlens = {0, 4, 10, kReplyRows}; }),
            "loss: CPOLoss needs pairs, each chosen reply followed by its rejected one, but there "
            "are 3 sequences: pass an even number of them");
  EXPECT_EQ(text("CPOLoss", [](Inputs& in) { in.weights[10] = 0; }),
            "loss: CPOLoss compares replies, but sequence 2 has no label: every reply must have "
            "one");
  EXPECT_EQ(text("CPOLoss", [](Inputs& in) { in.weights[10] = 0.5; }),
            "loss: CPOLoss weighs no rows, but a weight is 0.5, it must be 0 or 1");
  EXPECT_EQ(text("DPOLoss", [](Inputs& in) { in.extras.clear(); }),
            "loss: DPOLoss needs 'ref_logps' or 'ref_sums', pass one with the batch");
}

TEST(Kto, IsItsFormula) {
  const Sums s = sums_of();
  const auto gain = [&](size_t i) { return s.of[i] - s.reference[i]; };
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const auto kto = [](std::vector<float> marks, const char* options) {
    Inputs in = read_by(find("KTOLoss"));
    in.extras["desirable"] = at::tensor(marks);
    return run(find("KTOLoss"), in, parse_json(options, "options"));
  };
  const double z = std::max(0.0, (gain(1) + gain(3)) / 2);
  EXPECT_NEAR(kto({1, -1, 0, -1}, R"({"beta": 0.3, "desirable_weight": 1.5})").loss,
              (1.5 * (1 - sigmoid(0.3 * (gain(0) - z))) + 1 - sigmoid(0.3 * (z - gain(2)))) / 2,
              1e-9);
  EXPECT_NEAR(
      kto({1, 0, 0, 1}, R"({"beta": 0.3, "baseline": "zero", "undesirable_weight": 0.5})").loss,
      (2 - sigmoid(0.3 * gain(0)) - sigmoid(0.3 * gain(3)) +
       0.5 * (2 - sigmoid(-0.3 * gain(1)) - sigmoid(-0.3 * gain(2)))) /
          4,
      1e-9);
  const at::Tensor grad = kto({1, -1, 0, -1}, "{}").grad;
  EXPECT_EQ(grad.slice(0, 4, 10).abs().sum().item<double>(), 0) << "a reply to another prompt";
}

TEST(Kto, RefusesABaselineThatItCannotHave) {
  const auto text = [](float mark, const char* options) {
    Inputs in = read_by(find("KTOLoss"));
    in.extras["desirable"] = at::tensor({1.0F, 0.0F, mark, 1.0F});
    return invalid_of([&] { run(find("KTOLoss"), in, parse_json(options, "options")); });
  };
  EXPECT_EQ(text(0, "{}"),
            "loss: KTOLoss needs replies to other prompts, whose desirable is None, to estimate "
            "its baseline: add some to each batch, or set baseline='zero'");
  EXPECT_EQ(text(-1, R"({"baseline": "zero"})"),
            "loss: KTOLoss has baseline 'zero', but desirable is None of 1 sequences: leave them "
            "out");
}

TEST(Opsd, IsItsFormula) {
  for (const double sign : {1.0, -1.0}) {
    Inputs in = read_by(find("OPSDLoss"));
    in.extras["teacher_logps"] = batch().extras["ref_logps"];
    const Json options = JsonObject{{"reverse", sign > 0}};
    const auto k3 = [&](double lp, double, double ref, double) {
      return std::exp(sign * (ref - lp)) - sign * (ref - lp) - 1;
    };
    EXPECT_NEAR(run(find("OPSDLoss"), in, options).loss, of_rows(rows_of(k3)), 1e-7);
    in.extras["teacher_logps"] = in.logprobs + 11;
    const Output far = run(find("OPSDLoss"), in, options);
    EXPECT_NEAR(far.loss, std::exp(sign * 10) - sign * 10 - 1, 1e-7) << "held at 10";
    EXPECT_EQ(far.grad.abs().sum().item<double>(), 0);
  }
}

struct Case {
  const char *name, *options;
};

TEST(PolicyAndPreferenceLosses, HaveTheGradientsOfFiniteDifferences) {
  for (const Case& c :
       {Case{"GRPOLoss", R"({"beta": 0.2})"}, Case{"PPOLoss", "{}"},
        Case{"GSPOLoss", R"({"beta": 0.2})"}, Case{"SAPOLoss", R"({"tau_neg": 0.6})"},
        Case{"BNPOLoss", "{}"}, Case{"DRGRPOLoss", "{}"}, Case{"DPOLoss", "{}"},
        Case{"DPOLoss", R"({"label_smoothing": 0.2, "sft_weight": 0.3})"},
        Case{"DPOLoss", R"({"loss_type": "hinge"})"},
        Case{"DPOLoss", R"({"loss_type": "ipo", "beta": 0.5})"},
        Case{"DPOLoss", R"({"loss_type": "kto_pair"})"}, Case{"SimPOLoss", "{}"},
        Case{"CPOLoss", "{}"}, Case{"ORPOLoss", R"({"lambda_orpo": 0.4})"},
        Case{"KTOLoss", R"({"baseline": "zero"})"}, Case{"OPSDLoss", "{}"},
        Case{"OPSDLoss", R"({"reverse": false})"}}) {
    const Loss& loss = find(c.name);
    const Json options = parse_json(c.options, "options");
    Inputs in = read_by(loss);
    if (loss.extra("desirable")) in.extras["desirable"] = at::tensor({1.0F, 0.0F, 0.0F, 1.0F});
    if (loss.extra("teacher_logps")) in.extras["teacher_logps"] = batch().extras["ref_logps"];
    const at::Tensor grad = run(loss, in, options).grad, start = in.logprobs;
    for (int64_t t = 0; t < kReplyRows; ++t) {
      const auto moved = [&](double by) {
        in.logprobs = start.clone();
        in.logprobs[t] += by;
        return run(loss, in, options).loss;
      };
      EXPECT_NEAR(grad[t].item<double>(), (moved(1e-6) - moved(-1e-6)) / 2e-6, 1e-8)
          << c.name << c.options << " " << t;
    }
    in.logprobs = start.to(at::kFloat);
    EXPECT_TRUE(at::allclose(run(loss, in, options).grad.to(at::kDouble), grad, 1e-4, 1e-6))
        << c.name << ": of the engine's float32";
  }
}

}  // namespace
}  // namespace twinkle::loss
