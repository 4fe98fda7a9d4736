// One copy of a tokenizer for all who use it at a time: templates, and engines that look for stop
// strings. Any thread.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "twinkle/text/rust/tokenizer.h"

namespace twinkle::text {

// The tokenizer of a model, read anew if its files have changed. Errors as of Tokenizer's
// constructor.
std::shared_ptr<const Tokenizer> shared_tokenizer(const std::filesystem::path& model);

// Token ids as text with special tokens written out, by the tokenizer of this model directory;
// engine::Decoders.
std::function<std::string(std::span<const int32_t>)> decoder_of(const std::string& model);

}  // namespace twinkle::text
