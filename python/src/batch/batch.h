// Users' features as the engine's sequences, and the engine's vectors as arrays as long as the
// features. What is refused is refused by its name and place in the inputs. Needs the GIL.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "python/src/batch/features.h"

namespace twinkle::python::batch {

class Batch {
 public:
  // Packed features are as many sequences as they have samples. marks: one label may stand for a
  // whole sequence. Error kInvalid: no input_ids, a field that is not one sequence of numbers or
  // not as long as they are, an attention_mask of others than 0 and 1, position_ids of a sample
  // that do not count up from 0, or that begin again behind a label other than -100.
  Batch(const py::list& features, bool marks);

  size_t size() const { return lengths_.size(); }
  const py::list& features() const { return features_; }    // a dict for each sequence
  const py::list& sequences() const { return sequences_; }  // as operations take them
  int64_t num_tokens() const { return num_tokens_; }        // without those that a mask drops
  int64_t num_labels() const { return num_labels_; }        // that are not -100

  // A warning of the first sequence with ignored labels alone, which teaches nothing: its role
  // names are most often wrong. Empty: there is none.
  std::string unlabelled() const;

  // Error kInvalid: routed_experts are not of so many layers, and so many experts a token.
  void check_routes(int64_t layers, int64_t k) const;
  // Error kInvalid: logits of all positions, the padding counted, of more than 1 GiB.
  void check_logits(const std::string& asked_by, int64_t vocabulary) const;

  // ---- what a tenant's operations are made of (tenant.cpp)

  // Fields of a tenant's forward or forward_backward, by name, of what a script gives with a loss
  // (None: there is none): fields of the operation, inputs of the loss, which are lists with an
  // item for each sequence, and its options. `grads`: of outputs, by name; None: it has none.
  py::dict operation(const std::string& name, const py::object& loss, const py::dict& given,
                     const py::dict& grads);
  // The operation's result as a script sees it: only what was asked for.
  py::dict scores(const py::dict& result) const;

  // ---- what losses in Python compute with (learning.cpp)

  // Tensors [B, longest] of the features' own fields.
  py::dict tensors() const;
  // Tensors of an operation's result for more sequences, of which these are those from `begin` on:
  // logits [B, num_labels] of a head of labels, or embeddings [B, D], or of a value head values [B,
  // longest], 0 where there is no label; else logps and, where there are some, entropies [B,
  // longest] and logits [B, longest, V].
  py::dict outputs(const py::dict& result, bool values, py::ssize_t begin) const;
  // Fields of a Sample, prompts and params, that finds the likeliest token at every place with a
  // label; and these, of what it gives: an array for each sequence, -1 elsewhere.
  py::dict prompts() const;
  py::list chosen(const py::list& samples) const;
  // Sequences with extras of a loss, by name: tensors [B, longest], or [B] for a number each.
  py::list with_extras(const py::dict& columns, const py::list& sequences) const;
  // Sequences with the gradients of a loss by such outputs, for a LinearLoss.
  py::list with_gradients(const py::dict& grads) const;

  py::list unscored() const;  // the sequences without labels

  // A tensor [B, longest, ...] of int64 of the engine's vectors [tokens, ...], `pad` elsewhere.
  py::object wide(const py::list& vectors, double pad) const;

 private:
  struct Routed {
    size_t index;
    int64_t layers, k;
  };

  int64_t longest() const;
  // The engine's vectors as float32 arrays as long as the input_ids that were given.
  py::list rows(const py::list& vectors) const;
  // A tensor [B, longest, ...] of the engine's vectors [tokens, ...], 0 elsewhere.
  py::object padded(const py::list& vectors) const;
  // Per sequence the entries of a [B, longest] tensor that the engine has, as float32.
  py::list unpadded(const py::object& tensor) const;
  void unpack(const py::dict& feature, size_t index);
  void add(const py::dict& feature, size_t index);
  void count(const py::dict& sequence, size_t index);
  void add_extra(const std::string& name, const py::object& values, bool per_sequence);
  py::list with_grads(const py::dict& grads, const std::set<std::string>& extras) const;
  void add_grad(const py::list& sequences, const std::string& name, const py::object& given) const;
  py::object kept_of(size_t index, const py::object& values) const;
  py::object filled(const py::list& vectors, double pad, const char* dtype) const;
  py::object padded_field(const char* name, int64_t pad, const char* dtype, bool ones) const;

  py::list features_, sequences_;
  std::vector<py::object> kept_;  // positions whose attention_mask is not 0; None: all
  std::vector<int64_t> lengths_;  // positions as given
  std::vector<Routed> routed_;
  int64_t num_tokens_ = 0, num_labels_ = 0, unlabelled_ = -1;
};

// JSON text of a loss's or an optimizer's options; empty of none. Error kInvalid: names a value
// that JSON does not have, as NaN and infinity.
std::string json_of(const std::string& what, const py::dict& options);
bool is_json(const py::object& value);

// Rows from one, a list of them, or sample responses, as models and samplers take them. `what`: of
// errors, "model: inputs". Error kInvalid: None or another thing, a row with neither input_ids nor
// messages, a sample response without new_input_feature, a field that is a slip of its name.
py::list as_list(const py::object& inputs, const std::string& what);

}  // namespace twinkle::python::batch
