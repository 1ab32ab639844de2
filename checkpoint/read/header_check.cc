#include "checkpoint/read/header_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "checkpoint/format/safetensors.h"
#include "common/text.h"

namespace keel::checkpoint {

// Two passes over the boxes: how many a file has, and which.
void HeaderCheck::ListPlaces(const Index& index) {
  first_.assign(static_cast<size_t>(index.files()) + 1, 0);
  data_from_.assign(static_cast<size_t>(index.files()), 0);
  for (int64_t b = 0; b < index.boxes(); ++b) ++first_[static_cast<size_t>(index.box_file(b)) + 1];
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
  places_.resize(static_cast<size_t>(index.boxes()));
  std::vector<size_t> next(first_.begin(), std::prev(first_.end()));
  for (int64_t t = 0; t < index.tensors(); ++t) {
    const IndexTensor tensor = index.tensor(t);
    for (int64_t b = tensor.first_box; b < tensor.first_box + tensor.box_count; ++b) {
      const auto file = static_cast<size_t>(index.box_file(b));
      const int64_t begin = index.box_begin(b);
      const bool first = next[file] == first_[file];
      data_from_[file] = first ? begin : std::min(data_from_[file], begin);
      places_[next[file]++] = {static_cast<int32_t>(t), static_cast<int32_t>(b)};
    }
  }
}

std::span<const HeaderCheck::Place> HeaderCheck::PlacesOf(int file) const {
  const auto f = static_cast<size_t>(file);
  return std::span(places_).subspan(first_[f], first_[f + 1] - first_[f]);
}

// "" for what no header can hold.
std::string HeaderCheck::Build(const Index& index, int file) const {
  // By place. A box without elements begins where the next one does.
  struct Placed {
    int64_t begin = 0;
    int64_t bytes = 0;
    SafetensorsPart part;
  };
  std::vector<Placed> placed;
  placed.reserve(PlacesOf(file).size());
  for (const Place& place : PlacesOf(file)) {
    const IndexTensor tensor = index.tensor(place.tensor);
    const IndexBox box = index.box(place.box);
    placed.push_back(
        {box.begin, box.bytes, {tensor.name, tensor.dtype, box.box.size, box.box.offset}});
  }
  const auto by_place = [](const Placed& a, const Placed& b) {
    return std::pair(a.begin, a.bytes) < std::pair(b.begin, b.bytes);
  };
  if (!std::is_sorted(placed.begin(), placed.end(), by_place))
    std::sort(placed.begin(), placed.end(), by_place);
  std::vector<SafetensorsPart> parts;
  parts.reserve(placed.size());
  for (const Placed& one : placed) parts.push_back(one.part);
  Result<std::string> header = BuildShardedSafetensorsHeader(parts);
  return header.ok() ? std::move(header).value() : std::string();
}

bool HeaderCheck::IsExpected(const Index& index, int file, int64_t begin,
                             std::span<const std::byte> block) {
  std::call_once(listed_, [&] { ListPlaces(index); });
  const int64_t header = data_from_[static_cast<size_t>(file)];
  if (PlacesOf(file).empty()) return begin > 0 || !index.file(file).path.ends_with(".safetensors");
  // A file in which the index places something begins with a header.
  if (begin >= header && header > 0) return true;
  const std::lock_guard lock(mutex_);
  const auto [found, made] = expected_.try_emplace(file);
  Expected& expected = found->second;
  if (made) {
    expected.bytes = Build(index, file);
    expected.left = header;
  }
  const int64_t bytes = std::min(static_cast<int64_t>(block.size()), header - begin);
  const bool same =
      std::ssize(expected.bytes) == header && bytes > 0 &&
      std::memcmp(expected.bytes.data() + begin, block.data(), static_cast<size_t>(bytes)) == 0;
  expected.left -= bytes;
  if (!same || expected.left <= 0) expected_.erase(found);
  return same;
}

Status HeaderCheck::Compare(const Index& index, int file, const FileSystem& fs,
                            std::string_view path) {
  std::call_once(listed_, [&] { ListPlaces(index); });
  const std::string where = fs.Describe(path);
  const Result<SafetensorsHeader> header = ReadSafetensorsHeader(fs, path);
  if (!header.ok())
    return Status(StatusCode::kDataLoss, header.status().cause(), header.status().message());
  std::map<std::string_view, const SafetensorsTensor*> entries;
  for (const SafetensorsTensor& tensor : header->tensors) entries.emplace(tensor.name, &tensor);
  const std::span<const Place> places = PlacesOf(file);
  for (const Place& place : places) {
    const IndexTensor tensor = index.tensor(place.tensor);
    const IndexBox box = index.box(place.box);
    const auto found = entries.find(tensor.name);
    if (found == entries.end()) {
      return Status(StatusCode::kDataLoss,
                    fmt::format("{}: tensor '{}', which the index places here at byte {}, is not "
                                "in its header",
                                where, Printable(tensor.name), box.begin));
    }
    const SafetensorsTensor& entry = *found->second;
    if (entry.begin == box.begin && entry.bytes() == box.bytes && entry.dtype == tensor.dtype &&
        entry.shape == box.box.size)
      continue;
    return Status(
        StatusCode::kDataLoss,
        fmt::format("{}: tensor '{}' is not where the index says: its header has {}{} at bytes {} "
                    "to {}, the index {}{} at bytes {} to {}",
                    where, Printable(tensor.name), DTypeName(entry.dtype), entry.shape.ToString(),
                    entry.begin, entry.end, DTypeName(tensor.dtype), box.box.size.ToString(),
                    box.begin, box.begin + box.bytes));
  }
  if (places.size() == entries.size()) return Status::Ok();
  return Status(StatusCode::kDataLoss, fmt::format("{}: holds {} tensors, the index knows {}",
                                                   where, entries.size(), places.size()));
}

}  // namespace keel::checkpoint
