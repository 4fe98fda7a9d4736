// twinkle._core.Checkpoint and what reads and writes weight files. Arrays are views of the mapped
// file where they can be; NumPy has no bfloat16, so BF16 is uint16 here, the same bits.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "python/src/json_caster.h"
#include "python/src/released_gil.h"
#include "twinkle/io/atomic.h"
#include "twinkle/io/checkpoint.h"
#include "twinkle/io/folder/digest.h"
#include "twinkle/io/gguf/gguf.h"
#include "twinkle/io/peft/peft.h"
#include "twinkle/io/safetensors.h"
#include "twinkle/lora/peft/new_adapter.h"

namespace py = pybind11;

namespace twinkle::python {
namespace {

namespace fs = std::filesystem;

// NumPy's letter and size of each dtype.
constexpr std::array<std::pair<Dtype, const char*>, 10> kNumpyNames = {{{Dtype::kF64, "f8"},
                                                                        {Dtype::kF32, "f4"},
                                                                        {Dtype::kF16, "f2"},
                                                                        {Dtype::kBF16, "u2"},
                                                                        {Dtype::kI64, "i8"},
                                                                        {Dtype::kI32, "i4"},
                                                                        {Dtype::kI16, "i2"},
                                                                        {Dtype::kI8, "i1"},
                                                                        {Dtype::kU8, "u1"},
                                                                        {Dtype::kBool, "?"}}};

// A read-only array of the tensor's bytes, read from its file.
py::array array_of(const StoredTensor& stored) {
  const TensorView view = [&] {
    const ReleasedGil released;
    return stored.load();
  }();
  using Owner = std::shared_ptr<const void>;
  const py::dtype dtype(kNumpyNames.at(static_cast<size_t>(view.dtype)).second);
  const py::capsule owner(std::make_unique<Owner>(view.owner).release(), [](void* held) {
    const std::unique_ptr<Owner> freed(static_cast<Owner*>(held));
  });
  py::array out(dtype, view.shape, view.bytes.data(), owner);
  out.attr("setflags")(py::arg("write") = false);
  return out;
}

py::array array(const Checkpoint& checkpoint, const std::string& name) {
  return array_of(checkpoint.at(name));
}

py::array to_float32(const Checkpoint& checkpoint, const std::string& name) {
  const StoredTensor& stored = checkpoint.at(name);
  py::array raw = array_of(stored);
  if (stored.dtype != Dtype::kBF16) return raw.attr("astype")("f4");
  const py::object bits = raw.attr("astype")("u4").attr("__lshift__")(16);
  return bits.attr("astype")("u4").attr("view")("f4");
}

Dtype dtype_of(const std::string& name, const py::array& value) {
  for (const auto& [dtype, spelled] : kNumpyNames) {
    if (py::dtype(spelled).equal(value.dtype())) return dtype;
  }
  fail(Code::kInvalid, "io: tensor '", name, "' is a NumPy array of ",
       std::string(py::str(value.dtype())),
       ", it must be of float64, float32, float16, uint16 (BF16), int64, int32, int16, int8, uint8 "
       "or bool");
}

// `kept` owns what the views borrow.
TensorView view_of(const std::string& name, const py::array& value, std::vector<py::array>& kept) {
  const Dtype dtype = dtype_of(name, value);
  const py::array& array = kept.emplace_back(py::array::ensure(value, py::array::c_style));
  return {
      .name = name,
      .dtype = dtype,
      .shape = {array.shape(), array.shape() + array.ndim()},
      .bytes = {static_cast<const std::byte*>(array.data()), static_cast<size_t>(array.nbytes())}};
}

void write(const fs::path& file, const std::map<std::string, py::array>& tensors,
           const std::map<std::string, std::string>& metadata) {
  std::vector<py::array> kept;
  std::vector<TensorView> views;
  for (const auto& [name, value] : tensors) views.push_back(view_of(name, value, kept));
  const ReleasedGil released;
  write_safetensors(file, views, metadata);
}

py::tuple read_adapter(const fs::path& dir) {
  const PeftAdapter adapter = read_peft(dir);
  py::dict modules;
  for (const StoredPeftEntry& entry : adapter.entries) {
    py::list tensors;
    tensors.append(array_of(entry.a));
    tensors.append(array_of(entry.b));
    if (entry.magnitude) tensors.append(array_of(*entry.magnitude));
    modules[py::str(entry.module)] = py::tuple(tensors);
  }
  return py::make_tuple(from_json(json_of(adapter.config)), modules);
}

void write_adapter(const fs::path& dir, const py::dict& config,
                   const std::map<std::string, std::vector<py::array>>& modules) {
  std::vector<py::array> kept;
  std::vector<PeftEntry> entries;
  for (const auto& [module, tensors] : modules) {
    require(tensors.size() == 2 || tensors.size() == 3, Code::kInvalid, "io: module '", module,
            "' has ", tensors.size(), " tensors, it must have A and B, and DoRA's magnitude");
    entries.push_back(
        {module, view_of(module, tensors[0], kept), view_of(module, tensors[1], kept)});
    if (tensors.size() == 3) entries.back().magnitude = view_of(module, tensors[2], kept);
  }
  const PeftConfig parsed = peft_config(to_json(config, "io: config"), "config");
  const ReleasedGil released;
  AtomicDirectory out(dir);
  write_peft(out.staging(), parsed, entries);
  out.commit();
}

// A LoraConfig's fields, checked.
py::object new_adapter_fields(const py::dict& given) {
  JsonObject fields;
  for (const auto& [key, value] : given) {
    const std::string name(utf8(py::str(key), "lora: the name of a field"));
    fields[name] = to_json(value, "lora: " + name);
  }
  return from_json(lora::new_adapter_fields(std::move(fields)));
}

void convert(const fs::path& file, const fs::path& directory, const py::dict& source) {
  const Json said = to_json(source, "io: source");
  const ReleasedGil released;
  std::map<std::string, std::string> texts{{"source.json", pretty(said)}};
  for (const auto& [name, content] : gguf_bpe(file)) texts[name] = pretty(content);
  convert_gguf(file, directory, texts);
}

Checkpoint open(const fs::path& path) { return Checkpoint::open(path); }

}  // namespace
}  // namespace twinkle::python

