#include "twinkle/engine/execute/read_together.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <string_view>
#include <system_error>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"
#include "twinkle/base/json.h"
#include "twinkle/base/random.h"
#include "twinkle/engine/memory/text_of_error.h"

namespace twinkle::engine {
namespace {

namespace fs = std::filesystem;

class Digest {
 public:
  void add(uint64_t word) { hash_ = key_of(hash_, word); }
  void add(double number) { add(std::bit_cast<uint64_t>(number)); }
  void add(std::string_view text) {
    hash_ = key_of(hash_, text);
    add(uint64_t{text.size()});
  }
  void add(std::span<const std::byte> bytes) {
    add(uint64_t{bytes.size()});
    for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + i, std::min(sizeof(word), bytes.size() - i));
      add(word);
    }
  }
  void add(const at::Tensor& t) {
    add(uint64_t{t.defined()});
    if (!t.defined()) return;
    for (const int64_t n : t.sizes()) add(static_cast<uint64_t>(n));
    const at::Tensor flat = t.contiguous();
    add(std::span(static_cast<const std::byte*>(flat.const_data_ptr()), flat.nbytes()));
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0;
};

void add(Digest& to, const PeftConfig& config) {
  to.add(static_cast<uint64_t>(config.rank));
  to.add(config.alpha);
  to.add(config.dropout);
  to.add(uint64_t{config.use_rslora});
  to.add(uint64_t{config.share_expert_factors});
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
    to.add(adapter.modules[i / 2].path);
    to.add(adapter.value(i));
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
  for (const at::Tensor& t : state.gradients) to.add(t);
  if (!state.optimizer) return;
  for (const at::Tensor* t : state.optimizer->tensors()) to.add(*t);
}

bool is_of_weights(std::string_view name) {
  return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") ||
         name == "config.json" || name == kTrainingIndex || name == kTrainingFields;
}

// Sizes, beginnings, middles and ends: of all bytes a rank reads its part alone.
void add_files(Digest& to, const fs::path& folder) {
  constexpr int64_t kSample = 4096;
  std::error_code ignored;
  std::vector<std::string> names = names_in(folder, ignored);
  std::erase_if(names, [](const std::string& name) { return !is_of_weights(name); });
  std::ranges::sort(names);
  std::vector<std::byte> bytes(kSample);
  for (const std::string& name : names) {
    const File file(folder / name, "engine");
    to.add(name);
    to.add(static_cast<uint64_t>(file.size()));
    for (const int64_t at :
         {int64_t{0}, file.size() / 2, std::max<int64_t>(0, file.size() - kSample)}) {
      const auto count = static_cast<size_t>(std::min(kSample, file.size() - at));
      file.read_at(at, std::span(bytes).first(count));
      to.add(std::span<const std::byte>(bytes).first(count));
    }
  }
}

std::string digest_of(const Loaded& loaded, const fs::path& folder) {
  Digest digest;
  if (loaded.adapter) {
    add(digest, *loaded.adapter);
  } else {
    add_files(digest, folder);
  }
  if (loaded.training) add(digest, *loaded.training, loaded.adapter.has_value());
  return std::to_string(digest.value());
}

// What each rank has returned, on all of them; or the error of the first that has thrown.
std::vector<std::string> told(mesh::Comm& comm, const std::function<std::string()>& read) {
  constexpr char kRead = '=';
  std::string said;
  try {
    said = kRead + read();
  } catch (const Error& error) {
    said = static_cast<char>('0' + static_cast<int>(error.code)) + std::string(error.what());
  } catch (const std::exception& error) {
    said = static_cast<char>('0' + static_cast<int>(Code::kInternal)) +
           std::string("engine: rank ") + std::to_string(comm.rank()) +
           " can't go on: " + text_of(error);
  }
  std::vector<std::string> all = comm.all_gather(said);
  for (std::string& each : all) {
    if (each[0] != kRead) throw Error(static_cast<Code>(each[0] - '0'), each.substr(1));
    each.erase(0, 1);
  }
  return all;
}

}  // namespace

void read_together(mesh::Comm& comm, const std::function<void()>& read) {
  if (comm.size() == 1) return read();
  told(comm, [&] {
    read();
    return std::string();
  });
}

Loaded read_alike(mesh::Comm& comm, const fs::path& folder, const std::function<Loaded()>& read) {
  if (comm.size() == 1) return read();
  Loaded out;
  const std::vector<std::string> digests = told(comm, [&] {
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
