#include "twinkle/cli/serve/build_id.h"

#include <link.h>

#include <span>
#include <string_view>

namespace twinkle::cli {
namespace {

constexpr size_t aligned(size_t bytes) { return (bytes + 3) & ~size_t{3}; }

std::string hexadecimal(std::span<const unsigned char> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const unsigned char byte : bytes) (out += kDigits[byte >> 4]) += kDigits[byte & 15];
  return out;
}

// The id among the notes of a segment (elf(5)).
std::string id_in(std::span<const unsigned char> notes) {
  while (notes.size() >= sizeof(ElfW(Nhdr))) {
    const auto* const note = reinterpret_cast<const ElfW(Nhdr)*>(notes.data());
    const size_t name = sizeof *note, text = name + aligned(note->n_namesz),
                 end = text + aligned(note->n_descsz);
    if (end > notes.size()) break;
    if (note->n_type == NT_GNU_BUILD_ID) return hexadecimal(notes.subspan(text, note->n_descsz));
    notes = notes.subspan(end);
  }
  return "";
}

// Reads the first object, which is the program.
int look(dl_phdr_info* object, size_t, void* out) {
  for (const ElfW(Phdr) & part : std::span(object->dlpi_phdr, object->dlpi_phnum)) {
    if (part.p_type != PT_NOTE) continue;
    const auto* const notes =
        reinterpret_cast<const unsigned char*>(object->dlpi_addr + part.p_vaddr);
    const std::string id = id_in({notes, part.p_memsz});
    if (!id.empty()) *static_cast<std::string*>(out) = id;
  }
  return 1;
}

}  // namespace

std::string build_id() {
  std::string out;
  ::dl_iterate_phdr(look, &out);
  return out;
}

}  // namespace twinkle::cli
