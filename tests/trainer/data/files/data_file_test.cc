// What a data file may be and hold: regular files of UTF-8 text, packed or not; all else is refused
// by name, and nothing waits.

#include "trainer/data/files/data_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <utility>
#include <vector>

#include "trainer/data/files/file_kind.h"

namespace keel::trainer {
namespace {

using namespace std::string_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Gzip(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string Zstd(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  return packed;
}

class DataFileTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directory(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& content) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  static Result<std::vector<std::string>> Lines(const std::string& path) {
    KEEL_ASSIGN_OR_RETURN(DataFile file, DataFile::Open(path));
    std::vector<std::string> lines;
    std::string line;
    while (true) {
      KEEL_ASSIGN_OR_RETURN(const bool more, file.ReadLine(&line));
      if (!more) return lines;
      lines.push_back(line);
    }
  }
  std::string Refusal(const std::string& name, const std::string& content) {
    const auto lines = Lines(Write(name, content));
    EXPECT_EQ(lines.status().code(), StatusCode::kInvalidData) << name;
    return lines.status().message();
  }

  std::string folder_ = fmt::format("{}/keel_data_file_{}", ::testing::TempDir(), ::getpid());
};

// About 6 MB of lines that do not pack to nothing.
std::string LongText() {
  std::mt19937 draw(3);
  std::string text;
  for (int i = 0; i < 100'000; ++i)
    text += fmt::format("{{\"text\": \"line {} of \xC3\xA9l\xC3\xA9ments {}\"}}\n", i, draw());
  return text;
}

TEST_F(DataFileTest, LinesAreTheSamePackedOrNot) {
  const std::string text = "\xEF\xBB\xBF" + LongText() + "\r\nlast without an end";
  const auto plain = ValueOrThrow(Lines(Write("a.jsonl", text)));
  ASSERT_EQ(plain.size(), 100'002u);
  EXPECT_TRUE(plain[0].starts_with("{\"text\": \"line 0"));
  EXPECT_EQ(plain[100'000], "");
  EXPECT_EQ(plain[100'001], "last without an end");
  const size_t half = text.size() / 2;
  const std::string first = text.substr(0, half), second = text.substr(half);
  for (const auto& [name, packed] : std::vector<std::pair<std::string, std::string>>{
           {"a.jsonl.gz", Gzip(text)},
           {"members.gz", Gzip(first) + Gzip(second)},
           {"filled.gz", Gzip(text) + std::string(1024, '\0')},
           {"a.jsonl.zst", Zstd(text)},
           {"frames.zst", Zstd(first) + Zstd(second)},
           {"skipped.zst", "\x50\x2a\x4d\x18\x04\0\0\0abcd"s + Zstd(text)},
           {"called_text.jsonl", Gzip(text)},  // the content says what it is
       }) {
    EXPECT_EQ(ValueOrThrow(Lines(Write(name, packed))), plain) << name;
  }
  DataFile file = ValueOrThrow(DataFile::Open(Write("b.txt.zst", Zstd(text))));
  EXPECT_TRUE(file.inner_path().ends_with("b.txt"));
  std::string rest;
  ThrowIfError(file.ReadRest(&rest));
  EXPECT_EQ(rest, text.substr(3));
}

TEST_F(DataFileTest, WhatIsNoFileIsRefusedAtOnce) {
  const std::string fifo = folder_ + "/rows.jsonl";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(Lines(fifo).status().message(), AllOf(HasSubstr(fifo), HasSubstr("is a pipe")));
  EXPECT_THAT(Lines(folder_).status().message(),
              AllOf(HasSubstr(folder_), HasSubstr("is a directory")));
  for (const char* device : {"/dev/zero", "/dev/null", "/dev/urandom"})
    EXPECT_THAT(Lines(device).status().message(), AllOf(HasSubstr(device), HasSubstr("a device")));
  EXPECT_EQ(Lines(fifo).status().code(), StatusCode::kInvalidData);
  EXPECT_EQ(Lines("/nowhere/x.jsonl").status().code(), StatusCode::kNotFound);
  EXPECT_THAT(Lines("/nowhere/x.jsonl").status().message(), HasSubstr("/nowhere/x.jsonl"));
  std::filesystem::create_symlink(fifo, folder_ + "/link.jsonl");
  EXPECT_THAT(Lines(folder_ + "/link.jsonl").status().message(), HasSubstr("is a pipe"));
}

// What whoever starts a command has opened for it is meant, be it a pipe.
TEST_F(DataFileTest, StreamsAreReadWhereTheyAreAskedFor) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::string packed = Gzip("{\"a\": 1}\n");
  ASSERT_EQ(write(ends[1], packed.data(), packed.size()), static_cast<ssize_t>(packed.size()));
  close(ends[1]);
  const std::string path = fmt::format("/dev/fd/{}", ends[0]);
  EXPECT_THAT(DataFile::Open(path).status().message(), HasSubstr("is a pipe"));
  DataFile file = ValueOrThrow(DataFile::Open(path, InputKind::kFileOrStream));
  std::string line;
  EXPECT_TRUE(ValueOrThrow(file.ReadLine(&line)));
  EXPECT_EQ(line, "{\"a\": 1}");
  EXPECT_FALSE(ValueOrThrow(file.ReadLine(&line)));
  close(ends[0]);
  // A name in the file system is none of these.
  const std::string fifo = folder_ + "/rows.jsonl";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(DataFile::Open(fifo, InputKind::kFileOrStream).status().message(),
              HasSubstr("is a pipe"));
}

TEST_F(DataFileTest, DamagedAndCutOffPacksAreRefusedWithThePath) {
  const std::string text = LongText();
  for (const auto& [name, packed] :
       {std::pair{"a.gz"s, Gzip(text)}, std::pair{"a.zst"s, Zstd(text)}}) {
    for (const size_t part : {size_t{20}, packed.size() / 2, packed.size() - 1}) {
      EXPECT_THAT(
          Refusal(name, packed.substr(0, part)),
          AllOf(HasSubstr(name), ::testing::AnyOf(HasSubstr("cut off"), HasSubstr("empty"))))
          << part;
    }
    std::string damaged = packed;
    damaged[packed.size() / 2] = static_cast<char>(damaged[packed.size() / 2] ^ 0x10);
    // A flipped bit may give other text before the checksum is reached, never all of it.
    EXPECT_THAT(Refusal(name, damaged), HasSubstr(name));
  }
  // The checksum of the text, at the end of a gzip member.
  std::string other = Gzip(text);
  other[other.size() - 6] = static_cast<char>(other[other.size() - 6] ^ 1);
  EXPECT_THAT(Refusal("sum.gz", other), HasSubstr("damaged"));
  EXPECT_THAT(Refusal("more.gz", Gzip("a\n") + "rest of something"), HasSubstr("damaged"));
  EXPECT_THAT(Refusal("zeros.gz", Gzip("a\n") + "\0\0x"s), HasSubstr("damaged"));
  EXPECT_THAT(Refusal("more.zst", Zstd("a\n") + "rest of something"), HasSubstr("damaged"));
  EXPECT_THAT(Refusal("empty.jsonl", ""), HasSubstr("is empty"));
  EXPECT_THAT(Refusal("empty.jsonl.gz", Gzip("")), HasSubstr("is empty"));
}

// Forty kilobytes that unpack to a terabyte would fill any memory.
TEST_F(DataFileTest, WhatUnpacksWithoutEndIsRefused) {
  std::string lines_of_nothing(size_t{64} << 20, ' ');
  for (size_t i = 0; i < lines_of_nothing.size(); i += 65'536) lines_of_nothing[i] = '\n';
  const std::string frame = Zstd(lines_of_nothing);
  std::string bomb;
  for (int i = 0; i < 40; ++i) bomb += frame;
  const std::string path = Write("bomb.jsonl.zst", bomb);
  DataFile file = ValueOrThrow(DataFile::Open(path));
  std::string line;
  uint64_t lines = 0;
  Result<bool> more = true;
  while (more.ok() && *more) {
    more = file.ReadLine(&line);
    ++lines;
  }
  ASSERT_FALSE(more.ok());
  EXPECT_THAT(more.status().message(), AllOf(HasSubstr("bomb"), HasSubstr("that is no text")));
  EXPECT_LT(lines, (uint64_t{300} << 20) / 65'536);
}

TEST_F(DataFileTest, FormatsThatAreNoTextAreRefusedByTheirNames) {
  const std::string safetensors = "\x40\0\0\0\0\0\0\0{\"x\": {}}"s;
  for (const auto& [content, name] : std::vector<std::pair<std::string, std::string>>{
           {"PAR1\0\x15\x04"s, "Parquet"},
           {"ARROW1\0\0"s, "Arrow"},
           {"\xff\xff\xff\xff\x10\0\0\0"s, "Arrow stream"},
           {"PK\x03\x04\x14\0"s, "zip"},
           {"GGUF\x03\0\0\0"s, "GGUF"},
           {"\x93NUMPY\x01\0"s, "numpy"},
           {"SQLite format 3\0"s, "SQLite"},
           {"\x89HDF\r\n\x1a\n"s, "HDF5"},
           {"BZh91AY&SY\x8c\0"s, "bzip2"},
           {"\xfd\x37zXZ\0"s, "xz"},
           {"\x80\x04\x95\x10\0"s, "pickle"},
           {"\xff\xfe"
            "a\0b\0"s,
            "UTF-16"},
           {safetensors, "safetensors"},
           {Gzip("\x1f\x8b\x08\0"s), "gzip within"},
       }) {
    // Under a name of text, and under one of rows.
    EXPECT_THAT(Refusal("x.txt", content), AllOf(HasSubstr("x.txt"), HasSubstr(name)));
    EXPECT_THAT(Refusal("x.jsonl", content), HasSubstr(name));
  }
  EXPECT_THAT(Refusal("rows.parquet", "PAR1"), HasSubstr("to_json"));
  // Letters that a format begins with are text.
  EXPECT_EQ(ValueOrThrow(Lines(Write("o.txt", "ORCs and GGUFs\n")))[0], "ORCs and GGUFs");
  EXPECT_EQ(BinaryFormatOf("\x01\x02"), "");
}

TEST_F(DataFileTest, OtherEncodingsAreRefusedWithTheOffset) {
  EXPECT_THAT(Refusal("l.txt", "caf\xe9 au lait\n"),
              AllOf(HasSubstr("\\xe9 at offset 3"), HasSubstr("iconv")));
  EXPECT_THAT(Refusal("n.txt", "a\nb\0c\n"s),
              AllOf(HasSubstr("byte 0 (NUL) at offset 3"), HasSubstr("tr -d '\\000'"),
                    ::testing::Not(HasSubstr("iconv"))));
  // Far behind what is looked at first, and across the border of what is read at a time.
  const std::string much(200'000, 'x');
  EXPECT_THAT(Refusal("far.jsonl", much + "\n" + much + "\xe9\n"), HasSubstr("at offset 400001"));
  EXPECT_THAT(Refusal("far.jsonl.gz", Gzip(much + "\xe9")), HasSubstr("of what it unpacks to"));
  EXPECT_THAT(Refusal("cut.txt", "caf\xc3"), HasSubstr("offset 3"));
  for (const size_t before : {65'534, 65'535, 65'536}) {
    const std::string text = std::string(before, 'x') + "\xE2\x82\xAC\xF0\x9F\x98\x80";
    EXPECT_EQ(ValueOrThrow(Lines(Write("edge.txt", text)))[0], text) << before;
  }
}

}  // namespace
}  // namespace keel::trainer
