// The adapter that a training state was saved with: trainer_state.json has a digest of the
// adapter's file, whose own bytes are the same whoever saves it. Any thread.
#pragma once
#include <filesystem>
#include <string>

namespace twinkle::engine {

inline constexpr const char* kAdapterFile = "adapter_model.safetensors";
inline constexpr const char* kAdapterDigest = "adapter_digest";  // a field of trainer_state.json
inline constexpr size_t kDigestSize = 16;                        // digits

// 64 bits of a file's bytes, in hexadecimal digits: of another save with all but certainty, but no
// protection against who wants it equal. Error kNotFound, kInvalid: as of File.
std::string digest_of(const std::filesystem::path& file);

}  // namespace twinkle::engine
