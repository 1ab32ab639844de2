#include "trainer/data/files/byte_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "common/files/posix_file.h"

namespace keel::trainer {

namespace {

constexpr size_t kPackedBuffer = size_t{256} << 10;
// Text packs to a tenth or a hundredth. What unpacks to more than a thousand times its size, after
// a first part of any kind, is no text, and is not worth the disk or memory that it would fill.
constexpr uint64_t kFreeBytes = uint64_t{256} << 20;
constexpr uint64_t kMostRatio = 1000;

Status BadInput(const std::string& path, const std::string& text) {
  return Status(StatusCode::kInvalidData, fmt::format("{}: {}", path, text));
}

class FileSource final : public ByteSource {
 public:
  FileSource(Descriptor fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  // The first bytes, which Read gives again; fewer than asked for at the end of the file alone.
  Result<std::string_view> Peek(size_t bytes) {
    while (head_.size() < bytes && !ended_) {
      const size_t before = head_.size();
      head_.resize(bytes);
      Result<size_t> got = Fill(std::span(head_).subspan(before));
      head_.resize(before + (got.ok() ? *got : 0));
      if (!got.ok()) return got.status();
    }
    return std::string_view(head_.data(), head_.size());
  }

  Result<size_t> Read(std::span<char> buffer) override {
    if (given_ < head_.size()) {
      const size_t count = std::min(buffer.size(), head_.size() - given_);
      std::memcpy(buffer.data(), head_.data() + given_, count);
      given_ += count;
      return count;
    }
    return ended_ ? Result<size_t>(size_t{0}) : Fill(buffer);
  }

  const std::string& path() const { return path_; }

 private:
  Result<size_t> Fill(std::span<char> buffer) {
    const size_t most = std::min(buffer.size(), kMaxTransfer);
    const ssize_t got = Retry([&] { return ::read(fd_.get(), buffer.data(), most); });
    if (got < 0) return Status::FromErrno(errno, "read", path_);
    ended_ = got == 0;
    return static_cast<size_t>(got);
  }

  Descriptor fd_;
  std::string path_;
  std::vector<char> head_;
  size_t given_ = 0;  // of head_
  bool ended_ = false;
};

class RangeSource final : public ByteSource {
 public:
  RangeSource(Descriptor fd, std::string path, int64_t begin, int64_t end)
      : fd_(std::move(fd)), path_(std::move(path)), at_(begin), end_(end) {}

  Result<size_t> Read(std::span<char> buffer) override {
    const auto most =
        std::min(std::min(buffer.size(), kMaxTransfer), static_cast<size_t>(end_ - at_));
    const ssize_t got = Retry([&] { return ::pread(fd_.get(), buffer.data(), most, at_); });
    if (got < 0) return Status::FromErrno(errno, "read", path_);
    if (got == 0 && at_ < end_) {
      return BadInput(path_, fmt::format("ends at byte {}, and went on to {} when its parts were "
                                         "planned: it was changed meanwhile",
                                         at_, end_));
    }
    at_ += got;
    return static_cast<size_t>(got);
  }

 private:
  Descriptor fd_;
  std::string path_;
  int64_t at_, end_;
};

// What both unpackers share: the packed bytes at hand, and how much came of how much.
class Unpacker : public ByteSource {
 protected:
  Unpacker(std::unique_ptr<FileSource> file, const char* format)
      : file_(std::move(file)), format_(format), packed_(kPackedBuffer) {}

  // Makes packed() non-empty unless the file has ended.
  Status FillPacked() {
    if (begin_ < end_) return Status::Ok();
    KEEL_ASSIGN_OR_RETURN(end_, file_->Read(packed_));
    begin_ = 0;
    taken_ += end_;
    return Status::Ok();
  }
  std::span<char> packed() { return std::span(packed_).subspan(begin_, end_ - begin_); }
  void Consume(size_t bytes) { begin_ += bytes; }

