#include "twinkle/cli/options/reference.h"

#include <algorithm>
#include <set>
#include <utility>

#include "twinkle/base/fields/options.h"
#include "twinkle/cli/serve/options.h"
#include "twinkle/cli/train/losses.h"
#include "twinkle/cli/train/training.h"

namespace twinkle::cli {
namespace {

constexpr const char* kHead =
    "# Options\n\n"
    "Made from the declarations in the program by `tools/options_reference.py`. An option "
    "`token_budget` is `--token-budget`\n"
    "of `twinkle serve` and `token_budget:` in its YAML file; one of the engine is also "
    "`token_budget=` of `twinkle.Engine`,\n"
    "`TransformersModel` and the samplers' `engine_args`. A flag that is true by default has "
    "`--no-...`, a list `name` also\n`--names`. Bytes may have a unit on a command line and in a "
    "file: `64MiB` (KiB, MiB, GiB, TiB: powers of 1024), `2GB` (KB,\nMB, GB, TB: of 1000).\n";

// The effect of an option, and from "[...]" at its end what happens without it, where that is no
// value.
std::pair<std::string_view, std::string_view> parts_of(std::string_view help) {
  const size_t open = help.rfind(" [");
  if (!help.ends_with(']') || open == std::string_view::npos) return {help, ""};
  return {help.substr(0, open), help.substr(open + 2, help.size() - open - 3)};
}

void add_table(const std::vector<AnyOption>& options, const std::set<std::string_view>& without,
               std::string& out) {
  out += "\n| option | default | what it may be | what it does |\n|---|---|---|---|\n";
  for (const AnyOption& option : options) {
    if (without.contains(option.name)) continue;
    const auto [help, otherwise] = parts_of(option.help);
    const std::string value = told(option.get());
    out.append("| `").append(option.name).append("` | ").append(otherwise);
    if (otherwise.empty() && !value.empty() && value != "[]")
      out.append("`").append(value).append("`");
    out.append(" | ").append(option.must_be()).append(" | ").append(help).append(" |\n");
  }
}

}  // namespace

std::string options_reference() {
  const ServeOptions serve;
  const engine::EngineOptions engine;
  TrainingOptions training;
  std::set<std::string_view> of_engine;
  for (const AnyOption& option : options_of(engine)) of_engine.insert(option.name);
  std::string out = kHead;
  out += "\n## Service\n";
  add_table(options_of(serve), of_engine, out);
  out += "\n## Engine\n";
  std::string unserved;
  for (const AnyOption& option : options_of(engine))
    if (!is_served(option.name))
      unserved.append(unserved.empty() ? "`" : ", `").append(option.name).append("`");
  out += "\nNot of `twinkle serve`: " + unserved + ".\n";
  add_table(options_of(engine), {}, out);
  out +=
      "\n## Training on the command line\n\nOf `twinkle train`, and of the YAML file that its "
      "`--config` takes. It takes some of the engine's, too; `twinkle train --help-all` lists "
      "all.\n";
  std::vector<AnyOption> of_train = options_of(training.files);
  for (const auto& more : {options_of(training.goal), loss_options(training.loss_options),
                           options_of(training.recipe)})
    std::ranges::copy(more, std::back_inserter(of_train));
  add_table(of_train, {}, out);
  return out;
}

}  // namespace twinkle::cli
