// DataFile: the text of a data file, line by line or piece by piece.
//
// Regular files alone, unpacked where they are packed (byte_source.h). The content is looked at,
// not the name: what is not UTF-8 text is refused, by the name of its format where that is known.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "trainer/data/files/byte_source.h"

namespace keel::trainer {

class DataFile {
 public:
  // Longest line; more is refused rather than held in memory.
  static constexpr size_t kMaxLine = size_t{256} << 20;

  // kNotFound, or kInvalidData: no regular file, empty, or no text.
  static Result<DataFile> Open(const std::string& path, InputKind kind = InputKind::kRegularFile);

  // The lines in bytes [begin, end) of a file that is not packed, which begin and end there.
  static Result<DataFile> OpenRange(const std::string& path, int64_t begin, int64_t end);

  // "data file /x/rows.jsonl".
  const std::string& name() const { return name_; }
  // The path without .gz or .zst.
  std::string_view inner_path() const;

  // The next line without its end ("\n" or "\r\n") and without a byte order mark; false at the end.
  Result<bool> ReadLine(std::string* line);
  // All that is left.
  Status ReadRest(std::string* text);
  // Before anything is read: the first bytes of the text, at most 64 KiB.
  std::string_view head() const { return {buffer_.data() + begin_, end_ - begin_}; }

 private:
  DataFile(std::string path, std::unique_ptr<ByteSource> source);
  static Result<DataFile> Begin(const std::string& path, Result<std::unique_ptr<ByteSource>> source,
                                uint64_t offset);
  Result<bool> Fill();  // false at the end
  Status CheckHead() const;
  Status NotText(uint64_t offset, char byte) const;
  Status CheckText(std::string_view text, uint64_t offset) const;

  std::string path_;
  std::string name_;
  std::unique_ptr<ByteSource> source_;
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;  // of what is in buffer_ and not yet given
  uint64_t offset_ = 0;         // of begin_ in the text
};

}  // namespace keel::trainer
