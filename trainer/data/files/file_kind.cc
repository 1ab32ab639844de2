#include "trainer/data/files/file_kind.h"

#include <array>
#include <utility>

namespace keel::trainer {

namespace {

using namespace std::string_view_literals;

// Begins with; several of these are letters, which a text may begin with, too.
constexpr auto kBeginnings = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"PAR1"sv, "Parquet"sv},
    {"ARROW1"sv, "an Arrow file"sv},
    {"\xff\xff\xff\xff"sv, "an Arrow stream"sv},
    {"FEA1"sv, "Feather"sv},
    {"ORC"sv, "ORC"sv},
    {"Obj\x01"sv, "Avro"sv},
    {"GGUF"sv, "a GGUF model"sv},
    {"\x93NUMPY"sv, "a numpy array"sv},
    {"\x89HDF\r\n\x1a\n"sv, "HDF5"sv},
    {"SQLite format 3\0"sv, "an SQLite database"sv},
    {"MMIDIDX\0\0"sv, "a Megatron index"sv},
    {"PK\x03\x04"sv, "a zip archive (or .npz, .pt, .xlsx)"sv},
    {"PK\x05\x06"sv, "an empty zip archive"sv},
    {"\x1f\x8b"sv, "gzip within what was unpacked already"sv},
    {"\x28\xb5\x2f\xfd"sv, "Zstandard within what was unpacked already"sv},
    {"BZh"sv, "bzip2"sv},
    {"\xfd\x37zXZ\0"sv, "xz"sv},
    {"\x04\x22\x4d\x18"sv, "lz4"sv},
    {"7z\xbc\xaf\x27\x1c"sv, "a 7z archive"sv},
    {"Rar!\x1a\x07"sv, "a rar archive"sv},
    {"%PDF-"sv, "PDF"sv},
    {"\x7f\x45LF"sv, "a program"sv},
    {"\x89PNG"sv, "a PNG image"sv},
    {"\xff\xd8\xff"sv, "a JPEG image"sv},
    {"RIFF"sv, "a RIFF file (sound or image)"sv},
    {"\xff\xfe\0\0"sv, "text in UTF-32"sv},
    {"\xff\xfe"sv, "text in UTF-16"sv},
    {"\xfe\xff"sv, "text in UTF-16"sv},
});

}  // namespace

std::string_view BinaryFormatOf(std::string_view head) {
  for (const auto& [beginning, name] : kBeginnings) {
    if (head.starts_with(beginning)) return name;
  }
  // A length in eight bytes, then JSON.
  if (head.size() > 10 && head.substr(8, 2) == "{\"" && head.substr(5, 3) == "\0\0\0"sv)
    return "safetensors";
  if (head.size() > 262 && head.substr(257, 5) == "ustar") return "a tar archive";
  // A pickle's protocol number, then a frame or an opcode.
  if (head.size() > 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5)
    return "a Python pickle";
  return "";
}

}  // namespace keel::trainer
