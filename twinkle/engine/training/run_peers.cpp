#include "twinkle/engine/training/run_peers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace twinkle::engine {

std::optional<optim::Fault> first_fault(mesh::Comm& comm, const std::optional<optim::Fault>& mine) {
  std::optional<optim::Fault> out;
  for (const std::string& text :
       comm.all_gather(mine ? std::to_string(mine->param) + ' ' + mine->text : std::string())) {
    if (text.empty()) continue;
    size_t param = 0;
    const char* end = std::from_chars(text.data(), text.data() + text.size(), param).ptr;
    if (!out || param < out->param)
      out = {param, text.substr(static_cast<size_t>(end + 1 - text.data()))};
  }
  return out;
}

void RunPeers::gather(std::vector<double>& of_params, bool largest) const {
  at::Tensor mine = at::empty({std::ssize(of_params)}, at::kDouble);
  std::ranges::copy(of_params, mine.mutable_data_ptr<double>());
  const std::vector<int64_t> counts(static_cast<size_t>(comm_.size()), mine.numel());
  const at::Tensor all = comm_.all_gather(mine, counts);
  const auto* theirs = all.const_data_ptr<double>();
  std::ranges::fill(of_params, 0);
  for (int r = 0; r < comm_.size(); ++r) {
    for (double& x : of_params) {
      const double more = *theirs++;
      if (!largest)
        x += more;
      else if (std::isnan(more) || more > x)
        x = more;
    }
  }
}

}  // namespace twinkle::engine
