#include "trainer/data/tokens/megatron_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "common/text.h"

namespace keel::trainer {

namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr int64_t kHeaderBytes = 9 + 8 + 1 + 8 + 8;

template <typename T>
T Load(std::span<const std::byte> bytes, int64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

struct IdType {
  int64_t width;
  bool is_signed;
};

// By Megatron's code; width 0 for those that are no integers.
IdType TypeOf(uint8_t code) {
  switch (code) {
    case 1:
      return {1, false};
    case 2:
      return {1, true};
    case 3:
      return {2, true};
    case 4:
      return {4, true};
    case 5:
      return {8, true};
    case 8:
      return {2, false};
    default:
      return {0, false};
  }
}

template <typename T>
bool Widen(const std::byte* from, std::span<int32_t> ids) {
  bool fits = true;
  for (size_t i = 0; i < ids.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    fits = fits && std::in_range<int32_t>(value) && std::cmp_greater_equal(value, 0);
    ids[i] = static_cast<int32_t>(value);
  }
  return fits;
}

}  // namespace

bool WidenIds(const std::byte* from, int64_t width, bool is_signed, std::span<int32_t> ids) {
  switch (width) {
    case 1:
      return is_signed ? Widen<int8_t>(from, ids) : Widen<uint8_t>(from, ids);
    case 2:
      return is_signed ? Widen<int16_t>(from, ids) : Widen<uint16_t>(from, ids);
    case 4:
      return Widen<int32_t>(from, ids);
    default:
      return Widen<int64_t>(from, ids);
  }
}

Digest128 SampledDigest(const MappedFile& file) {
  const std::span<const std::byte> bytes = file.bytes();
  constexpr size_t kEnds = size_t{1} << 20;
  constexpr size_t kPage = 4096;
  constexpr size_t kPages = 1024;
  Hasher128 hasher;
  const uint64_t size = bytes.size();
  hasher.Update(std::as_bytes(std::span(&size, 1)));
  if (size <= 2 * kEnds + kPages * kPage) {
    hasher.Update(bytes);
    file.Release(0, std::ssize(bytes));
    return hasher.Finish();
  }
  const auto update = [&](size_t begin, size_t count) {
    hasher.Update(bytes.subspan(begin, count));
    file.Release(static_cast<int64_t>(begin), static_cast<int64_t>(count));
  };
  update(0, kEnds);
  update(bytes.size() - kEnds, kEnds);
  for (size_t i = 0; i < kPages; ++i)
    update(kEnds + (bytes.size() - 2 * kEnds) / kPages * i, kPage);
  return hasher.Finish();
}

std::optional<std::string> MegatronFile::PrefixOf(const std::string& path) {
  std::string prefix = path;
  if (path.ends_with(".idx") || path.ends_with(".bin")) prefix.resize(prefix.size() - 4);
  std::error_code error;
  if (path.ends_with(".idx") || std::filesystem::exists(prefix + ".idx", error)) return prefix;
  return std::nullopt;
}

Result<std::shared_ptr<const MegatronFile>> MegatronFile::Open(const std::string& prefix) {
  std::shared_ptr<MegatronFile> file(new MegatronFile);
  KEEL_ASSIGN_OR_RETURN(const auto index, MappedFile::Open(prefix + ".idx"));
  KEEL_ASSIGN_OR_RETURN(file->bin_, MappedFile::Open(prefix + ".bin"));
  file->name_ = "Megatron file " + Printable(prefix + ".bin");
  KEEL_RETURN_IF_ERROR(file->ReadIndex(*index));
  const Digest128 parts[] = {Hash128(index->bytes()), SampledDigest(*file->bin_)};
  file->digest_ = Hash128(std::as_bytes(std::span(parts)));
  return std::shared_ptr<const MegatronFile>(std::move(file));
}

Status MegatronFile::ReadIndex(const MappedFile& index) {
  const std::string name = "Megatron index " + Printable(index.path());
  const auto refuse = [&](const std::string& text) {
    return Status(StatusCode::kInvalidData, fmt::format("{}: {}", name, text));
  };
  const auto bytes = index.bytes();
  const auto size = static_cast<int64_t>(bytes.size());
  if (size < kHeaderBytes || std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0)
    return refuse("is no index of Megatron's: it does not begin with MMIDIDX");

  // 1. The header, and that the file has just the arrays that it announces.
  const auto version = Load<uint64_t>(bytes, 9);
  if (version != 1) return refuse(fmt::format("version {}, expected 1", version));
  const auto code = Load<uint8_t>(bytes, 17);
  const IdType type = TypeOf(code);
  if (type.width == 0) {
    return refuse(
        fmt::format("dtype {}: {}; expected integers: 1 (uint8), 2 (int8), 3 (int16), 4 "
                    "(int32), 5 (int64) or 8 (uint16)",
                    code, code == 6 || code == 7 ? "floating point" : "is not known"));
  }
  width_ = type.width;
  is_signed_ = type.is_signed;
  const auto sequences = Load<uint64_t>(bytes, 18);
  const auto documents = Load<uint64_t>(bytes, 26);
  const auto most = static_cast<uint64_t>(size);
  if (sequences > most / 12 || documents > most / 8 || documents == 0)
    return refuse(fmt::format("{} sequences and {} documents do not fit into its {} bytes",
                              sequences, documents, size));
  const auto count = static_cast<int64_t>(sequences);
  const int64_t lengths = kHeaderBytes;
  const int64_t pointers = lengths + 4 * count;
  const int64_t indices = pointers + 8 * count;
  const int64_t end = indices + 8 * static_cast<int64_t>(documents);
  if (size != end && size != end + count) {
    return refuse(
        fmt::format("{} bytes, {} sequences and {} documents take {}: it was cut off, or "
                    "something was added",
                    size, sequences, documents, end));
  }
  for (int64_t i = end; i < size; ++i) {
    if (bytes[static_cast<size_t>(i)] != std::byte{0}) {
      return refuse(fmt::format("sequence {} has mode {}: sequences that are no text are not read",
                                i - end, std::to_integer<int>(bytes[static_cast<size_t>(i)])));
    }
  }

  // 2. Each document's sequences, and where they lie.
  const auto bin_bytes = static_cast<int64_t>(bin_->bytes().size());
  int64_t tokens = 0, sequence = 0;
  for (int64_t d = 0; d < static_cast<int64_t>(documents); ++d) {
    const auto last = Load<int64_t>(bytes, indices + 8 * d);
    if (last < sequence || last > count || (d == 0 && last != 0)) {
      return refuse(fmt::format("document index {} is {}, expected {} to {}", d, last, sequence,
                                d == 0 ? 0 : count));
    }
    for (; sequence < last; ++sequence) {
      const auto length = Load<int32_t>(bytes, lengths + 4 * sequence);
      const auto pointer = Load<int64_t>(bytes, pointers + 8 * sequence);
      if (length < 0 || pointer < 0 || pointer > bin_bytes ||
          length > (bin_bytes - pointer) / width_) {
        return refuse(
            fmt::format("sequence {}: {} tokens of {} bytes at byte {} do not lie in the "
                        "{} bytes of {}",
                        sequence, length, width_, pointer, bin_bytes, name_));
      }
      if (length == 0) continue;
      offsets_.push_back(pointer);
      tokens += length;
      sequences_.push_back(tokens);
    }
    if (tokens > begins_.back()) begins_.push_back(tokens);
  }
  if (sequence != count)
    return refuse(fmt::format("its documents end at sequence {} of {}", sequence, count));
  return Status::Ok();
}

Status MegatronFile::ReadRun(int64_t offset, std::span<int32_t> ids) const {
  const bool fits = WidenIds(bin_->bytes().data() + offset, width_, is_signed_, ids);
  bin_->Release(offset, std::ssize(ids) * width_);
  if (fits) return Status::Ok();
  return Status(StatusCode::kInvalidData,
                fmt::format("{}: an id that is negative or more than 31 bits, among the {} at byte "
                            "{}",
                            name_, ids.size(), offset));
}

Status MegatronFile::Read(int64_t begin, std::span<int32_t> ids, std::span<uint8_t> learn) const {
  KEEL_RETURN_IF_ERROR(bin_->CheckUnchanged());
  std::fill(learn.begin(), learn.end(), uint8_t{1});
  const auto after = std::upper_bound(sequences_.begin(), sequences_.end(), begin);
  auto sequence = static_cast<size_t>(after - sequences_.begin()) - 1;
  for (size_t done = 0; done < ids.size(); ++sequence) {
    const int64_t at = begin + static_cast<int64_t>(done);
    const auto count =
        std::min(ids.size() - done, static_cast<size_t>(sequences_[sequence + 1] - at));
    const int64_t offset = offsets_[sequence] + (at - sequences_[sequence]) * width_;
    KEEL_RETURN_IF_ERROR(ReadRun(offset, ids.subspan(done, count)));
    done += count;
  }
  return bin_->CheckUnchanged();
}

}  // namespace keel::trainer
