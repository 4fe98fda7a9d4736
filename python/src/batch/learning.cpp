// The outputs that losses in Python compute with, and sequences that learn by their gradients.
#include <utility>

#include "python/src/batch/batch.h"
#include "twinkle/base/error.h"

namespace twinkle::python::batch {
namespace {

using namespace py::literals;

constexpr int64_t kNothing = -1;  // no token is chosen where no label counts

// Where a sequence has labels that count: a mask of NumPy's.
py::object labelled(const py::dict& sequence) {
  if (!sequence.contains(kLabels.name)) {
    const py::object size = py::int_(py::len(sequence[kIds.name]));
    return numpy("zeros")(size, "bool");
  }
  return numpy("not_equal")(sequence[kLabels.name], kIgnored);
}

py::object numpy_of(const py::handle& tensor) { return tensor.attr("numpy")(); }

}  // namespace

py::dict Batch::outputs(const py::dict& result, bool values, py::ssize_t begin) const {
  const auto mine = [&](const char* name) {
    const py::slice rows(begin, begin + static_cast<py::ssize_t>(size()), 1);
    return result.contains(name) ? py::list(py::list(result[name])[rows]) : py::list();
  };
  py::dict out;
  for (const auto& [name, given] :
       {std::pair("logits", "label_logits"), std::pair("embeddings", "embeddings")}) {
    const py::list rows = mine(given);
    if (rows.empty()) continue;
    out[name] = py::module_::import("torch").attr("from_numpy")(numpy("stack")(rows));
    return out;
  }
  if (values) {
    py::list rows = mine("logits");
    for (size_t i = 0; i < rows.size(); ++i)
      rows[i] = numpy("where")(labelled(sequences_[i]), rows[i].attr("reshape")(-1), 0);
    out["values"] = padded(rows);
    return out;
  }
  for (const char* name : {"logps", "entropies", "logits"})
    if (const py::list rows = mine(name); !rows.empty()) out[name] = padded(rows);
  return out;
}

// The sequence's logits say what follows each token but the last, after which one is drawn.
py::dict Batch::prompts() const {
  py::list prompts, params;
  for (const py::handle each : sequences_) {
    const auto sequence = py::reinterpret_borrow<py::dict>(each);
    const py::object counts = labelled(sequence);
    if (!counts.attr("any")().cast<bool>()) continue;
    prompts.append(sequence[kIds.name]);
    params.append(py::dict("num_samples"_a = 1, "temperature"_a = 0.0, "ignore_eos"_a = true,
                           "prompt_logprobs"_a = true, "top_prompt_logprobs"_a = 1,
                           "max_tokens"_a = counts[py::int_(-1)].cast<bool>() ? 1 : 0));
  }
  return py::dict("prompts"_a = prompts, "params"_a = params);
}

py::list Batch::chosen(const py::list& samples) const {
  py::list out;
  size_t next = 0;
  for (const py::handle each : sequences_) {
    const py::object counts = labelled(py::reinterpret_borrow<py::dict>(each));
    const py::object tokens = numpy("full")(py::len(counts), kNothing);
    if (counts.attr("any")().cast<bool>()) {
      const py::object sample = samples[next++][py::int_(0)];
      py::list found;
      for (const py::handle top : sample["top_prompt_logprobs"])
        found.append(top[py::int_(0)][py::int_(0)]);
      for (const py::handle token : sample["tokens"]) found.append(token);
      tokens[py::slice(0, static_cast<py::ssize_t>(found.size()), 1)] = found;
      tokens[numpy("logical_not")(counts)] = kNothing;
    }
    out.append(tokens);
  }
  return out;
}

py::list Batch::with_extras(const py::dict& columns, const py::list& sequences) const {
  py::dict rows;
  for (const auto& [name, given] : columns) {
    const auto tensor = py::reinterpret_borrow<py::object>(given);
    const bool is_wide = tensor.attr("ndim").cast<int>() == 2;
    rows[name] = is_wide ? py::object(unpadded(tensor))
                         : numpy_of(tensor.attr("float")().attr("reshape")(-1, 1));
  }
  py::list out;
  for (size_t i = 0; i < sequences.size(); ++i) {
    py::dict sequence = copied(sequences[i]), extras;
    for (const auto& [name, values] : rows) extras[name] = values[py::int_(i)];
    sequence["extras"] = extras;
    out.append(sequence);
  }
  return out;
}

py::list Batch::with_gradients(const py::dict& grads) const {
  py::list out;
  for (const std::string name : {"embeddings", "values", "logits"}) {
    if (!grads.contains(name)) continue;
    const py::object given = grads[name.c_str()];
    const bool is_embedding = name == "embeddings";
    const py::object rows = is_embedding ? numpy_of(given) : py::object(unpadded(given));
    out = unscored();
    for (size_t i = 0; i < size(); ++i) {
      py::object row = rows[py::int_(i)];
      if (name == "values") row = numpy("where")(labelled(sequences_[i]), row, 0);
      out[i][is_embedding ? "embedding_grad" : "logits_grad"] = row.attr("reshape")(-1);
    }
    return out;
  }
  for (const py::handle each : sequences_) {
    out.append(copied(py::reinterpret_borrow<py::dict>(each)));
    out[out.size() - 1]["extras"] = py::dict();
  }
  for (const auto& [name, extra] :
       {std::pair("logps", "grad"), std::pair("entropies", "entropy_grad")}) {
    if (!grads.contains(name)) continue;
    const py::list rows = unpadded(grads[name]);
    for (size_t i = 0; i < size(); ++i) out[i]["extras"][extra] = rows[i];
  }
  return out;
}

}  // namespace twinkle::python::batch
