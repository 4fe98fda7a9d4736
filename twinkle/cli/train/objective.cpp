#include "twinkle/cli/train/objective.h"

#include <algorithm>
#include <map>

#include "twinkle/base/random.h"
#include "twinkle/cli/train/goal_rows.h"
#include "twinkle/cli/train/rollouts.h"
#include "twinkle/cli/train/rows.h"
#include "twinkle/data/encode.h"
#include "twinkle/data/preprocessors/preprocessor.h"
#include "twinkle/loss/loss.h"

namespace twinkle::cli {
namespace {

struct LossOption {
  std::string_view name;
  OptionKind kind;
  std::string_view help;
};
constexpr std::array kLossOptions = {
    LossOption{"beta", OptionKind::kNumber,
               "of dpo, against the reference; of simpo; of grpo, weight of the KL [0.1; 2.5; 0]"},
    LossOption{"label_smoothing", OptionKind::kNumber, "of dpo: share of wrong pairs [0]"},
    LossOption{"loss_type", OptionKind::kText, "of dpo: sigmoid, hinge, ipo, kto_pair [sigmoid]"},
    LossOption{"sft_weight", OptionKind::kNumber, "of dpo: weight of the chosen replies' loss [0]"},
    LossOption{"reference_free", OptionKind::kFlag, "of dpo: no reference model"},
    LossOption{"gamma", OptionKind::kNumber, "of simpo: margin [0.5]"},
    LossOption{"lambda_orpo", OptionKind::kNumber, "of orpo: weight of the odds ratio [0.1]"},
    LossOption{"epsilon", OptionKind::kNumber, "of grpo: the ratio's clip [0.2]"},
    LossOption{"epsilon_high", OptionKind::kNumber, "of grpo: its clip above 1 [epsilon]"},
    LossOption{"entropy_coef", OptionKind::kNumber, "of grpo: weight of the entropy [0]"}};

engine::Example example(const data::Row& row) {
  return {.input_ids = data::integers(row, "input_ids"), .labels = data::integers(row, "labels")};
}

bool is_message_of(const Json& message, std::string_view role) {
  const Json *has = find(message, "role"), *content = find(message, "content");
  return has && has->is_string() && has->get_string() == role && content && content->is_string();
}

Prompt prompt_of(const Json& row) {
  Prompt out;
  const Json* messages = find(row, "messages");
  if (!messages || !messages->is_array()) return out;
  for (const Json& message : messages->get_array()) {
    if (is_message_of(message, "system")) out.system = get<std::string>(message, "content");
    if (!is_message_of(message, "user")) continue;
    out.user = get<std::string>(message, "content");
    break;
  }
  return out;
}

engine::ForwardBackward pass_of(const TrainingOptions& o) {
  return {.tenant = kTenant,
          .sequences = {},
          .loss = loss_class(o.goal.loss),
          .loss_options = boost::json::serialize(o.loss_options)};
}

// sft and pretrain.
class Texts : public Objective {
 public:
  Texts(const TrainingOptions& o, const text::Template& tmpl) : o_(o), tmpl_(tmpl) {}

  data::Dataset read(const std::string& file) const override {
    if (!is_of_chats(o_.goal.loss)) return text_rows(file, o_.files, tmpl_, o_.recipe.max_length);
    return trainable_rows(file, o_.files, tmpl_, o_.recipe.max_length);
  }
  Prompt prompt(const data::Row& row) const override { return prompt_of(row); }
  Work work(engine::Engine&, const data::Dataset& rows, const std::vector<int64_t>& batch,
            int64_t) override {
    Work out{pass_of(o_)};
    for (const int64_t i : batch) out.pass.sequences.push_back(example(rows.row(i)));
    return out;
  }
  bool is_mean() const override { return false; }

 private:
  const TrainingOptions& o_;
  const text::Template& tmpl_;
};

// dpo, orpo and simpo: each row is a chosen and a rejected chat.
class Pairs : public Objective {
 public:
  Pairs(const TrainingOptions& o, const text::Template& tmpl) : o_(o), tmpl_(tmpl) {
    const Json* free = o.loss_options.if_contains("reference_free");
    has_reference_ = o.goal.loss == "dpo" && !(free && free->get_bool());
  }

