#include "twinkle/cli/options/flags.h"

#include <algorithm>
#include <utility>

namespace twinkle::cli {
namespace {

std::string type_of(const AnyOption& option) {
  std::string out;
  for (const std::string_view one : option.limits.one_of)
    if (option.kind == OptionKind::kText && !one.empty())
      out.append(out.empty() ? "" : "|").append(one);
  if (!out.empty()) return out;
  switch (option.kind) {
    case OptionKind::kInteger:
      return option.is_bytes() ? "BYTES" : "INT";
    case OptionKind::kNumber:
      return "FLOAT";
    default:
      return "TEXT";
  }
}

void set(const AnyOption& option, const std::string& flag, const std::vector<std::string>& given) {
  const bool is_list = option.kind == OptionKind::kTexts;
  const Json value =
      is_list ? Json(JsonArray(given.begin(), given.end())) : value_of(option, given.back());
  if (!option.allows(value))
    throw CLI::ValidationError(flag + " is '" + given.back() + "', it must be " + option.must_be() +
                               (option.is_bytes() ? ", or with a unit, as 64MiB or 2GB" : ""));
  option.set(value);
}

}  // namespace

CLI::Option* add_option(CLI::App& command, const AnyOption& option) {
  std::string flag = std::string("--").append(option.name);
  std::ranges::replace(flag, '_', '-');
  std::string help(option.help);
  const bool is_word = option.kind == OptionKind::kText || option.kind == OptionKind::kTexts;
  if (const std::string range = option.range(); !range.empty() && !is_word)
    help.append(" (").append(range).append(")");
  if (option.kind == OptionKind::kFlag) {
    const bool on = option.get().get_bool();
    const std::string names = on ? flag + ",!--no" + flag.substr(1) : flag;
    CLI::Option* added = command.add_flag(names, std::as_const(help));
    if (on) added->default_str("true")->option_text("[on]");
    added->each([option, flag](const std::string& text) { set(option, flag, {text}); });
    return added;
  }
  CLI::Option* added = command.add_option(
      option.kind == OptionKind::kTexts ? flag + "," + flag + "s" : flag,
      [option, flag](const CLI::results_t& given) {
        set(option, flag, given);
        return true;
      },
      help);
  added->type_name(type_of(option));
  if (option.kind == OptionKind::kTexts)
    added->expected(1, CLI::detail::expected_max_vector_size)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  else
    added->default_str(told(option.get()));
  return added;
}

void shorten_help(CLI::App& command, const std::vector<std::string>& names) {
  for (CLI::Option* option : command.get_options())
    if (option->nonpositional() && option->get_group() == kFirstGroup &&
        option != command.get_help_ptr())
      option->group("More options");
  for (const std::string& name : names) command.get_option(name)->group(kFirstGroup);
  command.set_help_all_flag("--help-all", "print all options and exit");
}

}  // namespace twinkle::cli
