#include "checkpoint/read/box_stream.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "common/memory/page_memory.h"
#include "common/tensors/dtype.h"

namespace keel::checkpoint {

std::vector<Box> CutIntoSlabs(const Box& box, int64_t max_elements) {
  std::vector<Box> slabs;
  if (box.empty()) return slabs;
  // The innermost dims that fit as a whole, and how many of the dim outside them fit.
  int64_t inner = 1;
  int dim = box.dims();
  while (dim > 0 && inner * box.size[dim - 1] <= max_elements) inner *= box.size[--dim];
  if (dim == 0) return {box};
  const int cut = dim - 1;
  const int64_t rows = std::max<int64_t>(1, max_elements / inner);
  Box slab = box;
  for (int d = 0; d <= cut; ++d) slab.size[d] = 1;
  for (;;) {
    slab.size[cut] = std::min(rows, box.offset[cut] + box.size[cut] - slab.offset[cut]);
    slabs.push_back(slab);
    slab.offset[cut] += slab.size[cut];
    int d = cut;
    while (slab.offset[d] == box.offset[d] + box.size[d]) {
      slab.offset[d] = box.offset[d];
      if (d == 0) return slabs;
      ++slab.offset[--d];
    }
  }
}

Result<ChunkedDigest> StreamBoxes(const StepReader& reader, std::string_view scope,
                                  std::span<const StreamedBox> boxes, std::string_view header,
                                  FileSystem& out, const std::string& path, int64_t chunk_bytes,
                                  const BoxStreamOptions& options) {
  constexpr int64_t kLargestElement = 16;
  const int64_t budget = std::max(options.buffer_bytes, kLargestElement);
  std::vector<StreamedBox> slabs;
  CreateOptions create;
  create.preallocate = static_cast<int64_t>(header.size());
  for (const StreamedBox& one : boxes) {
    const int64_t size = DTypeSize(one.tensor.dtype);
    create.preallocate += one.box.elements() * size;
    for (Box& slab : CutIntoSlabs(one.box, budget / size)) slabs.push_back({one.tensor, slab});
  }
  const auto bytes_of = [](const StreamedBox& slab) {
    return slab.box.elements() * DTypeSize(slab.tensor.dtype);
  };

  KEEL_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, out.Create(path, create));
  ChunkHasher hasher(chunk_bytes);
  int64_t at = 0;
  const auto append = [&](std::span<const std::byte> bytes) {
    hasher.Update(bytes);
    const Status status = file->WriteAt(at, bytes);
    at += static_cast<int64_t>(bytes.size());
    return status;
  };
  KEEL_RETURN_IF_ERROR(append(std::as_bytes(std::span(header))));
  const PageMemory buffer = AllocatePages(budget);
  if (buffer == nullptr) {
    return Status(StatusCode::kUnavailable, "no memory for the buffer of " + path);
  }
  for (size_t first = 0; first < slabs.size();) {
    ShardTable batch;
    int64_t bytes = 0;
    for (; first < slabs.size() && bytes + bytes_of(slabs[first]) <= budget; ++first) {
      const StreamedBox& slab = slabs[first];
      KEEL_RETURN_IF_ERROR(batch.Add(slab.tensor, slab.box,
                                     {buffer.get() + bytes, ContiguousStrides(slab.box.size)}));
      bytes += bytes_of(slab);
    }
    const ReadRequest request{std::string(scope), &batch, {}};
    KEEL_RETURN_IF_ERROR(reader.Read(std::span(&request, 1), options.threads).status());
    KEEL_RETURN_IF_ERROR(append(std::span(buffer.get(), static_cast<size_t>(bytes))));
  }
  KEEL_RETURN_IF_ERROR(file->Sync());
  KEEL_RETURN_IF_ERROR(file->Close());
  return hasher.Finish();
}

}  // namespace keel::checkpoint