  data::Dataset read(const std::string& file) const override {
    return preference_rows(file, o_.files, tmpl_, o_.recipe.max_length);
  }
  Prompt prompt(const data::Row& row) const override { return prompt_of(row.at(kChosen)); }

  Work work(engine::Engine& engine, const data::Dataset& rows, const std::vector<int64_t>& batch,
            int64_t) override {
    Work out{pass_of(o_)};
    for (const int64_t i : batch)
      for (const char* side : {kChosen, kRejected})
        out.pass.sequences.push_back(example(rows.row(i).at(side).as_object()));
    if (!has_reference_) return out;
    const auto reference = engine.run<engine::ForwardResult>(
        engine::Forward{.tenant = kTenant, .sequences = out.pass.sequences, .disable_lora = true});
    for (size_t s = 0; s < reference.logps.size(); ++s)
      out.pass.sequences[s].extras["ref_logps"] = reference.logps[s];
    return out;
  }

  void note(Work& work, const engine::ForwardResult& result) const override {
    if (!has_reference_) return;
    double margins = 0, above = 0;
    const auto gain = [&](size_t s) {
      const std::vector<float>& reference = work.pass.sequences[s].extras.at("ref_logps");
      double sum = 0;
      for (size_t t = 0; t < reference.size(); ++t)
        sum += double{result.logps[s][t]} - double{reference[t]};
      return sum;
    };
    const Json* given = o_.loss_options.if_contains("beta");
    const double beta = given ? given->to_number<double>() : 0.1;
    const size_t pairs = work.pass.sequences.size() / 2;
    for (size_t p = 0; p < pairs; ++p) {
      const double margin = beta * (gain(2 * p) - gain(2 * p + 1));
      margins += margin;
      above += margin > 0 ? 1 : 0;
    }
    work.noted["rewards/margins"] = margins / static_cast<double>(pairs);
    work.noted["rewards/accuracies"] = 100 * above / static_cast<double>(pairs);
  }

 private:
  const TrainingOptions& o_;
  const text::Template& tmpl_;
  bool has_reference_ = false;
};

// grpo: each row is a prompt, whose replies the trained model samples.
class Rewarded : public Objective {
 public:
  Rewarded(const TrainingOptions& o, const text::Template& tmpl)
      : o_(o), tmpl_(tmpl), rollouts_(o.goal, tmpl, o.recipe.seed) {
    const Json* beta = o.loss_options.if_contains("beta");
    has_reference_ = beta && beta->to_number<double>() > 0;
  }

  data::Dataset read(const std::string& file) const override {
    return prompt_rows(file, o_.files, tmpl_, o_.recipe.max_length);
  }
  Prompt prompt(const data::Row& row) const override { return prompt_of(row); }
  void check(const engine::ModelInfo& model, const data::Dataset& rows) const override {
    for (int64_t i = 0; i < rows.size(); ++i) {
      const int64_t length = std::ssize(data::integers(rows.row(i), "input_ids"));
      require(length + o_.goal.max_tokens <= model.max_positions, Code::kInvalid,
              "cli: --max-tokens is ", o_.goal.max_tokens, ", and the prompt of ", rows.where(i),
              " has ", length, " tokens; together they must fit the model's ", model.max_positions,
              " positions");
    }
  }

  Work work(engine::Engine& engine, const data::Dataset& rows, const std::vector<int64_t>& batch,
            int64_t consumed) override {
    Work out{pass_of(o_)};
    out.pass.temperature = o_.goal.temperature;
    out.pass.sequences = rollouts_.sample(engine, rows, batch, consumed, out.noted);
    if (!has_reference_) return out;
    engine::Forward score{.tenant = kTenant, .sequences = out.pass.sequences};
    for (engine::Example& one : score.sequences) one.extras.clear();
    score.disable_lora = true;
    score.temperature = o_.goal.temperature;
    const auto reference = engine.run<engine::ForwardResult>(score);
    for (size_t s = 0; s < reference.logps.size(); ++s)
      out.pass.sequences[s].extras["ref_logps"] = reference.logps[s];
    return out;
  }

