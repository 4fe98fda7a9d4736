// For tests: engines of one group, whose ranks are threads, and operations in parts.
#pragma once
#include <functional>
#include <memory>
#include <ostream>
#include <thread>
#include <utility>
#include <vector>

#include "twinkle/engine/engine.h"
#include "twinkle/engine/exactness/outcomes_for_test.h"
#include "twinkle/engine/group/joined.h"
#include "twinkle/mesh/counting_comm.h"
#include "twinkle/mesh/thread_comm.h"

namespace twinkle::engine {

// `dp` copies of the base, each of which `fsdp` ranks that follow one another share.
struct Mesh {
  int dp = 1, fsdp = 1;
  int64_t gathered_bytes = 0;  // for a test to set
  int size() const { return dp * fsdp; }
};

inline void PrintTo(const Mesh& mesh, std::ostream* out) {
  *out << "dp " << mesh.dp << " fsdp " << mesh.fsdp << " gathered " << mesh.gathered_bytes;
}

inline std::vector<Group> groups(const Mesh& of, double timeout_s = 60) {
  const int size = of.size();
  auto door = mesh::thread_comms(size, timeout_s), control = mesh::thread_comms(size, timeout_s),
       data = mesh::thread_comms(size, timeout_s), saves = mesh::thread_comms(size, timeout_s);
  std::vector<Group> out(static_cast<size_t>(size));
  for (size_t r = 0; r < out.size(); ++r)
    out[r] = {std::move(door[r]), std::move(control[r]), std::move(data[r]), std::move(saves[r]),
              nullptr};
  for (size_t r = 0; of.fsdp > 1 && r < out.size();) {
    for (auto& base : mesh::thread_comms(of.fsdp, timeout_s)) out[r++].base = std::move(base);
  }
  return out;
}

// A Comm with its counts.
struct Counted : mesh::CountingComm {
  explicit Counted(std::unique_ptr<mesh::Comm> comm) : CountingComm(*comm), kept(std::move(comm)) {}
  std::unique_ptr<mesh::Comm> kept;
};

// Counts what a rank sends over one of its group's.
inline const mesh::SentBytes& count(std::unique_ptr<mesh::Channel>& channel) {
  auto* comm = dynamic_cast<mesh::Comm*>(channel.release());
  auto counted = std::make_unique<Counted>(std::unique_ptr<mesh::Comm>(comm));
  const mesh::SentBytes& sent = counted->sent();
  channel = std::move(counted);
  return sent;
}

// Runs `script` of every rank in a thread of its own, with its engine and what it sends.
using Script = std::function<void(Engine&, int rank, const mesh::SentBytes& sent)>;
inline void on_ranks(const Mesh& of, const EngineOptions& options, const Script& script,
                     const Decoders& decoders = in_letters) {
  std::vector<Group> of_ranks = groups(of);
  std::vector<std::thread> threads;
  for (int r = 0; r < of.size(); ++r) {
    threads.emplace_back([&, r] {
      Group group = std::move(of_ranks[static_cast<size_t>(r)]);
      const mesh::SentBytes& sent = count(group.data);
      Engine engine(options, decoders, std::move(group));
      script(engine, r, sent);
    });
  }
  for (std::thread& t : threads) t.join();
}

inline size_t num_items(const Operation& operation) {
  if (const auto* op = std::get_if<Forward>(&operation)) return op->sequences.size();
  if (const auto* op = std::get_if<ForwardBackward>(&operation)) return op->sequences.size();
  if (const auto* op = std::get_if<Sample>(&operation)) return op->prompts.size();
  return 0;
}

template <class T>
std::vector<T> slice(const std::vector<T>& all, const Part& part) {
  return {all.begin() + static_cast<ptrdiff_t>(part.first),
          all.begin() + static_cast<ptrdiff_t>(part.last)};
}

inline Operation sliced(Operation operation, const Part& part) {
  if (auto* op = std::get_if<Forward>(&operation)) op->sequences = slice(op->sequences, part);
  if (auto* op = std::get_if<ForwardBackward>(&operation))
    op->sequences = slice(op->sequences, part);
  if (auto* op = std::get_if<Sample>(&operation)) op->prompts = slice(op->prompts, part);
  return operation;
}

}  // namespace twinkle::engine
