// Writes a tenant to disk: a PEFT directory, or for a full-parameter tenant a Hugging Face model
// directory, and with it the training state (training_state.h) when asked.
// The folder appears whole or not at all; the adapter's or model's files are those that peft and
// transformers read. A Save has two halves: the engine's thread holds a tenant and its state as
// they are, and any thread checks and writes them while the tenant goes on. A model, its optimizer
// and its gradients are not copied, which would double their memory: nobody may change them
// meanwhile.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "twinkle/base/guarded.h"
#include "twinkle/engine/checkpoint/kept_memory.h"
#include "twinkle/engine/checkpoint/training_state.h"
#include "twinkle/engine/schedule/executor.h"
#include "twinkle/engine/tenant.h"
#include "twinkle/io/peft/peft.h"
#include "twinkle/lora/adapter.h"
#include "twinkle/model/decoder.h"

namespace twinkle::engine {

// The base model, which saved folders must fit. Immutable; any thread.
struct BaseModel {
  std::filesystem::path directory;     // where the weights came from
  Json config;                         // its config.json
  JsonObject arithmetic;               // arithmetic_of this engine
  model::DecoderSpec spec;             // as its config.json says
  at::ScalarType dtype = at::kFloat;   // the weights' type here
  std::vector<NamedShape> weights;     // in the decoder's order
  std::vector<std::string> kept = {};  // Decoder::kept
  std::vector<parallel::Run>
      runs;  // the part of each that this rank trains; empty: all, it is alone
  Json mesh = JsonObject{{"dp", 1}, {"fsdp", 1}};  // data ranks
  std::vector<lora::LinearShape> linears;          // that adapters may target
  std::vector<int32_t> eos_ids;                    // tokens that end a reply
};

// Checks that a save may replace `directory`, before the work and again when it is done. Writes
// nothing; any thread. `base`: the directory of the base model's weights. Error kInvalid, its text
// begins with `field`: it is empty, the system would refuse it (see check_writable), it is the base
// model's own, or it holds a file that is not a checkpoint's. A .py is a checkpoint's where it is
// the base's byte for byte, or auto_map of the configs there names it, or such a one imports it; a
// README.md where it is a card that nobody changed.
void check_target(const std::filesystem::path& directory, const std::filesystem::path& base,
                  std::string_view field = "engine: save: directory");

// The files of the base model that a checkpoint holds copies of: those of its tokenizer. They are
// read once, at the first save. Any thread.
class CarriedFiles {
 public:
  // `is_model`: the folder is a whole model's: its generation_config.json gets base.eos_ids, and is
  // made where the base has none, unless config.json names them all.
  // Error kInvalid: a file cannot be read; AtomicFile's.
  void write(const BaseModel& base, const std::filesystem::path& staging, bool is_model);

 private:
  Mutex mutex_;
  std::optional<std::vector<std::pair<std::string, std::string>>> files_ GUARDED_BY(mutex_);
};

// The bytes of these files, if they can be read. Any thread.
int64_t carried_bytes(const std::filesystem::path& base);

// The data that a Save writes, as it was when it began.
struct HeldSave {
  std::string directory;
  int64_t max_shard_bytes = 0;
  bool as_is = false;               // weights that no forward can use are kept, too
  lora::AdapterRef pin;             // an adapter's factors: the pool changes a copy meanwhile
  PeftConfig config;                // the same adapter's
  std::optional<PeftConfig> own;    // its own one, where `config` is of another form
  std::vector<PeftEntry> entries;   // they borrow the pin's memory
  std::optional<TensorView> score;  // and so does its head of labels
  std::vector<TensorView> weights;  // a model's weights: they borrow the decoder's memory on a CPU
  Json training;                    // null: not asked for
  std::vector<TensorView>
      tensors;  // tensors of the training state: they share its memory, or borrow it ...
  std::shared_ptr<std::byte> copy;  // ... from this copy, which an adapter's are in
  std::string extra;
  int rank = 0, num_ranks = 1;  // among those that have a part of the tensors each; 0 has the rest
  bool in_runs = false;         // each has a run of every tensor

  int64_t num_bytes() const;  // bytes of all tensors
};

struct HeldModel {
  model::Decoder& decoder;
  bool is_written = true;  // by this rank; where a model is in parts, all ranks hold() it
};

// The first half, on the engine's thread. Error kInvalid, kNotFound: max_shard_bytes of an adapter,
// a version that is not kept. std::bad_alloc: no room for the copy.
HeldSave hold(const Save& operation, Tenant& tenant, const HeldModel& model, lora::Pool& pool,
              KeptMemory& memory);
// The second half, on any thread: calls no torch. `writers`: of the ranks, each of which writes its
// part of the training state. Error kInvalid: check_target's, NaN or infinity,
// weights that no forward can use, counts or a note that no load would take; kInternal: a full
// disk.
SaveResult write(const HeldSave& held, const BaseModel& base, CarriedFiles& carried,
                 const Writers& writers = {});

}  // namespace twinkle::engine
