#include "twinkle/cli/train/objective.h"

#include "twinkle/base/random.h"
#include "twinkle/cli/train/goal_rows.h"
#include "twinkle/cli/train/losses.h"
#include "twinkle/cli/train/rollouts.h"
#include "twinkle/cli/train/rows.h"
#include "twinkle/data/encode.h"
#include "twinkle/data/preprocessors/preprocessor.h"

namespace twinkle::cli {
namespace {

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

// Scores the pass's sequences with the base model, for their ref_logps.
void add_reference(engine::Engine& engine, engine::ForwardBackward& pass) {
  engine::Forward score{.tenant = kTenant,
                        .sequences = pass.sequences,
                        .disable_lora = true,
                        .temperature = pass.temperature};
  for (engine::Example& one : score.sequences) one.extras.clear();
  const auto reference = engine.run<engine::ForwardResult>(score);
  for (size_t s = 0; s < reference.logps.size(); ++s)
    pass.sequences[s].extras["ref_logps"] = reference.logps[s];
}

// Nats by which a sequence is likelier than with the base model.
double gain(const Work& work, const engine::ForwardResult& result, size_t s) {
  const std::vector<float>& reference = work.pass.sequences[s].extras.at("ref_logps");
  double sum = 0;
  for (size_t t = 0; t < reference.size(); ++t)
    sum += double{result.logps[s][t]} - double{reference[t]};
  return sum;
}

// sft and pretrain.
class Texts : public Objective {
 public:
  Texts(const TrainingOptions& o, const text::Template& tmpl) : o_(o), tmpl_(tmpl) {}

  data::Dataset read(const std::string& file) const override {
    if (rows_of(o_.goal.loss) == RowKind::kTexts)
      return text_rows(file, o_.files, tmpl_, o_.recipe.max_length);
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

// dpo, orpo, simpo and reward: each row is a chosen and a rejected chat.
class Pairs : public Objective {
 public:
  Pairs(const TrainingOptions& o, const text::Template& tmpl)
      : o_(o), tmpl_(tmpl), has_scores_(o.goal.loss == "reward") {}

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
    for (engine::Example& one : out.pass.sequences)
      if (has_scores_) one.labels.clear();  // a reply is scored as a whole
    if (needs_base(o_)) add_reference(engine, out.pass);
    return out;
  }

  void note(Work& work, const engine::ForwardResult& result) const override {
    if (!needs_base(o_) && !has_scores_) return;
    const double beta = has_scores_ ? 1 : loss_number(o_, "beta");
    const auto score = [&](size_t s) {
      return has_scores_ ? double{result.label_logits[s].at(0)} : gain(work, result, s);
    };
    double margins = 0, above = 0;
    const size_t pairs = work.pass.sequences.size() / 2;
    for (size_t p = 0; p < pairs; ++p) {
      const double margin = beta * (score(2 * p) - score(2 * p + 1));
      margins += margin;
      above += margin > 0 ? 1 : 0;
    }
    work.noted["rewards/margins"] = margins / static_cast<double>(pairs);
    work.noted["rewards/accuracies"] = 100 * above / static_cast<double>(pairs);
  }

 private:
  const TrainingOptions& o_;
  const text::Template& tmpl_;
  const bool has_scores_;
};

// kto: each row is a chat whose reply is desirable or not, and that chat with another reply.
class Judged : public Objective {
 public:
  Judged(const TrainingOptions& o, const text::Template& tmpl) : o_(o), tmpl_(tmpl) {
    const Json* baseline = o.loss_options.if_contains("baseline");
    has_others_ = !baseline || *baseline != "zero";
  }

  data::Dataset read(const std::string& file) const override {
    return judged_rows(file, o_.files, tmpl_, o_.recipe.max_length, has_others_);
  }
  Prompt prompt(const data::Row& row) const override { return prompt_of(row.at(kReply)); }

