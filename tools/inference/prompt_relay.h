// PromptRelay: rank 0 of a TP group says which prompts all of its ranks take into their engines.
//
// Every rank's engine must get the same requests in the same order, and one rank alone reads the
// input. Collective: rank 0 sends what the others receive. Used from one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/groups/process_group.h"

namespace keel::tools {

using Prompts = std::vector<std::vector<int32_t>>;

class PromptRelay {
 public:
  // `group` must outlive this; its deadline is how long the others wait for rank 0, who may wait
  // for a person.
  explicit PromptRelay(parallel::ProcessGroup& group) : group_(group) {}

  bool leads() const { return group_.rank() == 0; }
  // On rank 0.
  void Send(const Prompts& prompts);
  void SendEnd();
  // On the others; nothing: the end.
  std::optional<Prompts> Receive();
  // Text instead of prompts; SendEnd() ends these, too.
  void SendBytes(std::string_view bytes);
  std::optional<std::string> ReceiveBytes();
  // On all: the least of what they say.
  int64_t Least(int64_t value);

 private:
  parallel::ProcessGroup& group_;
};

}  // namespace keel::tools
