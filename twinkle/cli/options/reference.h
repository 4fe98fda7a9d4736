// docs/options.md: all options of the service and of its engine as they are declared.
#pragma once
#include <string>

namespace twinkle::cli {

std::string options_reference();

}  // namespace twinkle::cli
