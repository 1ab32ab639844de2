#include "common/guarded.h"

#include <fmt/format.h>

#include <new>
#include <string>
#include <string_view>
#include <system_error>

namespace keel {

Status StatusOf(const std::exception& error) {
  if (const auto* const known = dynamic_cast<const Error*>(&error)) return known->status();
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return Status(StatusCode::kExhausted, StatusCause::kMemory, "out of memory");
  if (const auto* const system = dynamic_cast<const std::system_error*>(&error);
      system != nullptr && system->code() == std::errc::resource_unavailable_try_again) {
    return Status(StatusCode::kExhausted,
                  fmt::format("no thread to be had ({}): raise the limit of processes (ulimit -u, "
                              "or the container's pids.max), or of address space (ulimit -v)",
                              error.what()));
  }
  std::string_view text = error.what();
  // torch's forms of a stack, of a failed check, and of an allocation that failed.
  for (const std::string_view stack :
       {"\nException raised from ", "\nframe #", "\nC++ CapturedTraceback:"})
    text = text.substr(0, text.find(stack));
  for (const std::string_view sign :
       {"can't allocate memory", "out of memory", "not enough memory"}) {
    if (text.find(sign) == std::string_view::npos) continue;
    // "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory:
    // you tried to allocate 64 bytes. Error code 12 (Cannot allocate memory)"
    const size_t asked = text.find("tried to allocate ");
    const size_t end = text.find_first_of(".\n", asked == std::string_view::npos ? 0 : asked);
    return Status(StatusCode::kExhausted, StatusCause::kMemory,
                  asked == std::string_view::npos
                      ? std::string(text.substr(0, text.find('\n')))
                      : "out of memory: " + std::string(text.substr(asked, end - asked)));
  }
  return Status(StatusCode::kInternal, std::string(text));
}

}  // namespace keel
