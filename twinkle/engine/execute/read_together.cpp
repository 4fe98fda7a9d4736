#include "twinkle/engine/execute/read_together.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <span>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"
#include "twinkle/base/json.h"
#include "twinkle/engine/memory/text_of_error.h"
#include "twinkle/io/folder/digest.h"

namespace twinkle::engine {
namespace {

namespace fs = std::filesystem;

void add(Digest& to, const at::Tensor& t) {
  to.add(uint64_t{t.defined()});
  if (!t.defined()) return;
  for (const int64_t n : t.sizes()) to.add(static_cast<uint64_t>(n));
  const at::Tensor flat = t.contiguous();
  to.add(std::span(static_cast<const std::byte*>(flat.const_data_ptr()), flat.nbytes()));
}

void add(Digest& to, const PeftConfig& config) {
  to.add(static_cast<uint64_t>(config.rank));
  to.add(config.alpha);
  to.add(config.dropout);
  to.add(uint64_t{config.use_rslora});
  to.add(uint64_t{config.share_expert_factors});
  to.add(static_cast<uint64_t>(config.num_labels));
  for (const auto& [pattern, rank] : config.rank_pattern) {
    to.add(pattern);
    to.add(static_cast<uint64_t>(rank));
  }
  for (const auto& [pattern, alpha] : config.alpha_pattern) {
    to.add(pattern);
    to.add(alpha);
  }
}

void add(Digest& to, const lora::SavedAdapter& adapter) {
  add(to, adapter.config);
  for (const size_t i : adapter.held()) {
    to.add(adapter.name(i));
    add(to, adapter.value(i));
  }
}

// Its counts; the tensors, too, where every rank reads all of them.
void add(Digest& to, const TrainingState& state, bool has_tensors) {
  to.add(boost::json::serialize(state.options));
  for (const int64_t n : {state.calls, state.pending, state.published})
    to.add(static_cast<uint64_t>(n));
  to.add(state.seed);
  to.add(state.num_tokens);
  to.add(uint64_t{state.clipped});
  to.add(state.extra);
  if (!has_tensors) return;
  for (const at::Tensor& t : state.gradients) add(to, t);
  if (!state.optimizer) return;
  to.add(boost::json::serialize(state.optimizer->state().fields));  // steps of each parameter
  for (const at::Tensor* t : state.optimizer->tensors()) add(to, *t);
}

std::string digest_of(const Loaded& loaded, const fs::path& folder) {
  Digest digest;
  if (loaded.adapter) {
    add(digest, *loaded.adapter);
  } else {
    digest.add(digest_of_files(folder));  // a rank reads only its part of all bytes
    const fs::path state = folder / "trainer_state.json";
    if (is_there(state)) digest.add(read_file(state));
  }
  if (loaded.training) add(digest, *loaded.training, loaded.adapter.has_value());
  return std::to_string(digest.value());
}

// Every rank's result, on all of them; or the error of the first that has thrown, by its
// rank, unless all have met the same.
std::vector<std::string> told_by_all(mesh::Comm& comm, const std::function<std::string()>& read) {
  constexpr char kRead = '=', kLost = '!';  // anything else: the code of an Error
  std::string said;
  try {
    said = kRead + read();
  } catch (const Error& error) {
    said = static_cast<char>('0' + static_cast<int>(error.code)) + std::string(error.what());
  } catch (...) {
    said = kLost + std::string("can't go on: ") + text_of(std::current_exception());
  }
  std::vector<std::string> all = comm.all_gather(said);
  const bool same = std::ranges::all_of(all, [&](const auto& each) { return each == all[0]; });
  for (size_t r = 0; r < all.size(); ++r) {
    const char kind = all[r][0];
    all[r].erase(0, 1);
    if (kind == kRead) continue;
    const std::string rank = "engine: rank " + std::to_string(r);
    if (kind == kLost) fail(Code::kInternal, rank, ' ', all[r]);
    fail(static_cast<Code>(kind - '0'), same ? "" : rank + ": ", all[r]);
  }
  return all;
}

}  // namespace

void read_together(mesh::Comm& comm, const std::function<void()>& read) {
  if (comm.size() == 1) return read();
  told_by_all(comm, [&] {
    read();
    return std::string();
  });
}

Loaded read_alike(mesh::Comm& comm, const fs::path& folder, const std::function<Loaded()>& read) {
  if (comm.size() == 1) return read();
  Loaded out;
  const std::vector<std::string> digests = told_by_all(comm, [&] {
    out = read();
    return digest_of(out, folder);
  });
  for (size_t r = 1; r < digests.size(); ++r)
    require(digests[r] == digests[0], Code::kInvalid, "engine: ", folder.string(),
            " holds other values on rank ", r,
            " than on rank 0: every rank reads it, it must be the same on all machines");
  return out;
}

}  // namespace twinkle::engine
