#include "python/src/sequences.h"

#include <pybind11/stl.h>

#include <utility>

#include "twinkle/base/error.h"

namespace py = pybind11;

namespace twinkle::python {
namespace {

py::array vector_of(py::handle values, const std::string& what) {
  py::array array = py::array::ensure(values);
  require(array && array.ndim() == 1, Code::kInvalid, what,
          " must be one-dimensional: a list of numbers or a numpy array");
  return array;
}

// A writable view: nobody else reads the result of an operation.
py::array_t<float> view_of(const std::vector<float>& values, py::handle owner) {
  return py::array_t<float>(static_cast<py::ssize_t>(values.size()), values.data(), owner);
}

py::array_t<int32_t> view_of(const std::vector<int32_t>& values, py::handle owner) {
  return py::array_t<int32_t>(static_cast<py::ssize_t>(values.size()), values.data(), owner);
}

template <class T>
py::list views_of(const std::vector<std::vector<T>>& vectors, py::handle owner) {
  py::list out;
  for (const auto& v : vectors) out.append(view_of(v, owner));
  return out;
}

// [tokens, vocabulary] each.
py::list logits_of(const engine::ForwardResult& r, py::handle owner) {
  py::list out;
  for (size_t s = 0; s < r.logits.size(); ++s) {
    const std::vector<float>& values = r.logits[s];
    const auto tokens = static_cast<py::ssize_t>(r.logps[s].size());
    out.append(
        view_of(values, owner).reshape({tokens, static_cast<py::ssize_t>(values.size()) / tokens}));
  }
  return out;
}

// [(token id, log p)].
py::list pairs_of(const std::vector<sampler::TokenLogprob>& tokens) {
  py::list out;
  for (const auto& [id, logprob] : tokens) out.append(py::make_tuple(id, logprob));
  return out;
}

// The same per place, the likeliest first.
py::list pairs_of(const std::vector<sampler::TopLogprobs>& all) {
  py::list out;
  for (const sampler::TopLogprobs& top : all) out.append(pairs_of(top));
  return out;
}

struct ToPython {
  py::handle owner;

  py::object operator()(const engine::Done&) const { return py::none(); }
  py::object operator()(const engine::ForwardResult& r) const {
    using namespace py::literals;
    return py::dict("loss"_a = r.loss, "num_tokens"_a = r.num_tokens,
                    "logps"_a = views_of(r.logps, owner),
                    "entropies"_a = views_of(r.entropies, owner), "logits"_a = logits_of(r, owner),
                    "embeddings"_a = views_of(r.embeddings, owner), "aux_loss"_a = r.aux_loss,
                    "routed_experts"_a = views_of(r.routed_experts, owner),
                    "label_logits"_a = views_of(r.label_logits, owner));
  }
  py::object operator()(const engine::StepResult& r) const {
    using namespace py::literals;
    return py::dict("grad_norm"_a = r.grad_norm, "num_tokens"_a = r.num_tokens, "step"_a = r.step);
  }
  py::object operator()(const engine::SampleResult& r) const {
    using namespace py::literals;
    py::list prompts;
    for (size_t i = 0; i < r.completions.size(); ++i) {
      const py::object scores = py::cast(r.prompts[i].logprobs);
      const py::list top_scores = pairs_of(r.prompts[i].top_logprobs);
      const py::list alt_tokens = pairs_of(r.prompts[i].alt_tokens);
      const py::object target_scores = py::cast(r.prompts[i].target_logprobs);
      py::list samples;
      for (const engine::Completion& c : r.completions[i])
        samples.append(
            py::dict("tokens"_a = py::cast(c.tokens), "logprobs"_a = py::cast(c.logprobs),
                     "top_logprobs"_a = pairs_of(c.top_logprobs), "stop_reason"_a = c.stop_reason,
                     "matched"_a = c.matched, "prompt_logprobs"_a = scores,
                     "routed_experts"_a = view_of(c.routed_experts, owner),
                     "top_prompt_logprobs"_a = top_scores, "prompt_alt_tokens"_a = alt_tokens,
                     "prompt_target_logprobs"_a = target_scores));
      prompts.append(samples);
    }
    return prompts;
  }
  py::object operator()(const engine::PublishResult& r) const { return py::int_(r.version); }
  py::object operator()(const engine::SaveResult& r) const { return py::str(r.directory); }
  py::object operator()(const engine::LoadResult& r) const { return py::str(r.extra_json); }
  py::object operator()(const engine::InspectResult& r) const {
    using namespace py::literals;
    py::dict tensors;
    for (const engine::NamedTensor& t : r.tensors)
      tensors[py::str(t.name)] = view_of(t.values, owner).reshape(t.shape);
    return py::dict("weights"_a = r.weights, "gradients"_a = r.gradients,
                    "optimizer"_a = r.optimizer, "num_parameters"_a = r.num_parameters,
                    "step"_a = r.step, "num_tokens"_a = r.num_tokens, "tensors"_a = tensors);
  }
};

}  // namespace

namespace {

template <class Wide>
std::vector<int32_t> narrowed(const py::array& array, const std::string& what) {
  const auto wide = py::array_t<Wide, py::array::c_style | py::array::forcecast>(array);
  std::vector<int32_t> out(static_cast<size_t>(wide.size()));
  for (size_t i = 0; i < out.size(); ++i) {
    const Wide value = wide.data()[i];
    require(std::in_range<int32_t>(value), Code::kInvalid, what, "[", i, "] is ", value,
            ", it must fit 32 bits");
    out[i] = static_cast<int32_t>(value);
  }
  return out;
}

}  // namespace

std::vector<int32_t> int32s(py::handle values, const std::string& what) {
  const py::array array = vector_of(values, what);
  const char kind = array.dtype().kind();
  require(array.size() == 0 || kind == 'i' || kind == 'u' || kind == 'b', Code::kInvalid, what,
          " must be integers");
  // int64 would turn the largest uint64 into other numbers.
  return kind == 'u' ? narrowed<uint64_t>(array, what) : narrowed<int64_t>(array, what);
}

std::vector<float> floats(py::handle values, const std::string& what) {
  const py::array array = vector_of(values, what);
  const char kind = array.dtype().kind();
  require(kind == 'f' || kind == 'i' || kind == 'u' || kind == 'b', Code::kInvalid, what,
          " must be numbers");
  const auto narrow = py::array_t<float, py::array::c_style | py::array::forcecast>(array);
  return {narrow.data(), narrow.data() + narrow.size()};
}

py::object to_python(const engine::Result& result, py::handle owner) {
  return std::visit(ToPython{owner}, result);
}

}  // namespace twinkle::python
