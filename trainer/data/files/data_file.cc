#include "trainer/data/files/data_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/text.h"
#include "trainer/data/files/file_kind.h"

namespace keel::trainer {

namespace {

constexpr size_t kTextBuffer = size_t{64} << 10;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

Status Unusable(const std::string& name, const std::string& text) {
  return Status(StatusCode::kInvalidData, fmt::format("{}: {}", name, text));
}

// Where the first byte stands that no UTF-8 text has, a zero among them; npos when none does. A
// character that the end cuts off counts as whole where `more` follows.
size_t FindNotText(std::string_view text, bool more) {
  const size_t zero = text.find('\0');
  const size_t bad = FindNotUtf8(text);
  if (bad == std::string_view::npos || (zero != std::string_view::npos && zero < bad)) return zero;
  // The longest beginning of a character is three bytes.
  const auto lead = static_cast<unsigned char>(text[bad]);
  const size_t needs = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc2 ? 2 : 0;
  const bool tail = std::all_of(text.begin() + static_cast<std::ptrdiff_t>(bad) + 1, text.end(),
                                [](char c) { return (c & '\xc0') == '\x80'; });
  if (more && tail && bad + needs > text.size()) return std::string_view::npos;
  return bad;
}

// "stanfordnlp/imdb"
bool LooksLikeAHubsName(const std::string& path) {
  const size_t slash = path.find('/');
  return slash != std::string::npos && slash > 0 &&
         path.find('/', slash + 1) == std::string::npos && path.find('.') == std::string::npos &&
         slash + 1 < path.size();
}

}  // namespace

DataFile::DataFile(std::string path, std::unique_ptr<ByteSource> source)
    : path_(std::move(path)),
      name_(path_ == "-" ? "standard input" : "data file " + path_),
      source_(std::move(source)),
      buffer_(kTextBuffer) {}

Result<DataFile> DataFile::Open(const std::string& path, InputKind kind) {
  // A Parquet file that is cut short or empty is still none of ours.
  if (path.ends_with(".parquet")) {
    return Unusable("data file " + path,
                    fmt::format("Parquet is not read; convert it once, with pandas: "
                                "pandas.read_parquet('{}').to_json('rows.jsonl', "
                                "orient='records', lines=True)",
                                path));
  }
  return Begin(path, OpenByteSource(path, kind), 0);
}

Result<DataFile> DataFile::OpenRange(const std::string& path, int64_t begin, int64_t end) {
  return Begin(path, OpenByteRange(path, begin, end), static_cast<uint64_t>(begin));
}

Result<DataFile> DataFile::Begin(const std::string& path,
                                 Result<std::unique_ptr<ByteSource>> source, uint64_t offset) {
  if (!source.ok()) {
    const Status& status = source.status();
    if (status.code() == StatusCode::kNotFound && LooksLikeAHubsName(path)) {
      return Status(
          status.code(),
          fmt::format("data file {}: there is no such file; names of a hub are not looked "
                      "up: download the data set and give its files",
                      Printable(path)));
    }
    return status.code() == StatusCode::kInvalidData
               ? Status(status.code(), "data file " + status.message())
               : status.WithContext("data file");
  }
  DataFile file(path, std::move(source).value());
  file.offset_ = offset;
  // As much as there is, up to the buffer: a short read of a pipe says nothing about the content.
  while (file.end_ < file.buffer_.size()) {
    KEEL_ASSIGN_OR_RETURN(const size_t got,
                          file.source_->Read(std::span(file.buffer_).subspan(file.end_)));
    if (got == 0) break;
    file.end_ += got;
  }
  if (file.end_ == 0) return Unusable(file.name_, "is empty");
  KEEL_RETURN_IF_ERROR(file.CheckHead());
  if (offset == 0 && file.head().starts_with(kByteOrderMark)) {
    file.begin_ = kByteOrderMark.size();
    file.offset_ = kByteOrderMark.size();
  }
  return file;
}

std::string_view DataFile::inner_path() const {
  std::string_view path = path_;
  for (const std::string_view end : {".gz", ".zst", ".zstd"}) {
    if (path.ends_with(end)) return path.substr(0, path.size() - end.size());
  }
  return path;
}

Status DataFile::CheckHead() const {
  const size_t bad = FindNotText(head(), true);
  if (bad == std::string_view::npos) return Status::Ok();
  const std::string_view format = BinaryFormatOf(head());
  if (format.empty()) return NotText(bad, head()[bad]);
  return Unusable(name_, fmt::format("is {}, which is not read; expected JSON Lines or plain text "
                                     "in UTF-8, as it is or packed with gzip or Zstandard",
                                     format));
}

Status DataFile::NotText(uint64_t offset, char byte) const {
  const char* unpacked = inner_path() == path_ ? "" : " of what it unpacks to";
  if (byte == '\0') {
    return Unusable(name_, fmt::format("byte 0 (NUL) at offset {}{} is not read as text: the file "
                                       "is binary, or has NULs, which tr -d '\\000' removes",
                                       offset, unpacked));
  }
  return Unusable(
      name_,
      fmt::format("byte {} at offset {}{} is no UTF-8 text: the file is binary, or in another "
                  "encoding, which iconv -f LATIN1 -t UTF-8 (or what it is) converts",
                  Printable(std::string(1, byte)), offset, unpacked));
}

Status DataFile::CheckText(std::string_view text, uint64_t offset) const {
  const size_t bad = FindNotText(text, false);
  return bad == std::string_view::npos ? Status::Ok() : NotText(offset + bad, text[bad]);
}

Result<bool> DataFile::Fill() {
  KEEL_ASSIGN_OR_RETURN(end_, source_->Read(buffer_));
  begin_ = 0;
  return end_ > 0;
}

Result<bool> DataFile::ReadLine(std::string* line) {
  line->clear();
  const uint64_t offset = offset_;
  bool any = false;
  while (true) {
    if (begin_ == end_) {
      KEEL_ASSIGN_OR_RETURN(const bool more, Fill());
      if (!more) break;
    }
    any = true;
    const char* const from = buffer_.data() + begin_;
    const auto* const found = static_cast<const char*>(std::memchr(from, '\n', end_ - begin_));
    const size_t count = found != nullptr ? static_cast<size_t>(found - from) : end_ - begin_;
    if (line->size() + count > kMaxLine) {
      return Unusable(name_, fmt::format("a line of more than {} bytes begins at offset {}; "
                                         "expected a row a line",
                                         kMaxLine, offset));
    }
    line->append(from, count);
    const size_t taken = count + (found != nullptr ? 1 : 0);
    begin_ += taken;
    offset_ += taken;
    if (found != nullptr) break;
  }
  KEEL_RETURN_IF_ERROR(CheckText(*line, offset));
  if (!line->empty() && line->back() == '\r') line->pop_back();
  return any;
}

Status DataFile::ReadRest(std::string* text) {
  const size_t before = text->size();
  const uint64_t offset = offset_;
  while (true) {
    text->append(buffer_.data() + begin_, end_ - begin_);
    offset_ += end_ - begin_;
    begin_ = end_;
    KEEL_ASSIGN_OR_RETURN(const bool more, Fill());
    if (!more) break;
  }
  return CheckText(std::string_view(*text).substr(before), offset);
}

}  // namespace keel::trainer
