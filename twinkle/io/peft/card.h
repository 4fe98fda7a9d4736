// README.md of an adapter's folder, as peft writes one: the base model, the rank, how to load it.
// Its last line holds a number made of the text before, so that a card that nobody changed is known
// from a README.md of the user's.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

#include "twinkle/io/peft/peft.h"

namespace twinkle {

inline constexpr const char* kPeftCard = "README.md";

// `about`: more Markdown, of how the adapter was made.
std::string peft_card(const PeftConfig& config, std::string_view about = {});

// True of a file that holds a card as peft_card makes it, of any config. Error kInvalid: File's.
bool is_peft_card(const std::filesystem::path& file);

}  // namespace twinkle
