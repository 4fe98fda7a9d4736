#include "twinkle/parallel/shards.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "twinkle/base/error.h"

namespace twinkle::parallel {
namespace {

// A tensor whose values lie in the storage from element `begin` on, when they are there.
at::Tensor view_in(const c10::Storage& storage, at::ScalarType type, int64_t begin,
                   at::IntArrayRef shape) {
  at::Tensor out = at::empty({0}, type);
  c10::TensorImpl* impl = out.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(storage);
  impl->set_storage_offset(begin);
  impl->set_sizes_contiguous(shape);
  return out;
}

void point(c10::Storage& storage, void* data) { storage.set_data_ptr_noswap({data, at::kCPU}); }

}  // namespace

Shards::Shards(mesh::Comm& comm, int64_t gathered_bytes)
    : comm_(comm), gathered_bytes_(gathered_bytes), thread_([this] { gather(); }) {}

Shards::~Shards() {
  {
    const Lock lock(mutex_);
    closing_ = true;
  }
  asked_.notify_all();
  thread_.join();
}

void Shards::give_up(const std::string& why) const noexcept {
  comm_.close("parallel: rank " + std::to_string(comm_.rank()) + " of " +
              std::to_string(comm_.size()) + " that share the base has failed: " + why);
}

// ---- loading

at::Tensor Shards::weight(const model::WeightSource& source, const model::PieceWeight& weight,
                          model::WeightMemory* memory) {
  if (weight.shape.size() < 2) {
    at::Tensor out = Borders::weight(source, weight, memory);
    whole_bytes_ += static_cast<int64_t>(out.nbytes());
    return out;
  }
  source.check(weight.name, weight.shape);
  Piece& piece = pieces_[weight.piece];
  if (piece.matrices.empty()) {
    piece.type = source.dtype();
    piece.storage =
        c10::Storage(c10::Storage::use_byte_size_t(), 0, at::DataPtr(nullptr, at::kCPU));
  }
  const int64_t begin = whole_lines(piece.count, piece.type);
  piece.count = begin + c10::multiply_integers(weight.shape);
  piece.matrices.push_back({weight.name, weight.shape, {begin, piece.count}});
  // While it is away, too: views of its matrices may be made, as a stack's are at once.
  piece.storage.set_nbytes(static_cast<size_t>(piece.count * elementSize(piece.type)));
  return view_in(piece.storage, piece.type, begin, weight.shape);
}

void Shards::loaded(const model::WeightSource& source) {
  int64_t left = gathered_bytes_;
  for (auto& [number, piece] : pieces_) {
    piece.part = part_of(piece.count, comm_.size(), piece.type);
    piece.stays = piece.all_bytes(comm_.size()) <= left;
    if (piece.stays) left -= piece.all_bytes(comm_.size());
    piece.storage.set_nbytes(static_cast<size_t>(piece.all_bytes(comm_.size())));
    read(source, piece);
  }
}

void Shards::read(const model::WeightSource& source, Piece& piece) const {
  piece.own = at::zeros({piece.part}, piece.type);
  const int64_t first = comm_.rank() * piece.part;
  for (const Matrix& m : piece.matrices) {
    const Run run = m.at.in({first, first + piece.part});
    if (run.size() == 0) continue;
    piece.own.narrow(0, run.begin - first, run.size())
        .copy_(source.read_run(m.name, m.shape, run.begin - m.at.begin, run.end - m.at.begin));
  }
}

int64_t Shards::most_bytes() const {
  int64_t out = whole_bytes_;
  std::vector<int64_t> moving;
  for (const auto& [number, piece] : pieces_) {
    const int64_t all = piece.all_bytes(comm_.size());
    out += piece.stays ? all : all / comm_.size();
    if (!piece.stays) moving.push_back(all);
  }
  std::ranges::sort(moving, std::greater());
  if (moving.size() > 2) moving.resize(2);
  return std::accumulate(moving.begin(), moving.end(), out);
}

// ---- in use. Which pieces are asked for, and in which order, follows from the calls alone: it is
// the same on all ranks.

void Shards::use(size_t number, std::optional<size_t> next) {
  const auto found = pieces_.find(number);
  if (ahead_ != number && ahead_ != next) end_ahead();
  if (ahead_ == number) ahead_.reset();
  if (found != pieces_.end()) ask(number);
  if (next && pieces_.contains(*next) && !pieces_.at(*next).all.defined()) {
    ask(*next);
    ahead_ = next;
  }
  if (found == pieces_.end()) return;
  wait(number);
  ++found->second.num_uses;
  show(found->second);
}

// The requested piece was not needed.
void Shards::end_ahead() {
  if (!ahead_) return;
  wait(*ahead_);
  if (!pieces_.at(*ahead_).stays) let_go(*ahead_);
  ahead_.reset();
}

void Shards::done(size_t number) noexcept {
  const auto found = pieces_.find(number);
  if (found == pieces_.end()) return;
  if (--found->second.num_uses == 0 && !found->second.stays) let_go(number);
}

bool Shards::has(size_t number) const {
  const auto found = pieces_.find(number);
  return found == pieces_.end() || found->second.storage.data() != nullptr;
}

std::map<std::string, Shards::Held> Shards::held() {
  end_ahead();
  std::map<std::string, Held> out;
  for (auto& [number, piece] : pieces_) {
    const bool is_part = !piece.all.defined();
    if (!is_part) {
      wait(number);  // it stays
      show(piece);
    }
    const int64_t first = is_part ? comm_.rank() * piece.part : 0;
    const at::Tensor& ours = is_part ? piece.own : piece.all;
    for (const Matrix& m : piece.matrices) {
      const Run both = m.at.in({first, first + ours.numel()});
      if (both.size() > 0)
        out[m.name] = {ours.narrow(0, both.begin - first, both.size()), both.begin - m.at.begin,
                       is_part};
      else
        out[m.name] = {ours.narrow(0, 0, 0), 0, is_part};
    }
  }
  return out;
}

void Shards::ask(size_t number) {
  Piece& piece = pieces_.at(number);
  if (piece.all.defined()) return;
  at::Tensor all = buffers_.take(comm_.size() * piece.part, piece.type);
  {
    const Lock lock(mutex_);
    if (failed_) std::rethrow_exception(failed_);
    jobs_.push_back({number, piece.own, all});
  }
  piece.all = std::move(all);
  asked_.notify_all();
}

void Shards::wait(size_t number) {
  Lock lock(mutex_);
  while (!here_.contains(number) && !failed_) lock.wait(gathered_);
  if (failed_) std::rethrow_exception(failed_);
}

void Shards::show(Piece& piece) {
  if (piece.storage.data()) return;
  point(piece.storage, piece.all.mutable_data_ptr());
  if (piece.stays) piece.own.reset();  // it is not gathered again
}

void Shards::let_go(size_t number) noexcept {
  Piece& piece = pieces_.at(number);
  point(piece.storage, nullptr);
  buffers_.give(std::exchange(piece.all, {}));
  const Lock lock(mutex_);
  here_.erase(number);
}

void Shards::gather() {
  while (true) {
    Job job;
    {
      Lock lock(mutex_);
      while (jobs_.empty() && !closing_) lock.wait(asked_);
      if (jobs_.empty()) return;  // the other ranks have requested the same
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    std::exception_ptr error;
    try {
      comm_.gather_into(job.all, job.own);
    } catch (...) {
      error = std::current_exception();
    }
    const Lock lock(mutex_);
    if (error) {
      failed_ = error;
      jobs_.clear();
    } else {
      here_.insert(job.piece);
    }
    gathered_.notify_all();
  }
}

}  // namespace twinkle::parallel
