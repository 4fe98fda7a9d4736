// Forwards and backwards of several tenants as one packed batch on one decoder. Each sequence is a
// unit of its own: its numbers and its gradients' partial sums have the same bits in any company,
// and partial sums are added in the order of the tenant's submissions. Used by the engine's thread
// alone.
#pragma once
#include <exception>
#include <variant>
#include <vector>

#include "twinkle/engine/tenant.h"
#include "twinkle/model/decoder.h"

namespace twinkle::engine {

// One tenant's operation within a batch, and what became of it.
struct Part {
  Tenant* tenant;
  std::variant<const Forward*, const ForwardBackward*> operation;
  ForwardResult result;
  std::exception_ptr error;
};

// Checks the operation against the model: sizes, ids, labels, weights, extras. Changes nothing.
// Error kInvalid.
void check_sequences(const std::vector<Sequence>& sequences, const model::DecoderSpec& spec);

// Refuses a batch of a ForwardBackward that scores nothing. Error kInvalid.
void check_labels(const std::vector<Sequence>& sequences);

// Number of tokens in all sequences.
int64_t num_tokens(const std::vector<Sequence>& sequences);

// Runs all parts, all Forwards or all ForwardBackwards, at most `token_budget` tokens at a time
// (one sequence at least). A part whose numbers are not finite gets an error and leaves its
// tenant's gradients as they were; others are not affected. An exception out of the arithmetic
// itself (out of memory) leaves all tenants as they were and is rethrown.
// Returns the number of passes over the decoder.
int64_t run_parts(std::vector<Part>& parts, model::Decoder& decoder, int64_t token_budget);

}  // namespace twinkle::engine
