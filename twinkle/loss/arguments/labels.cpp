#include "twinkle/loss/arguments/labels.h"

#include <algorithm>

namespace twinkle::loss {
namespace {

void check_counts(const at::Tensor& mask, const std::string& reader, Must must) {
  if (must == Must::kAny) return;
  const int64_t sequences = mask.size(0);
  require(must != Must::kPairs || sequences % 2 == 0, Code::kInvalid, reader,
          " needs pairs, each chosen reply followed by its rejected one, but there are ", sequences,
          " sequences: pass an even number of them");
  if (must == Must::kSome) {
    require(mask.any().item<bool>(), Code::kInvalid, reader,
            " has no label to learn from, all are -100 (ignored) or missing");
    return;
  }
  const at::Tensor empty = mask.any(-1).logical_not().nonzero();
  require(empty.numel() == 0, Code::kInvalid, reader, " compares replies, but inputs[",
          empty.numel() ? empty[0].item<int64_t>() : 0,
          "] has no label: every reply must have one");
}

const at::Tensor& numbers_in(const std::string& what, const Entry& entry) {
  require(entry.numbers.defined(), Code::kInvalid, what, " is ", entry_told(entry),
          ", it must be a number or a list of numbers");
  return entry.numbers;
}

bool is_finite(const at::Tensor& values) { return values.isfinite().all().item<bool>(); }

// Entries of -inf are left out if `masked`.
void check_finite(const std::string& what, const at::Tensor& values, bool masked) {
  if (is_finite(values)) return;
  const at::Tensor left_out = values.isneginf();
  require(masked && values.isfinite().logical_or(left_out).all().item<bool>(), Code::kInvalid, what,
          " has an entry that is nan or inf, all must be finite",
          masked ? ", or -inf for a probability of 0" : "");
  require(!left_out.all(-1).any().item<bool>(), Code::kInvalid, what,
          " has a label of which every entry is -inf, at least one must be finite");
}

std::string tokens_told(const OfToken& of_token) {
  if (of_token.size() == 1) return std::string(1, ' ').append(std::to_string(of_token[0].first));
  std::string out = "s [";
  for (size_t i = 0; i < of_token.size() && i < 6; ++i)
    out.append(i ? ", " : "").append(std::to_string(of_token[i].first));
  return out.append(of_token.size() > 6 ? ", ...]" : "]");
}

// The log-probability of each label among those of its token.
at::Tensor of_sampled(const std::string& what, const std::vector<OfToken>& sampled,
                      const LabelRow& row) {
  require(sampled.size() == row.ids.size(), Code::kInvalid, what, " has the log-probabilities of ",
          sampled.size(), " sampled tokens for ", row.ids.size(),
          " labels, they must be equally many: train on the new_input_feature that came with them");
  std::vector<double> out;
  for (size_t i = 0; i < sampled.size(); ++i) {
    const auto found = std::ranges::find(sampled[i], row.ids[i], &OfToken::value_type::first);
    require(found != sampled[i].end(), Code::kInvalid, what, " has at ", i,
            " the log-probability of token", tokens_told(sampled[i]), ", but the label is ",
            row.ids[i], ": train on the new_input_feature that came with it");
    out.push_back(found->second);
  }
  return at::tensor(out, at::kDouble);
}

// [n] or [n, K] of the row's labels.
at::Tensor at_row(const std::string& what, at::Tensor values, const LabelRow& row, bool is_wide) {
  const auto n = static_cast<int64_t>(row.at.size());
  if (!is_wide && values.numel() == 1) return values.reshape({1}).expand({n});
  if (!is_wide && values.dim() == 2 && values.size(0) == 1) values = values.flatten();
  require(values.dim() == (is_wide ? 2 : 1), Code::kInvalid, what, " has shape ", values.sizes(),
          ", it must be ", is_wide ? "[entries, K]" : "one number, or a list of them");
  const int64_t entries = values.size(0);
  require(entries == n || entries >= row.length, Code::kInvalid, what, " has ", entries,
          " entries, it must have one for each of its ", n, " labels, or for each of its ",
          row.length, " positions");
  return entries == n ? values : values.index_select(0, at::tensor(row.at, at::kLong));
}

}  // namespace

at::Tensor scored(const Labels& in, const std::string& reader, Must must) {
  at::Tensor mask = in.labels != -100;
  if (in.attention_mask.defined()) mask = mask.logical_and(in.attention_mask != 0);
  if (in.loss_scale.defined()) {
    const at::Tensor weighs = in.loss_scale != 0;
    const at::Tensor odd =
        in.loss_scale.masked_select(mask.logical_and(weighs).logical_and(in.loss_scale != 1));
    require(odd.numel() == 0, Code::kInvalid, reader, " weighs no labels, but loss_scale is ",
            odd.numel() ? odd[0].item<double>() : 0, " somewhere: it must be 0 or 1, or left out");
    mask = mask.logical_and(weighs);
  }
  check_counts(mask, reader, must);
  return mask;
}

at::Tensor spread(const at::Tensor& values, const at::Tensor& mask) {
  return at::zeros(mask.sizes(), values.scalar_type()).masked_scatter(mask, values);
}

std::vector<LabelRow> label_rows(const Labels& in, const at::Tensor& mask) {
  const at::Tensor labels = in.labels.to(at::kLong);
  const at::Tensor attended =
      in.attention_mask.defined() ? in.attention_mask != 0 : at::ones_like(mask);
  const auto ids = labels.accessor<int64_t, 2>();
  const auto counts = mask.accessor<bool, 2>(), is_attended = attended.accessor<bool, 2>();
  std::vector<LabelRow> out(static_cast<size_t>(ids.size(0)));
  for (int64_t i = 0; i < ids.size(0); ++i) {
    LabelRow& row = out[static_cast<size_t>(i)];
    for (int64_t t = 0; t < ids.size(1); ++t) {
      if (is_attended[i][t]) row.length = t + 1;
      if (!counts[i][t]) continue;
      row.at.push_back(t);
      row.ids.push_back(ids[i][t]);
    }
  }
  return out;
}

void check_entries(const std::string& name, const Given& given, int64_t count, const char* noun) {
  require(given.told.empty(), Code::kInvalid, "loss: ", name, " is ", given.told,
          ", it must be a list or tensor with an entry for each ", noun);
  require(static_cast<int64_t>(given.entries.size()) == count, Code::kInvalid, "loss: ", name,
          " has ", given.entries.size(), " entries for ", count, " ", noun,
          "s, they must be equally many");
}

at::Tensor at_labels(const std::string& name, const Given& given, std::span<const LabelRow> rows,
                     Of of) {
  check_entries(name, given, static_cast<int64_t>(rows.size()), "sequence");
  constexpr at::ScalarType kTypes[] = {at::kDouble, at::kFloat, at::kFloat, at::kLong};
  const at::ScalarType type = kTypes[static_cast<size_t>(of)];
  const bool is_wide = of != Of::kNumbers;
  const auto what = [&](size_t i) {
    return "loss: " + name + " of inputs[" + std::to_string(i) + "]";
  };
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Entry& entry = given.entries[i];
    const bool is_sampled = !is_wide && !entry.sampled.empty();
    const at::Tensor numbers =
        is_sampled ? of_sampled(what(i), entry.sampled, rows[i]) : numbers_in(what(i), entry);
    parts.push_back(at_row(what(i), numbers, rows[i], is_wide).to(type));
    if (!is_wide) continue;
    const int64_t width = parts[i].size(1), first = parts[0].size(1);
    require(width == first, Code::kInvalid, what(i), " has ", width,
            " entries a label, inputs[0] has ", first, ", they must be equally many");
  }
  if (parts.empty()) return at::empty({0}, type);
  const at::Tensor all = at::cat(parts);
  if (of != Of::kIntegers && !is_finite(all))
    for (size_t i = 0; i < parts.size(); ++i) check_finite(what(i), parts[i], of == Of::kLogits);
  return all;
}

at::Tensor one_for_each(const std::string& name, const Given& given, int64_t count,
                        const char* noun, const char* hint) {
  check_entries(name, given, count, noun);
  std::vector<double> out;
  for (const Entry& entry : given.entries) {
    const std::string what = "loss: " + name + "[" + std::to_string(out.size()) + "]";
    const at::Tensor& number = numbers_in(what, entry);
    require(number.numel() == 1, Code::kInvalid, what, " has ", number.numel(),
            " entries, it must be one number", hint);
    check_finite(what, number, false);
    out.push_back(number.item<double>());
  }
  return at::tensor(out, at::kDouble);
}

}  // namespace twinkle::loss
