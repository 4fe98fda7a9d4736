// The arguments of a loss: those of several ranks as one, and those of a part of a batch. Needs the
// GIL.
#pragma once
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

namespace twinkle::python::batch {

namespace py = pybind11;

// Arguments with an entry for each sequence of a rank's follow one another, all others must be the
// same everywhere. of_ranks: {name: value} of each rank, in their order; rank: this one; counts:
// their sequences; named: the arguments with an entry for each sequence, or for each pair of them,
// or None: nobody has said which, and they are those of Twinkle's losses; cut: what a call has cut
// into pieces, {name: True or False, or of a dict the same of each entry}, or None: nothing.
//
// Others are numbers, texts or arrays that are equal on all ranks, or objects of which each rank
// has its own. Error kInvalid: they are not; one with a length that nobody names; ranks have given
// other names; a named one has another length; dicts 64 times in one another.
py::object joined(const std::vector<py::object>& of_ranks, py::ssize_t rank,
                  const std::vector<py::ssize_t>& counts, const py::object& named,
                  const py::object& cut);

// The arguments of `size` sequences from `begin` on, of a batch of `total`. are_of_rows: {name:
// whether it has an entry for each sequence, or, of a dict, the same of each entry}; of what is not
// in it, or where it is None, lengths tell.
py::object part_of(const py::object& arguments, py::ssize_t begin, py::ssize_t size,
                   py::ssize_t total, const py::object& are_of_rows);

}  // namespace twinkle::python::batch
