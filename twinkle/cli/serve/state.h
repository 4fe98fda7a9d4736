// Reports what a start would find wrong with the folder of its state, without changing anything in
// it.
#pragma once
#include <cstdint>
#include <string>

#include "twinkle/cli/serve/options.h"
#include "twinkle/io/checkpoint.h"

namespace twinkle::cli {

// Error kInvalid: the state is empty or begins with '~/', or it, or its journal, is no folder, or
// one that cannot be written; where there is none yet, the folder that it would be made in.
void check_folder(const std::string& state);
// The same of park_directory; kInvalid, too: no folder can be made there. Makes one to see that,
// and removes it.
void check_park_directory(const std::string& directory);

// JSON: which model a state belongs to. `config`: config.json's text.
std::string identity_of(const std::string& family, int64_t num_parameters,
                        const std::string& config);

// Distinguishes weights from others of the same config, in whatever files they are, without reading
// them all: a CRC-32C in decimal digits over each tensor's name, shape, and parts of its bytes.
// Errors as of StoredTensor::read.
std::string crc_of_weights(const Checkpoint& checkpoint);

// The finding of a server of this model: "", or who has the state open now. Reads the journal.
// Errors of a start: of keys that are asked for and cannot be read, a damaged journal, one that
// holds nothing of runs that are there, a missing snapshot, another model or other weights of it,
// or other arithmetic, unless that is accepted. Not the number of the model's parameters, which
// only its weights tell. `checkpoint`: null where the weights are not here, and not compared.
std::string check_state(const ServeOptions& options, const std::string& family,
                        const std::string& config, const Checkpoint* checkpoint);

// Who may come in: "open, nobody is asked for a key", or how many keys are valid. Errors as of
// KeyFile::read.
std::string told_auth(const ServeOptions& options);

// A warning, or "": everybody is let in although the state has keys that would be valid now.
std::string open_although_keys(const ServeOptions& options);

}  // namespace twinkle::cli
