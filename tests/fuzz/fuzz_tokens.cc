// Files of tokens that anyone may have written: a shard, as it is and with digests that hold, and
// an index of Megatron's.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/files/file_system.h"
#include "tests/fuzz/targets.h"
#include "trainer/data/tokens/megatron_file.h"
#include "trainer/data/tokens/shard_file.h"
#include "trainer/data/tokens/shard_writer.h"

namespace keel::fuzz {

namespace {

// "/tmp/keel_fuzz_tokens.123" and an end.
std::string Scratch(const std::string& end) {
  return (std::filesystem::temp_directory_path() /
          ("keel_fuzz_tokens." + std::to_string(::getpid()) + end))
      .string();
}

void Write(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
}

void RequireRefused(const Status& status, const std::string& path) {
  KEEL_REQUIRE(status.code() == StatusCode::kInvalidData || status.code() == StatusCode::kDataLoss);
  KEEL_REQUIRE(status.message().find(path) != std::string::npos);
}

// Documents follow each other and none is empty; each can be read, or is refused by name.
void Walk(const trainer::TokenStore& store, const std::string& path) {
  KEEL_REQUIRE(store.Begin(0) == 0);
  std::vector<int32_t> ids;
  std::vector<uint8_t> learn;
  for (int64_t d = 0; d < store.documents(); ++d) {
    KEEL_REQUIRE(store.Begin(d) < store.Begin(d + 1));
    ids.resize(static_cast<size_t>(store.Begin(d + 1) - store.Begin(d)));
    learn.resize(ids.size());
    const Status read = store.Read(store.Begin(d), ids, learn);
    if (!read.ok()) return RequireRefused(read, path);
    for (const uint8_t one : learn) KEEL_REQUIRE(one <= 1);
    for (const int32_t id : ids) KEEL_REQUIRE(id >= 0);
  }
}

void OpenShard(std::string_view bytes) {
  const std::string path = Scratch(".tokens");
  Write(path, bytes);
  const auto shard = trainer::ShardFile::Open(path);
  if (!shard.ok()) {
    RequireRefused(shard.status(), path);
  } else {
    Walk(**shard, path);
    (void)(*shard)->Made();
    (void)(*shard)->Verify();
  }
  ::unlink(path.c_str());
}

// The same with the digests that a writer would have made, as far as there is room for them.
std::string Repaired(std::string_view bytes) {
  using trainer::ShardHeader;
  std::string file(bytes);
  ShardHeader header;
  if (file.size() < sizeof(header)) return file;
  std::memcpy(&header, file.data(), sizeof(header));
  const auto sane = [&](int64_t value) { return value >= 0 && value <= std::ssize(file); };
  if (sane(header.tokens) && sane(header.documents) && sane(header.has_learn) &&
      sane(header.made_bytes) && header.id_bytes <= 8) {
    const trainer::ShardLayout at = trainer::ShardLayout::Of(header);
    if (at.file_bytes == std::ssize(file)) {
      std::vector<Digest128> digests;
      for (int64_t from = trainer::kShardHeaderBytes; from < at.digests;
           from += trainer::kShardBlockBytes) {
        const int64_t count = std::min(trainer::kShardBlockBytes, at.digests - from);
        digests.push_back(
            Hash128(std::as_bytes(std::span(file))
                        .subspan(static_cast<size_t>(from), static_cast<size_t>(count))));
      }
      std::memcpy(&file[static_cast<size_t>(at.digests)], digests.data(),
                  digests.size() * sizeof(Digest128));
      header.blocks = Hash128(std::as_bytes(std::span(digests)));
    }
  }
  header.header = trainer::DigestOfHeader(header);
  std::memcpy(file.data(), &header, sizeof(header));
  return file;
}

}  // namespace

void FuzzShard(std::string_view bytes) {
  OpenShard(bytes);
  OpenShard(Repaired(bytes));
}

void FuzzMegatron(std::string_view bytes) {
  static const std::string ids(64, '\3');
  const std::string prefix = Scratch(".megatron");
  Write(prefix + ".bin", ids);
  Write(prefix + ".idx", bytes);
  const auto file = trainer::MegatronFile::Open(prefix);
  if (file.ok()) {
    Walk(**file, prefix);
  } else {
    RequireRefused(file.status(), prefix);
  }
  ::unlink((prefix + ".bin").c_str());
  ::unlink((prefix + ".idx").c_str());
}

std::vector<std::string> ShardSeeds() {
  std::vector<std::string> seeds;
  for (const uint32_t id_bytes : {2u, 4u}) {
    const std::string name = "keel_fuzz_seed." + std::to_string(::getpid());
    const auto folder = std::filesystem::temp_directory_path();
    auto files = ValueOrThrow(OpenPosixFileSystem(folder.string(), false));
    auto writer = ValueOrThrow(trainer::ShardWriter::Create(*files, name, id_bytes, {}));
    const int32_t ids[] = {1, 2, 300};
    const uint8_t learn[] = {0, 1, 1};
    ThrowIfError(writer.Add(ids, learn));
    ThrowIfError(writer.Add(std::span(ids).first(2), std::span(learn).first(2)));
    ThrowIfError(writer.Finish({{"rows", 2}}).status());
    std::ifstream file(folder / name, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    std::filesystem::remove(folder / name);
  }
  return seeds;
}

std::vector<std::string> MegatronSeeds() {
  const auto number = [](auto value) {
    std::string bytes(sizeof(value), '\0');
    std::memcpy(bytes.data(), &value, sizeof(value));
    return bytes;
  };
  std::vector<std::string> seeds;
  for (const uint8_t dtype : std::initializer_list<uint8_t>{1, 4, 5, 8}) {
    std::string seed("MMIDIDX\0\0", 9);
    seed += number(uint64_t{1}) + number(dtype) + number(uint64_t{2}) + number(uint64_t{3});
    seed += number(int32_t{3}) + number(int32_t{4}) + number(int64_t{0}) + number(int64_t{24});
    seed += number(int64_t{0}) + number(int64_t{1}) + number(int64_t{2});
    seeds.push_back(seed);
    seeds.push_back(seed + std::string(2, '\0'));
  }
  return seeds;
}

}  // namespace keel::fuzz
