#include "rollout/sequence.h"

namespace keel::rollout {

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kError:
      return "error";
  }
  return "?";
}

}  // namespace keel::rollout
