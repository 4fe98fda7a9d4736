#include "twinkle/engine/group/joined.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "twinkle/base/error.h"

namespace twinkle::engine {
namespace {

template <class T>
void take(std::vector<T>& all, std::vector<T>& more) {
  std::ranges::move(more, std::back_inserter(all));
  more.clear();
}

// The part of an operation that differs between ranks; without it, it is the same on all.
struct Items {
  std::vector<Example> sequences;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<SamplingParams> params;

  size_t size() const { return sequences.size() + prompts.size(); }
};

Items taken(Operation& operation) {
  Items out;
  if (auto* op = std::get_if<Forward>(&operation)) take(out.sequences, op->sequences);
  if (auto* op = std::get_if<ForwardBackward>(&operation)) take(out.sequences, op->sequences);
  if (auto* op = std::get_if<Sample>(&operation)) {
    // One for all prompts is one for each, since other ranks may have others.
    if (op->params.size() == 1) op->params.resize(op->prompts.size(), op->params[0]);
    take(out.prompts, op->prompts);
    take(out.params, op->params);
  }
  return out;
}

void add(Operation& operation, Items& items) {
  if (auto* op = std::get_if<Forward>(&operation)) take(op->sequences, items.sequences);
  if (auto* op = std::get_if<ForwardBackward>(&operation)) take(op->sequences, items.sequences);
  if (auto* op = std::get_if<Sample>(&operation)) {
    take(op->prompts, items.prompts);
    take(op->params, items.params);
  }
}

template <class T>
void cut(std::vector<T>& of_sequences, const Part& part) {
  if (of_sequences.empty()) return;  // not asked for
  const auto at = [&](size_t s) { return of_sequences.begin() + static_cast<ptrdiff_t>(s); };
  of_sequences = {std::make_move_iterator(at(part.first)), std::make_move_iterator(at(part.last))};
}

}  // namespace

std::string name_of(const Operation& operation) {
  return std::visit([](const auto& op) { return std::string(op.kName); }, operation) + " of '" +
         tenant_of(operation) + "'";
}

Joined joined(std::vector<Operation> of_ranks, int rank, int64_t number) {
  std::vector<Items> items;
  for (Operation& operation : of_ranks) items.push_back(taken(operation));
  for (size_t r = 1; r < of_ranks.size(); ++r) {
    const std::string first = name_of(of_ranks[0]), other = name_of(of_ranks[r]);
    require(first == other, Code::kInvalid, "engine: operation ", number, ": rank 0 sent ", first,
            ", rank ", r, " sent ", other,
            ": all ranks must call the same methods in the same order");
    require(of_ranks[0] == of_ranks[r], Code::kInvalid, "engine: operation ", number,
            ": rank 0 and rank ", r, " sent ", first,
            " with different values: but for their sequences they must be the same");
  }
  Joined out{.operation = std::move(of_ranks[0])};
  size_t count = 0;
  for (size_t r = 0; r < items.size(); ++r) {
    if (std::cmp_equal(r, rank)) out.part = {count, count + items[r].size()};
    count += items[r].size();
    add(out.operation, items[r]);
  }
  return out;
}

Result part_of(Result result, const Part& part) {
  if (auto* forward = std::get_if<ForwardResult>(&result)) {
    cut(forward->logps, part);
    cut(forward->entropies, part);
    cut(forward->logits, part);
    cut(forward->embeddings, part);
    cut(forward->routed_experts, part);
  }
  if (auto* sample = std::get_if<SampleResult>(&result)) {
    cut(sample->completions, part);
    cut(sample->prompts, part);
  }
  return result;
}

}  // namespace twinkle::engine
