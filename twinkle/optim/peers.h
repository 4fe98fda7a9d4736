// Messages between ranks in a step of which each has some parameters' gradients and
// state, or a part of each. As it is: one rank, which has all.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace twinkle::optim {

// Why a parameter can't be stepped.
struct Fault {
  size_t param = 0;  // its index
  std::string text;
};

class Peers {
 public:
  virtual ~Peers() = default;

  // A number for each parameter, of what every rank has of it: of all of it, on each rank. Numbers
  // of parts add up, or, if `largest`, are the largest; NaN is larger than anything.
  virtual void gather(std::vector<double>&, bool largest [[maybe_unused]]) const {}
  // The fault of the first parameter that has one, on any rank.
  virtual std::optional<Fault> first(std::optional<Fault> mine) const { return mine; }
};

}  // namespace twinkle::optim
