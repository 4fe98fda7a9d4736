#include "twinkle/cli/train/losses.h"

#include <algorithm>
#include <array>

#include "twinkle/base/error.h"
#include "twinkle/loss/loss.h"

namespace twinkle::cli {
namespace {

struct Kind {
  std::string_view name, engine;  // the engine's name of the loss
  RowKind rows;
  bool has_options = true;
};
constexpr std::array kKinds = {
    Kind{"sft", "cross_entropy", RowKind::kChats, false},
    Kind{"pretrain", "cross_entropy", RowKind::kTexts, false},
    Kind{"dpo", "dpo", RowKind::kPairs},
    Kind{"orpo", "orpo", RowKind::kPairs},
    Kind{"simpo", "simpo", RowKind::kPairs},
    Kind{"kto", "kto", RowKind::kJudged},
    Kind{"reward", "reward", RowKind::kPairs},
    Kind{"grpo", "grpo", RowKind::kPrompts},
};

const Kind& kind_of(std::string_view loss) {
  const auto* found = std::ranges::find(kKinds, loss, &Kind::name);
  require(found != kKinds.end(), Code::kInternal, "cli: no --loss ", loss);
  return *found;
}

JsonArray options_in_engine(const Kind& kind) {
  return loss::find(kind.engine).options().as_array();
}

// An option as one loss has it, or several that say the same of it.
struct Meaning {
  std::string losses, help, otherwise;
};

// An option of one or several losses.
struct Shared {
  std::string name;
  OptionKind kind;
  std::vector<Meaning> meanings = {};
  std::string help = {};

  void add(std::string_view loss, const Json& option) {
    Meaning meaning{std::string(loss), get<std::string>(option, "help"), ""};
    const JsonArray& texts = option.at("one_of").as_array();
    for (size_t i = 0; i < texts.size(); ++i)
      meaning.help += (i == 0                 ? ": '"
                       : i + 1 < texts.size() ? ", '"
                                              : " or '") +
                      std::string(texts[i].get_string()) + "'";
    const size_t open = meaning.help.rfind(" [");
    if (open != meaning.help.npos && meaning.help.ends_with(']')) {
      meaning.otherwise = meaning.help.substr(open + 2, meaning.help.size() - open - 3);
      meaning.help.resize(open);
    } else if (kind != OptionKind::kFlag) {
      meaning.otherwise = told(option.at("default"));
    }
    for (Meaning& other : meanings)
      if (other.help == meaning.help && other.otherwise == meaning.otherwise)
        return void(other.losses.append(", ").append(loss));
    meanings.push_back(std::move(meaning));
  }

  void write_help() {
    std::string otherwise;
    for (const Meaning& one : meanings) {
      help.append(help.empty() ? "of " : "; of ").append(one.losses).append(": ").append(one.help);
      if (!one.otherwise.empty())
        otherwise.append(otherwise.empty() ? "" : "; ").append(one.otherwise);
    }
    if (!otherwise.empty()) help.append(" [").append(otherwise).append("]");
  }
};

OptionKind option_kind(const Json& option) {
  constexpr std::array kNames = {"flag", "integer", "number", "text"};
  const auto* found = std::ranges::find(kNames, get<std::string>(option, "kind"));
  return static_cast<OptionKind>(found - kNames.begin());
}

std::vector<Shared> shared_options() {
  std::vector<Shared> out;
  for (const Kind& kind : kKinds) {
    if (!kind.has_options) continue;
    for (const Json& option : options_in_engine(kind)) {
      const auto name = get<std::string>(option, "name");
      auto found = std::ranges::find(out, name, &Shared::name);
      if (found == out.end()) found = out.insert(found, Shared{name, option_kind(option)});
      found->add(kind.name, option);
    }
  }
  for (Shared& one : out) one.write_help();
  return out;
}

}  // namespace

RowKind rows_of(std::string_view loss) { return kind_of(loss).rows; }

std::string loss_class(std::string_view loss) {
  return std::string(loss::find(kind_of(loss).engine).class_name);
}

std::vector<AnyOption> loss_options(JsonObject& into) {
  static const std::vector<Shared> kShared = shared_options();
  std::vector<AnyOption> out;
  for (const Shared& one : kShared) {
    const auto get = [&into, &one]() -> Json {
      if (const Json* given = into.if_contains(one.name)) return *given;
      return one.kind == OptionKind::kFlag ? Json(false) : Json("");
    };
    out.push_back({.name = one.name,
                   .help = one.help,
                   .kind = one.kind,
                   .limits = any(),  // each loss has its own
                   .get = get,
                   .set = [&into, &one](const Json& value) { into[one.name] = value; }});
  }
  return out;
}

double loss_number(const TrainingOptions& o, std::string_view name) {
  if (const Json* given = o.loss_options.if_contains(name)) return given->to_number<double>();
  for (const Json& option : options_in_engine(kind_of(o.goal.loss)))
    if (get<std::string>(option, "name") == name) return option.at("default").to_number<double>();
  fail(Code::kInternal, "cli: --loss ", o.goal.loss, " has no ", name);
}

bool needs_base(const TrainingOptions& o) {
  const Json* free = o.loss_options.if_contains("reference_free");
  const bool has_reference = !(free && free->is_bool() && free->get_bool());
  return (o.goal.loss == "dpo" && has_reference) || o.goal.loss == "kto" ||
         (o.goal.loss == "grpo" && loss_number(o, "beta") > 0);
}

void check_goal(const TrainingOptions& o) {
  const std::string& loss = o.goal.loss;
  require(kind_of(loss).has_options || o.loss_options.empty(), Code::kInvalid, "cli: --loss ", loss,
          " has no option '",
          o.loss_options.empty() ? std::string() : std::string(o.loss_options.begin()->key()),
          "'; leave it out, or give the --loss that has it");
  loss::find(kind_of(loss).engine).check(o.loss_options);
  const bool is_dpo = loss == "dpo", is_grpo = loss == "grpo";
  require(!o.recipe.full || !needs_base(o), Code::kInvalid, "cli: --loss ", loss,
          " compares with the base model, which --full changes; leave --full out",
          is_dpo    ? ", or give --reference-free"
          : is_grpo ? ", or --beta"
                    : "");
  require(!o.recipe.full || loss != "reward", Code::kInvalid,
          "cli: --loss reward trains a head of one label beside an adapter; leave --full out");
  require(is_grpo == !o.goal.reward.empty(), Code::kInvalid, "cli: --loss is ", loss,
          is_grpo ? ", which needs --reward FILE.py:NAME"
                  : ", which has no --reward; leave it out, or give --loss grpo");
}

}  // namespace twinkle::cli
