// Texts of any length between the ranks of a process group.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "parallel/process_group.h"

namespace keel::trainer {

// Every rank's text, in group order, on every rank: small structures that all must know. This and
// the others are collective over `group`, whose tensors are on `device`.
std::vector<std::string> AllGatherBytes(parallel::ProcessGroup& group, std::string_view mine,
                                        at::Device device);

// The same for few texts that are long: each goes out once as it is, nothing is padded.
std::vector<std::string> ShareBytes(parallel::ProcessGroup& group, std::string_view mine,
                                    at::Device device);

// Every rank's text, in group order, on rank `root` of the group; empty ones on the others.
std::vector<std::string> CollectBytes(parallel::ProcessGroup& group, int root,
                                      std::string_view mine, at::Device device);

// Rank 0's status, on every rank.
Status ShareStatus(parallel::ProcessGroup& group, const Status& mine, at::Device device);

}  // namespace keel::trainer
