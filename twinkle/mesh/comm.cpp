#include "twinkle/mesh/comm.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "twinkle/base/error.h"

namespace twinkle::mesh {
namespace {

// A string as one tensor of a size that all ranks know before: its length and its beginning. The
// rest follows where there is one, which is seldom.
constexpr int64_t kFrame = 256;
constexpr int64_t kInFrame = kFrame - static_cast<int64_t>(sizeof(int64_t));

at::Tensor frame_of(const std::string& bytes) {
  at::Tensor out = at::zeros({kFrame}, at::kByte);
  auto* to = static_cast<char*>(out.mutable_data_ptr());
  const int64_t length = std::ssize(bytes);
  std::memcpy(to, &length, sizeof(length));
  bytes.copy(to + sizeof(length), static_cast<size_t>(kInFrame));
  return out;
}

int64_t length_in(const char* frame) {
  int64_t length = 0;
  std::memcpy(&length, frame, sizeof(length));
  return length;
}

std::string beginning_in(const char* frame) {
  const auto n = static_cast<size_t>(std::min(length_in(frame), kInFrame));
  return {frame + sizeof(int64_t), n};
}

at::Tensor rest_of(const std::string& bytes) {
  const int64_t count = std::max<int64_t>(std::ssize(bytes) - kInFrame, 0);
  at::Tensor out = at::empty({count}, at::kByte);
  if (count > 0)
    std::memcpy(out.mutable_data_ptr(), bytes.data() + kInFrame, static_cast<size_t>(count));
  return out;
}

class NullComm : public Comm {
 public:
  NullComm() : Comm(0, 1) {}
  at::Tensor all_to_all(const at::Tensor& in, Counts, Counts) override { return in; }
  void broadcast(at::Tensor&, int) override {}
  std::unique_ptr<Transfer> start_send(const at::Tensor&, int) override { nobody(); }
  std::unique_ptr<Transfer> start_recv(const at::Tensor&, int) override { nobody(); }
  void close(const std::string&) noexcept override {}

 private:
  [[noreturn]] static void nobody() {
    fail(Code::kInternal, "mesh: a group of one rank has nobody to send to, or to hear from");
  }
};

}  // namespace

Comm& null_comm() {
  static NullComm alone;
  return alone;
}

at::Tensor Comm::all_gather(const at::Tensor& x, Counts counts) {
  const auto n = static_cast<size_t>(size());
  const std::vector<int64_t> to(n, x.numel());
  const at::Tensor mine = x.reshape({-1});
  return all_to_all(n == 1 ? mine : mine.repeat({size()}), to, counts);
}

void Comm::gather_into(at::Tensor& all, const at::Tensor& x) {
  const std::vector<int64_t> counts(static_cast<size_t>(size()), x.numel());
  all.copy_(all_gather(x, counts));
}

at::Tensor Comm::reduce_scatter(const at::Tensor& x, Counts counts) {
  const int64_t mine = counts[static_cast<size_t>(rank())];
  const std::vector<int64_t> from(static_cast<size_t>(size()), mine);
  const at::Tensor parts = all_to_all(x.reshape({-1}), counts, from).view({size(), mine});
  const bool is_double = x.scalar_type() == at::kDouble;
  at::Tensor sum = parts[0].to(is_double ? at::kDouble : at::kFloat, false, true);
  for (int r = 1; r < size(); ++r) sum.add_(parts[r]);
  return sum.to(x.scalar_type());
}

void Comm::all_reduce(at::Tensor& x) {
  // As even as it gets: the first ranks have one element more.
  std::vector<int64_t> counts(static_cast<size_t>(size()), x.numel() / size());
  for (int64_t r = 0; r < x.numel() % size(); ++r) ++counts[static_cast<size_t>(r)];
  x.copy_(all_gather(reduce_scatter(x, counts), counts).view_as(x));
}

void Comm::barrier() {
  const std::vector<int64_t> one(static_cast<size_t>(size()), 1);
  all_gather(at::zeros({1}, at::kByte), one);
}

std::vector<std::string> Comm::all_gather(const std::string& bytes) {
  const auto n = static_cast<size_t>(size());
  const at::Tensor frames = all_gather(frame_of(bytes), std::vector<int64_t>(n, kFrame));
  const auto* frame = static_cast<const char*>(frames.const_data_ptr());
  std::vector<std::string> out;
  std::vector<int64_t> counts;
  for (size_t r = 0; r < n; ++r, frame += kFrame) {
    out.push_back(beginning_in(frame));
    counts.push_back(std::max<int64_t>(length_in(frame) - kInFrame, 0));
  }
  if (std::ranges::all_of(counts, [](int64_t count) { return count == 0; })) return out;
  const at::Tensor rest = all_gather(rest_of(bytes), counts);
  const auto* from = static_cast<const char*>(rest.const_data_ptr());
  for (size_t r = 0; r < n; from += counts[r], ++r)
    out[r].append(from, static_cast<size_t>(counts[r]));
  return out;
}

std::string Comm::broadcast(std::string bytes, int root) {
  at::Tensor frame = frame_of(bytes);
  broadcast(frame, root);
  const auto* from = static_cast<const char*>(frame.const_data_ptr());
  std::string out = beginning_in(from);
  const int64_t count = length_in(from) - kInFrame;
  if (count <= 0) return out;
  at::Tensor rest = rank() == root ? rest_of(bytes) : at::empty({count}, at::kByte);
  broadcast(rest, root);
  return out.append(static_cast<const char*>(rest.const_data_ptr()), static_cast<size_t>(count));
}

}  // namespace twinkle::mesh
