// What a rank of the checkpoint benchmark trains.
#pragma once

#include <cstdint>
#include <string>

namespace keel::bench {

struct StateOptions {
  // decoder: 40 matrices, 4 below 16 MB, each as bf16 weights, fp32 masters and two fp32 moments.
  // small: 20,000 fp32 vectors of 4 to 64 KiB, weights alone.
  std::string kind = "decoder";
  int64_t megabytes = 1000;  // of a decoder, over all ranks
};

}  // namespace keel::bench
