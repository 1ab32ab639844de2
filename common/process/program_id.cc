#include "common/process/program_id.h"

#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <cstdint>
#include <cstring>

namespace keel {

namespace {

struct Search {
  uintptr_t here = 0;  // an address within the object that is looked for
  std::string id;
};

constexpr size_t AlignedTo4(size_t size) { return (size + 3) & ~size_t{3}; }

// The note of the name "GNU" and type NT_GNU_BUILD_ID among those in [at, end).
std::string FindBuildId(const char* at, const char* end) {
  while (static_cast<size_t>(end - at) >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    std::memcpy(&note, at, sizeof(note));
    const char* const name = at + sizeof(note);
    const char* const content = name + AlignedTo4(note.n_namesz);
    at = content + AlignedTo4(note.n_descsz);
    if (at > end) break;
    if (note.n_type != NT_GNU_BUILD_ID || note.n_namesz != 4 || std::memcmp(name, "GNU", 4) != 0)
      continue;
    std::string id;
    for (size_t i = 0; i < note.n_descsz; ++i)
      id += fmt::format("{:02x}", static_cast<unsigned char>(content[i]));
    return id;
  }
  return {};
}

int Visit(dl_phdr_info* object, size_t /*size*/, void* argument) {
  auto& search = *static_cast<Search*>(argument);
  bool holds = false;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = object->dlpi_phdr[i];
    const uintptr_t begin = object->dlpi_addr + part.p_vaddr;
    holds |= part.p_type == PT_LOAD && search.here >= begin && search.here < begin + part.p_memsz;
  }
  if (!holds) return 0;
  for (int i = 0; i < object->dlpi_phnum && search.id.empty(); ++i) {
    const ElfW(Phdr)& part = object->dlpi_phdr[i];
    if (part.p_type != PT_NOTE) continue;
    // NOLINTNEXTLINE: the loader gives addresses as numbers.
    const auto* const begin = reinterpret_cast<const char*>(object->dlpi_addr + part.p_vaddr);
    search.id = FindBuildId(begin, begin + part.p_memsz);
  }
  return 1;
}

}  // namespace

std::string_view ProgramVersion() { return KEEL_VERSION; }

std::string BuildId(const void* address) {
  Search search;
  search.here = reinterpret_cast<uintptr_t>(address);  // NOLINT
  dl_iterate_phdr(&Visit, &search);
  return search.id.empty() ? "unknown" : search.id;
}

}  // namespace keel
