// Texts of any length between the ranks of a process group: small structures that all must know.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <string_view>
#include <vector>

#include "parallel/process_group.h"

namespace keel::trainer {

// Every rank's text, in group order, on every rank. Collective over `group`, whose tensors are on
// `device`.
std::vector<std::string> AllGatherBytes(parallel::ProcessGroup& group, std::string_view mine,
                                        at::Device device);

}  // namespace keel::trainer