  Status CountGiven(size_t bytes) {
    given_ += bytes;
    if (given_ <= kFreeBytes || given_ / kMostRatio <= taken_) return Status::Ok();
    return BadInput(file_->path(),
                    fmt::format("{} bytes of {} data unpack to more than {}: that is no text",
                                taken_, format_, given_));
  }
  Status Damaged(std::string_view what) const {
    return BadInput(file_->path(),
                    fmt::format("the {} data are damaged ({}) before byte {}, after {} bytes that "
                                "could be unpacked; copy or make the file again",
                                format_, what, taken_ - (end_ - begin_), given_));
  }
  Status CutOff() const {
    return BadInput(file_->path(),
                    fmt::format("the {} data end in the middle, after {} bytes that unpack to {}: "
                                "the file is cut off; copy or make it again",
                                format_, taken_, given_));
  }

 private:
  std::unique_ptr<FileSource> file_;
  const char* format_;
  std::vector<char> packed_;
  size_t begin_ = 0, end_ = 0;  // of what is in packed_
  uint64_t taken_ = 0;          // bytes of the file
  uint64_t given_ = 0;
};

class GzipSource final : public Unpacker {
 public:
  explicit GzipSource(std::unique_ptr<FileSource> file) : Unpacker(std::move(file), "gzip") {}
  ~GzipSource() override {
    if (begun_) inflateEnd(&stream_);
  }

  Result<size_t> Read(std::span<char> buffer) override {
    const size_t most = std::min<size_t>(buffer.size(), std::numeric_limits<uInt>::max());
    stream_.next_out = reinterpret_cast<Bytef*>(buffer.data());
    stream_.avail_out = static_cast<uInt>(most);
    while (stream_.avail_out == most) {
      KEEL_RETURN_IF_ERROR(FillPacked());
      if (packed().empty()) {
        if (!in_member_) return size_t{0};
        return CutOff();
      }
      if (!in_member_) {
        // Members follow one another; zeros behind the last are filling of a tape or a download.
        if (members_ > 0 && packed()[0] == 0) {
          zeros_ = true;
          Consume(1);
          continue;
        }
        if (zeros_) return Damaged("bytes behind the end");
        KEEL_RETURN_IF_ERROR(Begin());
      }
      stream_.next_in = reinterpret_cast<Bytef*>(packed().data());
      stream_.avail_in = static_cast<uInt>(packed().size());
      const uInt before = stream_.avail_in;
      const int code = inflate(&stream_, Z_NO_FLUSH);
      Consume(before - stream_.avail_in);
      if (code == Z_STREAM_END) {
        in_member_ = false;
        ++members_;
      } else if (code != Z_OK) {
        return Damaged(stream_.msg != nullptr ? stream_.msg : "zlib refuses them");
      }
    }
    const size_t given = most - stream_.avail_out;
    KEEL_RETURN_IF_ERROR(CountGiven(given));
    return given;
  }

 private:
  Status Begin() {
    constexpr int kGzipOnly = 16 + MAX_WBITS;
    const int code = begun_ ? inflateReset(&stream_) : inflateInit2(&stream_, kGzipOnly);
    if (code != Z_OK)
      return Status(StatusCode::kExhausted, StatusCause::kMemory, "zlib: no memory to unpack");
    begun_ = in_member_ = true;
    return Status::Ok();
  }

  z_stream stream_{};
  bool begun_ = false;
  bool in_member_ = false;
  bool zeros_ = false;
  int64_t members_ = 0;
};

class ZstdSource final : public Unpacker {
 public:
  explicit ZstdSource(std::unique_ptr<FileSource> file)
      : Unpacker(std::move(file), "Zstandard"), stream_(ZSTD_createDStream(), &ZSTD_freeDStream) {}

  Result<size_t> Read(std::span<char> buffer) override {
    if (stream_ == nullptr)
      return Status(StatusCode::kExhausted, StatusCause::kMemory, "zstd: no memory to unpack");
    ZSTD_outBuffer out{buffer.data(), buffer.size(), 0};
    while (out.pos == 0) {
      KEEL_RETURN_IF_ERROR(FillPacked());
      // What is still inside the decoder comes out without further input.
      if (packed().empty() && !in_frame_) return size_t{0};
      const bool no_more = packed().empty();
      ZSTD_inBuffer in{packed().data(), packed().size(), 0};
      const size_t code = ZSTD_decompressStream(stream_.get(), &out, &in);
      Consume(in.pos);
      if (ZSTD_isError(code) != 0) return Damaged(ZSTD_getErrorName(code));
      in_frame_ = code != 0;
      if (no_more && in_frame_ && out.pos == 0) return CutOff();
    }
    KEEL_RETURN_IF_ERROR(CountGiven(out.pos));
    return out.pos;
  }

