#include "twinkle/model/weights/layout.h"

#include <algorithm>
#include <optional>

namespace twinkle::model {
namespace {

constexpr std::string_view kLayers = "model.layers.";

// The name with the first rename that fits.
std::optional<std::string> renamed(std::string_view name, std::span<const Rename> by) {
  for (const auto& [ours, theirs] : by) {
    if (!name.starts_with(ours)) continue;
    const std::string_view rest = name.substr(ours.size());
    if (rest.empty() || rest[0] == '.') return theirs + std::string(rest);
  }
  return {};
}

}  // namespace

std::string Layout::name(const std::string& ours) const {
  const std::string now = path(ours);
  return is_older ? renamed(now, older).value_or(now) : now;
}

void Layout::settle(std::span<const std::string> names) {
  is_older = std::ranges::any_of(older, [&](const Rename& rename) {
    return std::ranges::any_of(
        names, [&](const std::string& name) { return name.starts_with(rename.theirs + "."); });
  });
  for (const std::string& layer : behind) {
    std::erase(skipped, layer);  // these have other names
    if (std::ranges::find(names, layer + "eh_proj.weight") != names.end()) skipped.push_back(layer);
  }
}

std::string Layout::path(const std::string& ours) const {
  std::string out = ours;
  if (ours.starts_with(kLayers)) {
    const size_t begin = ours.find('.', kLayers.size()) + 1;  // after the layer's number
    if (const auto inner = renamed(std::string_view(ours).substr(begin), layer))
      out = ours.substr(0, begin) + *inner;
  }
  return renamed(out, model).value_or(out);
}

bool Layout::skips(std::string_view name) const {
  return name.ends_with(".inv_freq") ||  // rope's, of old checkpoints: config.json has it, too
         std::ranges::any_of(skipped,
                             [&](const std::string& begin) { return name.starts_with(begin); });
}

bool Layout::is_in_float32(std::string_view name) const {
  return std::ranges::any_of(in_float32,
                             [&](const std::string& end) { return name.ends_with("." + end); });
}

std::vector<std::string> Layout::parts_of(std::string_view name, int64_t num) const {
  for (const Stack& stack : stacks) {
    if (!name.ends_with("." + stack.name)) continue;
    const std::string before(name.substr(0, name.size() - stack.name.size()));
    std::vector<std::string> out;
    for (int64_t i = 0; i < num; ++i) {
      for (const std::string& part : stack.parts) {
        const size_t star = part.find('*');
        out.push_back(before + part.substr(0, star) + std::to_string(i) + part.substr(star + 1));
      }
    }
    return out;
  }
  return {};
}

}  // namespace twinkle::model
