// The linears of a model that an adapter has factors for, with rank and scale.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/io/peft/peft.h"
#include "twinkle/model/decoder.h"

namespace twinkle::lora {

class Patterns;

// A linear that an adapter can be attached to: y [outputs] of x [inputs].
struct LinearShape {
  std::string path;
  int64_t inputs, outputs;
  bool turned = false;  // as of model::NamedLinear
};
// The module's path in the other one of the two classes that transformers has of some models: of
// text alone ("model.layers.0"), and with pictures ("model.language_model.layers.0"). Adapters are
// read under both. Empty: it has none.
std::string other_path(std::string_view path);

std::vector<LinearShape> shapes_of(const std::vector<model::NamedLinear>& linears);

// The indices of the linears that the config targets, by its modules or its parameters. An expert
// has one linear for gate and up together, gate_up_proj, which "all-linear" leaves out: it stands
// for gate_proj and up_proj, and no adapter has both. With target_parameters "all-linear" leaves
// out all experts. Names of a list of target_modules that match nothing are added to `unused`,
// unless it is null. Error kInvalid: nothing matches, or a parameter matches nothing, with what
// there is; exclude_modules and layers_to_transform leave nothing.
std::vector<size_t> match_targets(const PeftConfig& config, std::span<const LinearShape> linears,
                                  std::vector<std::string>* unused = nullptr);

// As match_targets, by target_modules alone and with expressions and names that match nothing: the
// names are added to `unused`. An expert's linears may be matched twice over.
std::vector<size_t> match_modules(const PeftConfig& config, std::span<const LinearShape> linears,
                                  std::vector<std::string>& unused);

// The config as an Adapter's config() has it, which is saved: "all-linear" replaced by the names of
// the modules that it stands for here, as peft writes it, and modules and stacks that are named by
// their other path by that of here: a regular expression that matches some so by the list of all
// that it matches, as well as layers that are counted by the other path; and with
// name_sizes_of_stacks().
PeftConfig with_named_targets(PeftConfig config, std::span<const LinearShape> linears);

// Puts a pattern of its own before the others for each stack among the target_parameters that has
// another rank or alpha by its parameter's path, as peft matches it, than by its experts' paths.
void name_sizes_of_stacks(PeftConfig& config, std::span<const LinearShape> linears);

// The config's patterns that match none of these modules, and so change nothing.
std::vector<std::string> idle_patterns(const PeftConfig& config,
                                       std::span<const std::string> paths);

// The fields and values of the config's filters that are true of none of these linears.
std::vector<std::string> idle_filters(const PeftConfig& config,
                                      std::span<const LinearShape> linears);

// True if such an adapter works on the model's head.
bool targets_head(const PeftConfig& config);

// The rank and the scale of a module: alpha / rank, or alpha / sqrt(rank) with rsLoRA
// (Kalajdzievski 2023), of the config's patterns, where one matches the module's path, else of the
// config itself.
class Sizes {
 public:
  // Patterns for an expert's linear match the stack's path, too, or, as other programs have it,
  // only its own.
  enum class By { kEither, kOwn };
  // Error kInvalid: a pattern that is no regular expression, a rank or an alpha out of range.
  explicit Sizes(const PeftConfig& config, By by = By::kEither);
  ~Sizes();
  Sizes(const Sizes&) = delete;
  Sizes& operator=(const Sizes&) = delete;

  int64_t rank(const std::string& path) const;
  double alpha(const std::string& path) const;
  double scale(const std::string& path) const;

 private:
  const PeftConfig& config_;  // must outlive it
  const By by_;
  std::unique_ptr<const Patterns> ranks_, alphas_;
};

}  // namespace twinkle::lora
