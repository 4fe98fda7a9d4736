#include "twinkle/loss/arguments/arguments.h"

#include <algorithm>

namespace twinkle::loss {
namespace {

using Rows = std::vector<LabelRow>;

// Null: it is not given.
const Given* given_as(const LossCall& call, std::string_view name) {
  const auto found = call.given.find(name);
  return found == call.given.end() ? nullptr : &found->second;
}

Rows rows_of_call(const LossCall& call, Must must = Must::kAny) {
  return label_rows(call.labels, scored(call.labels, call.reader, must));
}

at::Tensor reference_of(const LossCall& call, const Rows& rows) {
  if (const Given* logps = given_as(call, "ref_logps")) return at_labels("ref_logps", *logps, rows);
  const Given* outputs = given_as(call, kOutputs);
  require(outputs, Code::kInvalid, call.reader,
          " needs a reference: pass ref_outputs=model.forward_only(inputs=..., "
          "disable_lora=True), or ref_logps");
  require(outputs->told.empty(), Code::kInvalid, "loss: ", kOutputs,
          " must be what forward_only returned, with 'logps'");
  return at_labels("ref_outputs['logps']", *outputs, rows);
}

Extras of_policies(const LossCall& call) {
  const Given* advantages = given_as(call, "advantages");
  require(advantages, Code::kInvalid, call.reader,
          " needs advantages: pass advantages=[...], one for each sequence; to score without "
          "learning call forward_only");
  const Rows rows = rows_of_call(call);
  Extras out = {{"advantages", at_labels("advantages", *advantages, rows)}};
  if (const Given* old = given_as(call, "old_logps"))
    out["old_logps"] = at_labels("old_logps", *old, rows);
  if (get_or(call.options, "beta", 0.0) > 0) out["ref_logps"] = reference_of(call, rows);
  return out;
}

Extras of_distillation(const LossCall& call) {
  const Given* teacher = given_as(call, "teacher_logps");
  require(teacher || given_as(call, "ref_logps") || given_as(call, kOutputs), Code::kInvalid,
          call.reader, " needs a teacher: pass teacher_logps=[...], of each label of a reply");
  const Rows rows = rows_of_call(call);
  return {{"teacher_logps",
           teacher ? at_labels("teacher_logps", *teacher, rows) : reference_of(call, rows)}};
}

Extras of_free_pairs(const LossCall& call) {
  scored(call.labels, call.reader, Must::kPairs);
  return {};
}

Extras of_referred_pairs(const LossCall& call) {
  const Rows rows = rows_of_call(call, Must::kPairs);
  if (get_or(call.options, "reference_free", false)) return {};
  const char *first = "ref_chosen_logps", *second = "ref_rejected_logps";
  const Given *chosen = given_as(call, first), *rejected = given_as(call, second);
  if (!chosen && !rejected) return {{"ref_logps", reference_of(call, rows)}};
  require(chosen && rejected, Code::kInvalid, "loss: ", chosen ? second : first,
          " is missing, pass both of ", first, " and ", second);
  const auto pairs = static_cast<int64_t>(rows.size() / 2);
  const auto sums = [pairs](const char* name, const Given& given) {
    return one_for_each(name, given, pairs, "pair",
                        ", the sum over the reply's labels; log-probabilities of each label go "
                        "into ref_logps, of both replies");
  };
  return {{"ref_sums", at::stack({sums(first, *chosen), sums(second, *rejected)}, -1).flatten()}};
}

Extras of_verdicts(const LossCall& call) {
  const Rows rows = rows_of_call(call, Must::kReplies);
  const Given* desirable = given_as(call, "desirable");
  require(desirable, Code::kInvalid, call.reader,
          " needs desirable, for each sequence True, False, or None of a reply to another prompt; "
          "for ",
          rows.size(), " sequences it is None");
  check_entries("desirable", *desirable, static_cast<int64_t>(rows.size()), "sequence");
  std::vector<double> marks;
  for (const Entry& one : desirable->entries) {
    const bool is_flag =
        one.numbers.defined() && one.numbers.dim() == 0 && one.numbers.scalar_type() == at::kBool;
    require(is_flag || one.is_none, Code::kInvalid, "loss: desirable[", marks.size(), "] is ",
            entry_told(one), ", it must be True, False or None");
    marks.push_back(one.is_none ? -1 : one.numbers.item<double>());
  }
  return {{"desirable", at::tensor(marks, at::kDouble)}, {"ref_logps", reference_of(call, rows)}};
}

Extras of_margins(const LossCall& call) {
  const Given* margin = given_as(call, "margin");
  if (!margin) return {};
  const int64_t pairs = call.labels.labels.size(0) / 2;
  return {{"margin", one_for_each("margin", *margin, pairs, "pair").repeat_interleave(2)}};
}

Extras of_classes(const LossCall& call) {
  const int64_t count = call.labels.labels.size(0);
  const Given* label = given_as(call, "label");
  require(label, Code::kInvalid, "loss: label is None, it must be one number for each of the ",
          count, " sequences, such as [0, 2, 1]");
  return {{"label", one_for_each("label", *label, count, "sequence")}};
}

Extras of_teacher(const LossCall& call) {
  const Rows rows = rows_of_call(call, Must::kSome);
  const char *values = "teacher_topk_logprobs", *indices = "teacher_topk_indices";
  const Given *logits = given_as(call, "teacher_logits"), *top = given_as(call, values),
              *which = given_as(call, indices);
  if (logits) {
    require(!top && !which, Code::kInvalid,
            "loss: teacher_logits and teacher_topk_... are given, pass one teacher");
    return {{"teacher_logits", at_labels("teacher_logits", *logits, rows, Of::kLogits)}};
  }
  require(!given_as(call, "topk"), Code::kInvalid,
          "loss: topk goes with teacher_logits, leave it out");
  require(top && which, Code::kInvalid, call.reader,
          " needs a teacher: pass teacher_logits=teacher.forward_only(inputs=..., "
          "return_logits=True)['logits'], or teacher_topk_logprobs and teacher_topk_indices");
  return {{values, at_labels(values, *top, rows, Of::kLogits)},
          {indices, at_labels(indices, *which, rows, Of::kIntegers)}};
}

Extras of_groups(const LossCall& call) {
  return {{"anchors", anchors_of(call.labels.labels, call.reader)}};
}

const std::vector<std::string_view> kOfPolicies = {"old_logps", "advantages", "ref_logps",
                                                   kOutputs};
const std::vector<std::string_view> kReference = {kOutputs, "ref_logps"};

void check_taken(const ArgumentsOf& loss, const LossCall& call) {
  std::vector<std::string_view> names = loss.rows;
  names.insert(names.end(), loss.numbers.begin(), loss.numbers.end());
  std::ranges::sort(names);
  std::string takes;
  for (const std::string_view name : names)
    takes.append(takes.empty() ? "; it takes " : ", ").append(name);
  for (const auto& [name, given] : call.given)
    require(std::ranges::binary_search(names, std::string_view(name)), Code::kInvalid, call.reader,
            " takes no argument '", name, "'", takes);
}

}  // namespace

const std::vector<ArgumentsOf>& all_arguments() {
  static const std::vector<ArgumentsOf> all = {
      {"CrossEntropyLoss", {}, {}, nullptr},
      {"GRPOLoss", kOfPolicies, {}, of_policies},
      {"PPOLoss", kOfPolicies, {}, of_policies},
      {"GSPOLoss", kOfPolicies, {}, of_policies},
      {"SAPOLoss", kOfPolicies, {}, of_policies},
      {"CISPOLoss", kOfPolicies, {"num_items_in_batch"}, of_policies},
      {"BNPOLoss", kOfPolicies, {}, of_policies},
      {"DRGRPOLoss", kOfPolicies, {}, of_policies},
      {"OPSDLoss", {"teacher_logps", "ref_logps", kOutputs}, {}, of_distillation},
      {"DPOLoss",
       {kOutputs, "ref_logps", "ref_chosen_logps", "ref_rejected_logps"},
       {},
       of_referred_pairs},
      {"SimPOLoss", kReference, {}, of_free_pairs},  // scripts pass one to any loss of preferences
      {"CPOLoss", kReference, {}, of_free_pairs},
      {"ORPOLoss", kReference, {}, of_free_pairs},
      {"KTOLoss", {"desirable", kOutputs, "ref_logps"}, {}, of_verdicts},
      {"RewardLoss", {"margin"}, {}, of_margins},
      {"ClassificationLoss", {"label"}, {}, of_classes},
      {"GKDLoss",
       {"teacher_logits", "teacher_topk_logprobs", "teacher_topk_indices"},
       {"topk"},
       of_teacher},
      {"InfonceLoss", {}, {}, of_groups}};
  return all;
}

Extras extras_of(const LossCall& call) {
  const auto& all = all_arguments();
  const auto found = std::ranges::find(all, std::string_view(call.loss), &ArgumentsOf::loss);
  require(found != all.end(), Code::kInvalid, "loss: ", call.loss,
          " has no arguments of its own: pass what it reads as extras, one number for each label");
  check_taken(*found, call);
  return found->read ? found->read(call) : Extras{};
}

at::Tensor anchors_of(const at::Tensor& labels, const std::string& reader) {
  const at::Tensor marks = labels.dim() == 1 ? labels.unsqueeze(1) : labels,
                   first = marks.select(1, 0);
  const at::Tensor is_mark = (first == 0).logical_or(first == 1);
  require(
      is_mark.all().item<bool>() && (marks.slice(1, 1) == -100).all().item<bool>(), Code::kInvalid,
      reader,
      " needs one label for each sequence, [1] for an anchor, which begins a group, and [0] for "
      "its positive and negatives");
  const at::Tensor found = first.nonzero().flatten();
  require(found.numel() > 0 && found[0].item<int64_t>() == 0, Code::kInvalid, reader,
          ": the first sequence has the label 0, but a group begins with an anchor, of label 1");
  const at::Tensor ends = at::cat({found.slice(0, 1), at::full({1}, labels.size(0), at::kLong)});
  const at::Tensor alone = found.masked_select(ends - found == 1);
  require(alone.numel() == 0, Code::kInvalid, reader, ": inputs[",
          alone.numel() ? alone[0].item<int64_t>() : 0,
          "] is an anchor without a positive after it");
  return found;
}

}  // namespace twinkle::loss