 private:
  std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream_;
  bool in_frame_ = false;
};

bool IsGzip(std::string_view head) { return head.starts_with("\x1f\x8b"); }

// A frame, or a frame to be skipped, with which pzstd begins.
bool IsZstd(std::string_view head) {
  if (head.size() < 4) return false;
  return head.starts_with("\x28\xb5\x2f\xfd") ||
         ((static_cast<unsigned char>(head[0]) & 0xf0) == 0x50 &&
          head.substr(1, 3) == "\x2a\x4d\x18");
}

const char* KindName(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe, which may never be written to";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device, which may never end";
}

// The descriptor of "-", /dev/stdin and /dev/fd/<N>.
std::optional<int> OpenedByStarter(std::string_view path) {
  if (path == "-" || path == "/dev/stdin") return STDIN_FILENO;
  constexpr std::string_view kFolder = "/dev/fd/";
  if (!path.starts_with(kFolder)) return std::nullopt;
  path.remove_prefix(kFolder.size());
  int fd = 0;
  const auto [end, error] = std::from_chars(path.data(), path.data() + path.size(), fd);
  if (error != std::errc() || end != path.data() + path.size()) return std::nullopt;
  return fd;
}

Result<Descriptor> OpenRegular(const std::string& path) {
  // A device may act when it is opened, so it is looked at before; a pipe waits for its other end
  // unless told not to; and what is open is looked at again, since the name may have changed hands.
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return Status::FromErrno(errno, "open", path);
  Descriptor fd;
  if (S_ISREG(info.st_mode)) {
    fd = Descriptor(Retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
    if (!fd.valid()) return Status::FromErrno(errno, "open", path);
    if (::fstat(fd.get(), &info) != 0) return Status::FromErrno(errno, "stat", path);
  }
  if (S_ISREG(info.st_mode)) return fd;
  return BadInput(path, fmt::format("is {}; expected a regular file", KindName(info.st_mode)));
}

Result<Descriptor> OpenInput(const std::string& path, InputKind kind) {
  const auto opened = OpenedByStarter(path);
  if (kind != InputKind::kFileOrStream || !opened) return OpenRegular(path);
  Descriptor fd(::fcntl(*opened, F_DUPFD_CLOEXEC, 0));
  if (!fd.valid()) return Status::FromErrno(errno, "open", path);
  return fd;
}

}  // namespace

Result<std::unique_ptr<ByteSource>> OpenByteSource(const std::string& path, InputKind kind) {
  KEEL_ASSIGN_OR_RETURN(Descriptor fd, OpenInput(path, kind));
  auto file = std::make_unique<FileSource>(std::move(fd), path);
  KEEL_ASSIGN_OR_RETURN(const std::string_view head, file->Peek(4));
  std::unique_ptr<ByteSource> source;
  if (IsGzip(head)) {
    source = std::make_unique<GzipSource>(std::move(file));
  } else if (IsZstd(head)) {
    source = std::make_unique<ZstdSource>(std::move(file));
  } else {
    source = std::move(file);
  }
  return source;
}

Result<std::unique_ptr<ByteSource>> OpenByteRange(const std::string& path, int64_t begin,
                                                  int64_t end) {
  KEEL_ASSIGN_OR_RETURN(Descriptor fd, OpenRegular(path));
  return std::unique_ptr<ByteSource>(
      std::make_unique<RangeSource>(std::move(fd), path, begin, end));
}

Result<bool> IsPacked(const std::string& path) {
  KEEL_ASSIGN_OR_RETURN(Descriptor fd, OpenRegular(path));
  FileSource file(std::move(fd), path);
  KEEL_ASSIGN_OR_RETURN(const std::string_view head, file.Peek(4));
  return IsGzip(head) || IsZstd(head);
}

}  // namespace keel::trainer
