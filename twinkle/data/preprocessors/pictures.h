// For preprocessors of rows with pictures: a prompt that has them first. What a picture is, a path
// or bytes by their name, is not looked at.
#pragma once
#include <array>
#include <string>
#include <string_view>

#include "twinkle/data/dataset.h"

namespace twinkle::data {

inline constexpr std::array<std::string_view, 10> kPictureColumns = {
    "image",   "image_1", "image_2", "image_3", "image_4",
    "image_5", "image_6", "image_7", "image_8", "image_9"};

// The row's pictures, in the order of the columns; null is none.
JsonArray pictures_of(const Row& row);

// The text in the row's field. Error kInvalid: as text_field, and an empty one.
std::string question_of(const Row& row, std::string_view field);

// The system's message and the user's: the pictures, then the text; a plain text without pictures.
JsonArray prompt_with(const JsonArray& pictures, std::string_view system, const std::string& text);

}  // namespace twinkle::data
