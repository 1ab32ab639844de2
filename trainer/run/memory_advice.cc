#include "trainer/run/memory_advice.h"

#include <fmt/format.h>

#include <string>

namespace keel::trainer {

Status WithMemoryAdvice(const Status& status, std::string_view place, std::string_view advice) {
  std::string message = fmt::format("{}, {}", status.message(), place);
  if (status.cause() == StatusCause::kMemory) message += fmt::format(". {}", advice);
  return Status(status.code(), status.cause(), std::move(message));
}

}  // namespace keel::trainer