void bind_io(py::module_& m) {
  using namespace twinkle;
  using Released = py::call_guard<twinkle::python::ReleasedGil>;
  py::class_<Checkpoint>(m, "Checkpoint",
                         "A model's weights by Hugging Face names: a safetensors or GGUF file, or "
                         "a directory with one.")
      .def(py::init(&python::open), py::arg("path"), Released())
      .def("names", &Checkpoint::names, "Every tensor's name, sorted.")
      .def("__contains__", &Checkpoint::contains)
      .def("metadata", &Checkpoint::metadata)
      .def("config", [](const Checkpoint& c) { return python::from_json(c.config()); })
      .def(
          "dtype",
          [](const Checkpoint& c, const std::string& name) {
            return std::string(name_of(c.at(name).dtype));
          },
          py::arg("name"), "'F32', 'BF16', ...")
      .def("array", &python::array, py::arg("name"),
           "Read from its file: read-only, row-major; BF16 as uint16 of the same bits.")
      .def("to_float32", &python::to_float32, py::arg("name"), "A copy in float32.");
  m.def("digest_of_files", &digest_of_files, py::arg("path"), Released(),
        "Of a model's folder or its one file, by what ranks are compared: io/folder/digest.h.");
  m.def("digest_of_texts", &digest_of_texts, py::arg("path"), Released(),
        "Of the files of a model's folder by which texts become ids: io/folder/digest.h.");
  m.def(
      "gguf_config",
      [](const std::filesystem::path& file) { return python::from_json(gguf_config(file)); },
      py::arg("file"), "What the config.json of a GGUF file's model says.");
  m.def(
      "gguf_metadata",
      [](const std::filesystem::path& file) {
        return python::from_json(GgufFile(file).metadata());
      },
      py::arg("file"), "A GGUF file's metadata.");
  m.def("convert_gguf", &python::convert, py::arg("file"), py::arg("directory"), py::arg("source"),
        "Writes config.json, model.safetensors, all in BF16, the tokenizer's files, and what "
        "source.json says, replacing the directory.");
  m.def("write_safetensors", &python::write, py::arg("path"), py::arg("tensors"),
        py::arg("metadata") = std::map<std::string, std::string>{{"format", "pt"}},
        "Writes one file atomically; uint16 arrays are BF16.");
  m.def(
      "peft_config",
      [](const std::filesystem::path& dir) {
        return python::from_json(json_of(read_peft_config(dir)));
      },
      py::arg("directory"), "The fields of a PEFT directory's adapter_config.json that count.");
  m.def("new_adapter_fields", &python::new_adapter_fields, py::arg("given"),
        "The fields of a LoRA config that is given, by peft's names, checked and in one form.");
  m.def("read_peft", &python::read_adapter, py::arg("directory"),
        "(adapter_config.json's fields, {module: (A [r, in], B [out, r])}) of a PEFT directory; of "
        "DoRA's with a third tensor, the magnitude [out].");
  m.def("write_peft", &python::write_adapter, py::arg("directory"), py::arg("config"),
        py::arg("modules"), "Writes a PEFT directory, replacing it as a whole.");
}
