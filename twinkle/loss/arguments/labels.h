// The labels of a batch that a loss counts, and the numbers that are given for each of them: log-
// probabilities of another model, advantages, a teacher's logits. B sequences of at most L
// positions, N labels that count.
#pragma once
#include <span>

#include "twinkle/loss/arguments/given.h"

namespace twinkle::loss {

struct Labels {
  at::Tensor labels;          // [B, L] integers, -100 where they are ignored
  at::Tensor attention_mask;  // [B, L] 0 where padded; undefined: there is no padding
  at::Tensor loss_scale;      // [B, L] 0 and 1; undefined: 1
};

// Labels that a batch must have: any number, some, some of each sequence, and that of pairs.
enum class Must { kAny, kSome, kReplies, kPairs };

// Mask [B, L] bool of the labels that count: other than -100, attended to, of loss_scale 1.
// `reader` opens errors: "loss: GRPOLoss". Error kInvalid: another loss_scale, by which the reader
// weighs nothing; other labels than `must` says.
at::Tensor scored(const Labels& labels, const std::string& reader, Must must = Must::kAny);

// [B, L], 0 where no label counts, of the values [N] of those that do.
at::Tensor spread(const at::Tensor& values, const at::Tensor& mask);

// The labels of a sequence that count.
struct LabelRow {
  std::vector<int64_t> at, ids;  // their positions and tokens
  int64_t length = 0;            // positions without the padding behind
};
// One for each sequence of mask [B, L].
std::vector<LabelRow> label_rows(const Labels& labels, const at::Tensor& mask);

// A type of what is given: float64 [N], or [N, K] float32 or int64; of kLogits -inf passes, a token
// of probability 0, unless a label has nothing else.
enum class Of { kNumbers, kFloats, kLogits, kIntegers };

// The numbers that `given`, the argument `name`, has for the rows' labels, in order. An entry has
// one, an entry for each of the sequence's labels that count, or one for each of its positions,
// padded or not; of kNumbers an entry may be sampled tokens. Error kInvalid: another number of
// sequences or entries, what is no number, nan, inf, log-probabilities of other tokens than the
// labels.
at::Tensor at_labels(const std::string& name, const Given& given, std::span<const LabelRow> rows,
                     Of type = Of::kNumbers);

// [count] float64 of one number for each `noun`: "pair", "sequence". `hint` ends the error of
// several. Error kInvalid: another number of entries, one that is no single number, nan, inf.
at::Tensor one_for_each(const std::string& name, const Given& given, int64_t count,
                        const char* noun, const char* hint = "");

// Error kInvalid: no list with an entry for each of `count` sequences or pairs.
void check_entries(const std::string& name, const Given& given, int64_t count, const char* noun);

}  // namespace twinkle::loss
