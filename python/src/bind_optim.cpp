// twinkle._core.Schedule, and checks of an optimizer's options at the time they are set.
#include <pybind11/pybind11.h>

#include <string>

#include "twinkle/optim/optimizer.h"
#include "twinkle/optim/schedules/schedule.h"

namespace py = pybind11;
using namespace py::literals;
using twinkle::Json;

namespace {

Json options_of(const std::string& text) {
  return text.empty() ? Json() : twinkle::parse_json(text, "options");
}

struct Schedule {
  twinkle::optim::Schedule rate;
};

}  // namespace

void bind_optim(py::module_& m) {
  py::class_<Schedule>(m, "Schedule", "A learning rate as a function of the updates taken.")
      .def(py::init([](const std::string& name, const std::string& options) {
             return Schedule{twinkle::optim::make_schedule(name, options_of(options))};
           }),
           "name"_a, "options"_a = "")
      .def(
          "lr",
          [](const Schedule& s, double base_lr, int64_t step) { return s.rate(base_lr, step); },
          "base_lr"_a, "step"_a, "The rate of the update after `step` updates.");
  m.def(
      "check_optimizer",
      [](const std::string& name, const std::string& options) {
        return twinkle::optim::make(name, options_of(options))->lr();
      },
      "name"_a, "options"_a = "", "The learning rate of these options; raises what is wrong.");
}
