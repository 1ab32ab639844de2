// HeaderCheck: whether the safetensors headers of a checkpoint's files say what its index says.
//
// Digests prove that index and files are those that were written; that they speak of the same
// tensors is proven here, at next to no cost: what the index expects of a header is built once, and
// compared with the blocks of the file that a reader reads anyway. One per index. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/index.h"
#include "common/files/file_system.h"
#include "common/status.h"

namespace keel::checkpoint {

class HeaderCheck {
 public:
  // False when `block`, the bytes of `file` from `begin` on, holds something else than the header
  // that Keel writes for the boxes which `index` places in the file. That need not be wrong: see
  // Compare. `index` is the same at each call.
  bool IsExpected(const Index& index, int file, int64_t begin, std::span<const std::byte> block);

  // Reads the header and compares its entries with the index, whoever has written it. kDataLoss
  // names the first tensor that is not where the index says.
  Status Compare(const Index& index, int file, const FileSystem& fs, std::string_view path);

 private:
  struct Place {
    int32_t tensor = 0;
    int32_t box = 0;
  };
  // A header, until all of it has been compared.
  struct Expected {
    std::string bytes;
    int64_t left = 0;
  };

  void ListPlaces(const Index& index);
  std::span<const Place> PlacesOf(int file) const;
  std::string Build(const Index& index, int file) const;

  std::once_flag listed_;
  std::vector<Place> places_;       // by file, and there by tensor
  std::vector<size_t> first_;       // of each file, and the end
  std::vector<int64_t> data_from_;  // of each file: where its header ends; 0 without boxes
  std::mutex mutex_;
  std::map<int, Expected> expected_;
};

}  // namespace keel::checkpoint