 private:
  const TrainingOptions& o_;
  const text::Template& tmpl_;
  Rollouts rollouts_;
  bool has_reference_ = false;
};

void add_tokens(const JsonObject& row, uint64_t& key) {
  for (const char* field : {"input_ids", "labels"}) {
    for (const int32_t value : data::integers(row, field))
      key = key_of(key, static_cast<uint64_t>(value));
    key = key_of(key, "next");
  }
}

}  // namespace

std::vector<AnyOption> loss_options(JsonObject& into) {
  std::vector<AnyOption> out;
  for (const LossOption& one : kLossOptions) {
    const auto get = [&into, one]() -> Json {
      if (const Json* given = into.if_contains(one.name)) return *given;
      return one.kind == OptionKind::kFlag ? Json(false) : Json("");
    };
    out.push_back({.name = one.name,
                   .help = one.help,
                   .kind = one.kind,
                   .limits = any(),
                   .get = get,
                   .set = [&into, one](const Json& value) { into[one.name] = value; }});
  }
  return out;
}

std::string loss_class(const std::string& loss) {
  static const std::map<std::string, std::string> kClasses = {
      {"dpo", "DPOLoss"}, {"orpo", "ORPOLoss"}, {"simpo", "SimPOLoss"}, {"grpo", "GRPOLoss"}};
  const auto found = kClasses.find(loss);
  return found == kClasses.end() ? "CrossEntropyLoss" : found->second;
}

bool is_of_pairs(const std::string& loss) {
  return loss == "dpo" || loss == "orpo" || loss == "simpo";
}

bool is_of_chats(const std::string& loss) { return loss != "pretrain"; }

void check_goal(const Goal& goal, const JsonObject& options, bool full) {
  const bool has_own = is_of_pairs(goal.loss) || goal.loss == "grpo";
  require(has_own || options.empty(), Code::kInvalid, "cli: --loss ", goal.loss, " has no option '",
          options.empty() ? std::string() : std::string(options.begin()->key()),
          "'; leave it out, or give the --loss that has it");
  loss::find(loss_class(goal.loss)).check(options);
  const auto number = [&options](const char* name) {
    const Json* given = options.if_contains(name);
    return given && given->is_number() ? given->to_number<double>() : 0;
  };
  const Json* free = options.if_contains("reference_free");
  const bool needs_base = (goal.loss == "dpo" && !(free && free->get_bool())) ||
                          (goal.loss == "grpo" && number("beta") > 0);
  require(!full || !needs_base, Code::kInvalid, "cli: --loss ", goal.loss,
          " compares with the base model, which --full changes; leave --full out, or ",
          goal.loss == "dpo" ? "give --reference-free" : "--beta");
  require((goal.loss == "grpo") == !goal.reward.empty(), Code::kInvalid, "cli: --loss is ",
          goal.loss,
          goal.loss == "grpo" ? ", which needs --reward FILE.py:NAME"
                              : ", which has no --reward; leave it out, or give --loss grpo");
}

std::unique_ptr<Objective> make_objective(const TrainingOptions& o, const text::Template& tmpl) {
  if (is_of_pairs(o.goal.loss)) return std::make_unique<Pairs>(o, tmpl);
  if (o.goal.loss == "grpo") return std::make_unique<Rewarded>(o, tmpl);
  return std::make_unique<Texts>(o, tmpl);
}

std::string fingerprint(const data::Dataset& rows) {
  uint64_t key = static_cast<uint64_t>(rows.size());
  for (const data::Row& row : rows.rows()) {
    if (row.contains("input_ids")) add_tokens(row, key);
    for (const auto& field : row)
      if (const JsonObject* one = field.value().if_object(); one && one->contains("input_ids"))
        add_tokens(*one, key);
  }
  return std::to_string(key);
}

}  // namespace twinkle::cli
