// The frozen base over the ranks of a group: of each piece of the decoder a rank keeps 1/n, and the
// whole is there only while the piece is in use, or all the time where gathered_bytes has room for
// it. What is asked for next is gathered while the piece before it computes. Matrices and stacks of
// them are cut; norms and biases are small, and whole on every rank. No bit depends on any of this.
// n ranks. docs/decisions/0020-shards.md.
#pragma once
#include <c10/core/Storage.h>

#include <deque>
#include <exception>
#include <map>
#include <set>
#include <string>
#include <thread>

#include "twinkle/base/guarded.h"
#include "twinkle/mesh/comm.h"
#include "twinkle/model/borders.h"
#include "twinkle/parallel/buffers.h"
#include "twinkle/parallel/run.h"

namespace twinkle::parallel {

class Shards : public model::Borders {
 public:
  // `comm`: of the ranks that share the base; nobody else talks over it, and it outlives this.
  // gathered_bytes: of whole pieces that stay once they were gathered, in the order of their
  // numbers, those that fit.
  Shards(mesh::Comm& comm, int64_t gathered_bytes);
  ~Shards() override;

  at::Tensor weight(const model::WeightSource& source, const model::PieceWeight& weight,
                    model::WeightMemory* memory) override;
  void loaded(const model::WeightSource& source) override;
  void use(size_t piece, std::optional<size_t> next) override;
  void done(size_t piece) noexcept override;
  bool has(size_t piece) const override;

  // Elements of a matrix from `first` on, in row order, flat: those that this rank keeps while its
  // piece is away, or all of one that stays.
  struct Held {
    at::Tensor values;
    int64_t first = 0;
    bool is_part = false;  // other ranks keep the others
  };
  // The part of every matrix, by its name, while no piece is in use. New values are written there:
  // what was gathered ahead, which has the old ones, is forgotten. All ranks call it.
  std::map<std::string, Held> held();

  // This rank has failed by itself: those that wait for its parts are woken.
  void give_up(const std::string& why) const noexcept;
  // The most that weights take on this rank: its parts, what stays, what is whole, and the two
  // largest of the other pieces, which may be there at a time.
  int64_t most_bytes() const;

 private:
  struct Matrix {
    std::string name;
    std::vector<int64_t> shape;
    Run at;  // run of the piece's elements
  };
  struct Piece {
    std::vector<Matrix> matrices;
    c10::Storage storage;  // memory of all matrices' tensors; no address while the piece is away
    at::ScalarType type = at::kFloat;
    int64_t count = 0;  // elements
    int64_t part = 0;   // elements of each rank; the last may hold fewer that mean something
    at::Tensor own;     // [part]
    at::Tensor all;     // [n part]; undefined: not asked for
    bool stays = false;
    int num_uses = 0;

    int64_t all_bytes(int n) const { return n * part * static_cast<int64_t>(elementSize(type)); }
  };
  struct Job {
    size_t piece;
    at::Tensor own, all;
  };

  void read(const model::WeightSource& source, Piece& piece) const;
  void ask(size_t piece);
  void wait(size_t piece);
  void show(Piece& piece);
  void let_go(size_t piece) noexcept;
  void end_ahead();
  void gather();  // the thread

  mesh::Comm& comm_;
  const int64_t gathered_bytes_;
  std::map<size_t, Piece> pieces_;  // that have matrices
  int64_t whole_bytes_ = 0;         // bytes of norms and biases
  Buffers buffers_;
  std::optional<size_t> ahead_;  // asked for, and not yet used

  Mutex mutex_;
  std::condition_variable asked_, gathered_;
  std::deque<Job> jobs_ GUARDED_BY(mutex_);
  std::set<size_t> here_ GUARDED_BY(mutex_);
  std::exception_ptr failed_ GUARDED_BY(mutex_);
  bool closing_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it reads the others
};

}  // namespace twinkle::parallel
