#include "trainer/data/tokens/raw_ids_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "common/text.h"
#include "trainer/data/tokens/megatron_file.h"

namespace keel::trainer {

namespace {

// First bytes of files that are called .bin too, and are no ids: they are none of ours.
struct Foreign {
  std::string_view begin;
  const char* name;
};
constexpr Foreign kForeign[] = {
    {std::string_view("PK\3\4", 4), "a zip file, such as PyTorch's weights"},
    {std::string_view("\x80\x02", 2), "a pickle, such as PyTorch's weights"},
    {std::string_view("GGUF", 4), "a GGUF file"},
    {std::string_view("KEELTOK\n", 8), "a token shard: name its folder"},
    {std::string_view("MMIDIDX", 7), "an index of Megatron's"},
    // 20240520 and version 1, 32 bits each.
    {std::string_view("\x88\xd8\x34\x01\x01\0\0\0", 8),
     "a file of llm.c, with a header: cut its first 1,024 bytes off (tail -c +1025)"},
    // 20240801 and version 7.
    {std::string_view("\xa1\xd9\x34\x01\x07\0\0\0", 8),
     "a file of llm.c with ids of 32 bits, of a vocabulary such as Llama 3's: give Megatron's "
     ".bin and .idx, or shards of keel data tokenize"},
    // 278895051 and version 1.
    {std::string_view("\xcb\x99\x9f\x10\x01\0\0\0", 8),
     "a shard of NeMo's NanogptDataset, with a header: where its ids are of 16 bits (the fourth "
     "number is 2) cut its first 1,024 bytes off (tail -c +1025), else give Megatron's .bin and "
     ".idx, or shards of keel data tokenize"},
};

// What llm.c and its heirs begin a file with: 256 numbers of 32 bits, of which few are used.
constexpr size_t kHeader = 1024;
// Whether a file begins with numbers of which all behind the first eight are 0.
bool LooksLikeHeader(std::string_view text) {
  constexpr size_t kUsed = 32;
  if (text.size() <= kHeader) return false;
  const bool rest = text.substr(kUsed, kHeader - kUsed).find_first_not_of('\0') == text.npos;
  return rest && text.substr(0, kUsed).find_first_not_of('\0') != text.npos;
}

// Of a file, by which text is told.
constexpr size_t kHead = 4096;

// Whether pages all over a file look like ids of 32 bits, little-endian, of a vocabulary up to
// 2^18: each second word of 16 bits is the upper half of an id, which is at most 3. Where the
// other words are as small, as of a vocabulary of four letters, they are ids of 16 bits.
bool LooksLike32Bits(const MappedFile& file) {
  const std::span<const std::byte> bytes = file.bytes();
  constexpr size_t kLeast = 64, kPage = 4096, kPages = 64;
  constexpr uint16_t kMostUpper = 3;
  if (bytes.size() % 4 != 0 || bytes.size() < 4 * kLeast) return false;
  bool larger = false;
  for (size_t page = 0; page < kPages; ++page) {
    const size_t begin = (bytes.size() / 4) / kPages * page * 4;
    const size_t end = std::min(begin + kPage, bytes.size());
    for (size_t at = begin; at < end; at += 4) {
      uint16_t words[2];
      std::memcpy(words, bytes.data() + at, sizeof words);
      if (words[1] > kMostUpper) return false;
      larger |= words[0] > kMostUpper;
    }
    file.Release(static_cast<int64_t>(begin), static_cast<int64_t>(end - begin));
  }
  return larger;
}

}  // namespace

RawIdsFile::RawIdsFile(std::unique_ptr<MappedFile> file)
    : file_(std::move(file)),
      tokens_(static_cast<int64_t>(file_->bytes().size() / 2)),
      digest_(SampledDigest(*file_)) {}

Result<std::shared_ptr<const RawIdsFile>> RawIdsFile::Open(const std::string& path) {
  KEEL_ASSIGN_OR_RETURN(auto file, MappedFile::Open(path));
  const std::string_view text(reinterpret_cast<const char*>(file->bytes().data()),
                              file->bytes().size());
  const std::string name = "data file " + Printable(path);
  for (const Foreign& foreign : kForeign) {
    if (!text.starts_with(foreign.begin)) continue;
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: is {}; expected raw 16-bit ids, as nanoGPT's .bin has, or the "
                              ".idx of Megatron's beside it",
                              name, foreign.name));
  }
  if (LooksLikeHeader(text)) {
    return Status(
        StatusCode::kInvalidData,
        fmt::format("{}: begins with what looks like a header, of {} bytes all but a few "
                    "of which are 0: where ids of 16 bits stand behind it cut it off "
                    "(tail -c +{}); where they are ids themselves, or others stand behind, "
                    "give Megatron's .bin and .idx, or shards of keel data tokenize",
                    name, kHeader, kHeader + 1));
  }
  // Ids have zeros and bytes that no text has; learnt as ids, text would be any ids at all.
  const std::string_view head = text.substr(0, kHead);
  const size_t bad = FindNotUtf8(head);
  const bool cut_off =
      bad != std::string_view::npos && head.size() - bad < 4 && kHead < text.size();
  if (head.size() >= 16 && head.find('\0') == std::string_view::npos &&
      (bad == std::string_view::npos || cut_off)) {
    return Status(
        StatusCode::kInvalidData,
        fmt::format("{}: is text, and a .bin is read as raw 16-bit ids (nanoGPT): name it "
                    ".txt, or .jsonl where it has rows",
                    name));
  }
  if (text.size() % 2 != 0) {
    return Status(
        StatusCode::kInvalidData,
        fmt::format("{}: {} bytes, which are no 16-bit ids (nanoGPT); Megatron's .bin has "
                    "its .idx beside it",
                    name, text.size()));
  }
  if (LooksLike32Bits(*file)) {
    return Status(
        StatusCode::kInvalidData,
        fmt::format("{}: looks like ids of 32 bits (np.uint32): each second 16-bit word is at most "
                    "3, and a .bin is read as raw 16-bit ids (nanoGPT); give Megatron's .bin and "
                    ".idx, or shards of keel data tokenize, or write it as np.uint16 where all "
                    "ids are below 65,536",
                    name));
  }
  return std::shared_ptr<const RawIdsFile>(new RawIdsFile(std::move(file)));
}

Status RawIdsFile::Read(int64_t begin, std::span<int32_t> ids, std::span<uint8_t> learn) const {
  KEEL_RETURN_IF_ERROR(file_->CheckUnchanged());
  std::fill(learn.begin(), learn.end(), uint8_t{1});
  WidenIds(file_->bytes().data() + 2 * begin, 2, false, ids);
  file_->Release(2 * begin, 2 * std::ssize(ids));
  return file_->CheckUnchanged();
}

}  // namespace keel::trainer