  Work work(engine::Engine& engine, const data::Dataset& rows, const std::vector<int64_t>& batch,
            int64_t) override {
    Work out{pass_of(o_)};
    std::vector<float> marks;
    for (const char* reply : {kReply, kOtherReply}) {
      if (reply == kOtherReply && !has_others_) continue;
      for (const int64_t i : batch) {
        const data::Row& row = rows.row(i);
        out.pass.sequences.push_back(example(row.at(reply).as_object()));
        marks.push_back(reply == kOtherReply ? -1.0F : row.at(kDesirable).as_bool() ? 1.0F : 0.0F);
      }
    }
    add_reference(engine, out.pass);
    for (size_t s = 0; s < marks.size(); ++s)
      out.pass.sequences[s].extras["desirable"] = {marks[s]};
    return out;
  }

  // Means of the batch's rewards, of a kind of reply that it has.
  void note(Work& work, const engine::ForwardResult& result) const override {
    const double beta = loss_number(o_, "beta");
    for (const auto& [name, mark] :
         {std::pair{"rewards/chosen", 1.0F}, {"rewards/rejected", 0.0F}}) {
      double sum = 0, count = 0;
      for (size_t s = 0; s < work.pass.sequences.size(); ++s) {
        if (work.pass.sequences[s].extras.at("desirable")[0] != mark) continue;
        sum += beta * gain(work, result, s);
        ++count;
      }
      if (count > 0) work.noted[name] = sum / count;
    }
  }

 private:
  const TrainingOptions& o_;
  const text::Template& tmpl_;
  bool has_others_ = true;
};

// grpo: each row is a prompt, whose replies the trained model samples.
class Rewarded : public Objective {
 public:
  Rewarded(const TrainingOptions& o, const text::Template& tmpl)
      : o_(o), tmpl_(tmpl), rollouts_(o.goal, tmpl, o.recipe.seed) {}

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
    if (needs_base(o_)) add_reference(engine, out.pass);
    return out;
  }

 private:
  const TrainingOptions& o_;
  const text::Template& tmpl_;
  Rollouts rollouts_;
};

// The parts of a row that were encoded: itself, or each of its chats.
std::vector<const JsonObject*> sequences_of(const data::Row& row) {
  std::vector<const JsonObject*> out;
  if (row.contains("input_ids")) out.push_back(&row);
  for (const auto& field : row)
    if (const JsonObject* one = field.value().if_object(); one && one->contains("input_ids"))
      out.push_back(one);
  return out;
}

void add_tokens(const JsonObject& row, uint64_t& key) {
  for (const char* field : {"input_ids", "labels"}) {
    for (const int32_t value : data::integers(row, field))
      key = key_of(key, static_cast<uint64_t>(value));
    key = key_of(key, "next");
  }
}

}  // namespace

void Objective::check(const engine::ModelInfo& model, const data::Dataset& rows) const {
  for (int64_t i = 0; i < rows.size(); ++i) {
    for (const JsonObject* one : sequences_of(rows.row(i))) {
      const int64_t length = std::ssize(data::integers(*one, "input_ids"));
      require(length <= model.max_positions, Code::kInvalid, "cli: ", rows.where(i), " has ",
              length, " tokens, the model has ", model.max_positions,
              " positions; shorten the row, or lower --max-length to find all such rows");
    }
  }
}

std::unique_ptr<Objective> make_objective(const TrainingOptions& o, const text::Template& tmpl) {
  switch (rows_of(o.goal.loss)) {
    case RowKind::kPairs:
      return std::make_unique<Pairs>(o, tmpl);
    case RowKind::kJudged:
      return std::make_unique<Judged>(o, tmpl);
    case RowKind::kPrompts:
      return std::make_unique<Rewarded>(o, tmpl);
    default:
      return std::make_unique<Texts>(o, tmpl);
  }
}

std::string fingerprint(const data::Dataset& rows) {
  uint64_t key = static_cast<uint64_t>(rows.size());
  for (const data::Row& row : rows.rows())
    for (const JsonObject* one : sequences_of(row)) add_tokens(*one, key);
  return std::to_string(key);
}

}  // namespace twinkle::cli
