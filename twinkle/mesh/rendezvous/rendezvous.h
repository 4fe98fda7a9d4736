// Where the ranks of a script find each other before they have a watch or a group: by the keys of a
// store of torch.distributed, which all of them reach. Knows no mesh of axes and no launcher.
#pragma once
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "twinkle/mesh/watch.h"

namespace twinkle::mesh {

class Rendezvous {
 public:
  struct Options {
    int rank = 0, size = 1;
    double timeout_s = 60;  // for which another rank may be silent
    std::string failure;    // how errors begin: "infra: rank 0 could not meet the other ranks"
  };
  Rendezvous(c10::intrusive_ptr<c10d::Store> store, Options options);

  // Errors of all: kNotFound, a rank has not come in time, or the network does not reach it;
  // kInternal, `watch`, where there is one, has heard that a rank has gone.

  // Waits until every rank has called it with this name, for `most_s` at most. `remedy` ends the
  // error of ranks that have not come; one that comes later finds nobody.
  void meet(const std::string& name, double most_s, const std::string& remedy,
            const std::shared_ptr<Watch>& watch) const;

  // The watch of these ranks. `hosts`: names and addresses by which others reach this machine, of
  // which rank 0 takes the first that is its own.
  std::shared_ptr<Watch> watch(const std::string& name,
                               const std::vector<std::string>& hosts) const;

  // Throws what a call of these ranks has failed with. `error`: its text, as of Gloo.
  [[noreturn]] void refuse(const std::string& error, const std::shared_ptr<Watch>& watch) const;

  const Options& options() const { return options_; }

 private:
  template <class Call>
  void reach(const std::shared_ptr<Watch>& watch, const Call& call) const;

  c10::intrusive_ptr<c10d::Store> store_;
  Options options_;
};

}  // namespace twinkle::mesh
