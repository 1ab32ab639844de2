#include "common/files/file_system.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace keel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class FileSystemTest : public ::testing::Test {
 protected:
  FileSystemTest() {
    std::string name = (std::filesystem::temp_directory_path() / "keel-fs-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    root_ = name;
    fs_ = ValueOrThrow(OpenPosixFileSystem(root_ + "/run", true));
  }
  ~FileSystemTest() override { std::filesystem::remove_all(root_); }
  std::vector<std::string> Names(std::string_view path) {
    std::vector<std::string> names;
    for (const FileInfo& info : ValueOrThrow(fs_->List(path))) names.push_back(info.name);
    return names;
  }
  std::string root_;
  std::unique_ptr<FileSystem> fs_;
};

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST_F(FileSystemTest, WritesAndReads) {
  const auto file = ValueOrThrow(fs_->Create("a", {.direct = false, .preallocate = 100}));
  EXPECT_TRUE(file->WriteAt(0, Bytes("hello")).ok());
  EXPECT_TRUE(file->WriteAt(5, Bytes(" there")).ok());
  EXPECT_TRUE(file->Truncate(11).ok());
  EXPECT_TRUE(file->Sync().ok());
  EXPECT_TRUE(file->Close().ok());
  EXPECT_EQ(*ReadFile(*fs_, "a", 100), "hello there");
  EXPECT_EQ(ReadFile(*fs_, "a", 10).status().code(), StatusCode::kInvalidData);
  const auto again = ValueOrThrow(fs_->Open("a"));
  std::vector<std::byte> buffer(100);
  EXPECT_EQ(*again->ReadAt(6, buffer), 5);
  EXPECT_EQ(*again->ReadAt(50, buffer), 0);
  EXPECT_EQ(*again->Size(), 11);
}

// For as long as it lives.
class Umask {
 public:
  explicit Umask(mode_t mask) : before_(::umask(mask)) {}
  ~Umask() { ::umask(before_); }
  Umask(const Umask&) = delete;
  Umask& operator=(const Umask&) = delete;

 private:
  mode_t before_;
};

TEST_F(FileSystemTest, TheUmaskSaysWhoMayRead) {
  const auto mode = [&](const std::string& name) {
    struct stat info {};
    EXPECT_EQ(stat((root_ + "/" + name).c_str(), &info), 0) << name;
    return info.st_mode & 0777;
  };
  for (const auto& [mask, lock_mode] : {std::pair<mode_t, mode_t>{0022, 0600},
                                        {0027, 0600},
                                        {0002, 0660},
                                        {0077, 0600},
                                        {0000, 0666}}) {
    const Umask set(mask);
    const std::string root = "made/" + std::to_string(mask) + "/run";
    const auto fs = ValueOrThrow(OpenPosixFileSystem(root_ + "/" + root, true));
    ThrowIfError(WriteFileDurably(*fs, "created", "x"));
    ThrowIfError(ReplaceFileDurably(*fs, "replaced", "x"));
    ThrowIfError(fs->Append("appended", "x"));
    ThrowIfError(MakeDirectories(*fs, "a/b"));
    for (const char* file : {"created", "replaced", "appended"})
      EXPECT_EQ(mode(root + "/" + file), 0666u & ~mask) << file;
    for (const std::string& folder : {root, root + "/a", root + "/a/b"})
      EXPECT_EQ(mode(folder), 0777u & ~mask) << folder;
    // Whoever can open a file can lock it, and so hold up who owns it.
    const auto lock = ValueOrThrow(fs->Lock("lock", "me"));
    EXPECT_EQ(mode(root + "/lock"), lock_mode);
  }
}

TEST_F(FileSystemTest, WhatIsNoFileIsNotWrittenTo) {
  ASSERT_EQ(mkfifo((root_ + "/run/pipe").c_str(), 0600), 0);
  // With a reader, so that opening it for writing would work.
  const int reader = open((root_ + "/run/pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  for (const Status& status : {fs_->Append("pipe", "x"), fs_->Lock("pipe", "me").status()}) {
    EXPECT_EQ(status.code(), StatusCode::kIo);
    EXPECT_THAT(status.message(), HasSubstr("/run/pipe: not a regular file"));
  }
  close(reader);
}

// The descriptor that this process has open on a file.
int DescriptorOf(const std::string& path) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    if (std::filesystem::read_symlink(entry.path(), error) == path)
      return std::stoi(entry.path().filename().string());
  }
  throw std::runtime_error("not open: " + path);
}

TEST_F(FileSystemTest, AFileIsDeadAfterAFailedSync) {
  const auto file = ValueOrThrow(fs_->Create("a", {}));
  ThrowIfError(file->WriteAt(0, Bytes("lost")));
  // One fsync fails, as when the disk has an error: then all is well again, for the kernel.
  const int fd = DescriptorOf(root_ + "/run/a");
  const int saved = dup(fd);
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  ASSERT_EQ(dup2(pipe_ends[1], fd), fd);  // a pipe cannot be synced
  const Status failed = file->Sync();
  ASSERT_EQ(dup2(saved, fd), fd);
  for (const int end : {saved, pipe_ends[0], pipe_ends[1]}) close(end);
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.message(),
              AllOf(HasSubstr("fsync " + root_ + "/run/a: "), HasSubstr("errno")));
  ASSERT_EQ(fsync(fd), 0);

  const std::string same = failed.ToString();
  std::vector<std::byte> buffer(4);
  EXPECT_EQ(file->Sync().ToString(), same);
  EXPECT_EQ(file->WriteAt(0, Bytes("more")).ToString(), same);
  EXPECT_EQ(file->Truncate(0).ToString(), same);
  EXPECT_EQ(file->ReadAt(0, buffer).status().ToString(), same);
  EXPECT_EQ(file->Sync().ToString(), same);
  EXPECT_EQ(*file->Size(), 4);
  EXPECT_EQ(file->Close().ToString(), same);
  EXPECT_EQ(fcntl(fd, F_GETFD), -1);  // closed all the same
  EXPECT_EQ(file->Close().ToString(), same);
  EXPECT_EQ(file->Sync().ToString(), same);
  EXPECT_EQ(*ReadFile(*fs_, "a", 10), "lost");  // nothing was written or cut off since
}

TEST_F(FileSystemTest, AFileIsDeadAfterAFailedClose) {
  const auto file = ValueOrThrow(fs_->Create("a", {}));
  ThrowIfError(file->WriteAt(0, Bytes("lost")));
  ASSERT_EQ(close(DescriptorOf(root_ + "/run/a")), 0);
  const std::string failed = file->Close().ToString();
  EXPECT_THAT(failed, HasSubstr("close " + root_ + "/run/a: "));
  EXPECT_EQ(file->Close().ToString(), failed);
  EXPECT_EQ(file->WriteAt(0, Bytes("more")).ToString(), failed);
  EXPECT_EQ(file->Sync().ToString(), failed);
}

TEST_F(FileSystemTest, NothingIsWrittenAfterClose) {
  const auto file = ValueOrThrow(fs_->Create("a", {}));
  EXPECT_TRUE(file->Close().ok());
  EXPECT_TRUE(file->Close().ok());
  EXPECT_THAT(file->WriteAt(0, Bytes("more")).message(), HasSubstr(root_ + "/run/a"));
  EXPECT_FALSE(file->Sync().ok());
  EXPECT_FALSE(file->Size().ok());
}

TEST_F(FileSystemTest, CreateNeverOverwrites) {
  ThrowIfError(WriteFileDurably(*fs_, "a", "old"));
  EXPECT_EQ(fs_->Create("a", {}).status().code(), StatusCode::kAlreadyExists);
  std::filesystem::create_symlink("nowhere", root_ + "/run/link");
  EXPECT_FALSE(fs_->Create("link", {}).ok());
  EXPECT_EQ(fs_->Open("missing").status().code(), StatusCode::kNotFound);
  EXPECT_THAT(fs_->Open("missing").status().message(), HasSubstr(root_ + "/run/missing"));
}

TEST_F(FileSystemTest, NothingOutsideTheRootIsReached) {
  std::ofstream(root_ + "/secret") << "secret";
  std::filesystem::create_symlink(root_, root_ + "/run/up");
  std::filesystem::create_symlink(root_ + "/secret", root_ + "/run/file");
  for (const char* path : {"../secret", "/etc/passwd", "up/secret", "file", "a/../../secret", "",
                           ".", "..", "x//y", "./a"}) {
    EXPECT_FALSE(fs_->Open(path).ok()) << path;
    EXPECT_FALSE(fs_->Create(std::string(path) + (path[0] == 0 ? "" : "/new"), {}).ok()) << path;
  }
  EXPECT_FALSE(fs_->Rename("file", "../moved", FileSystem::RenameMode::kReplace).ok());
  EXPECT_FALSE(fs_->MakeDirectory("up/new").ok());
  EXPECT_EQ(ValueOrThrow(fs_->Stat("file")).kind, FileKind::kLink);  // the link itself
  // Removing a tree removes links, not what they point to.
  ThrowIfError(fs_->MakeDirectory("tree"));
  std::filesystem::create_symlink(root_, root_ + "/run/tree/up");
  EXPECT_TRUE(RemoveTree(*fs_, "tree").ok());
  EXPECT_TRUE(std::filesystem::exists(root_ + "/secret"));
}

TEST_F(FileSystemTest, FollowsLinksToFilesWhenAsked) {
  std::ofstream(root_ + "/blob") << "weights";
  std::filesystem::create_symlink("../blob", root_ + "/run/model.safetensors");
  std::filesystem::create_symlink("..", root_ + "/run/up");
  std::filesystem::create_symlink("gone", root_ + "/run/broken");
  EXPECT_FALSE(fs_->Open("model.safetensors").ok());
  const auto lenient =
      ValueOrThrow(OpenPosixFileSystem(root_ + "/run", false, LinkPolicy::kFollow));
  EXPECT_EQ(*ReadFile(*lenient, "model.safetensors", 100), "weights");
  EXPECT_EQ(ValueOrThrow(lenient->Stat("model.safetensors")).kind, FileKind::kFile);
  const std::vector<FileInfo> listed = ValueOrThrow(lenient->List("."));
  EXPECT_EQ(listed[0].name, "broken");
  EXPECT_EQ(listed[0].kind, FileKind::kLink);
  EXPECT_EQ(listed[1].size, 7);
  for (const Status& status : {lenient->Open("broken").status(), lenient->Stat("broken").status(),
                               ReadFile(*lenient, "broken", 100).status()}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidData);
    EXPECT_NE(status.message().find("/run/broken: it is a link to gone, where there is nothing"),
              std::string::npos)
        << status.message();
  }
  EXPECT_EQ(lenient->Open("missing").status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(lenient->Open("up/blob").ok());
}

TEST_F(FileSystemTest, OpensRegularFilesOnly) {
  ASSERT_EQ(mkfifo((root_ + "/run/pipe").c_str(), 0600), 0);
  EXPECT_FALSE(fs_->Open("pipe").ok());  // and returns at once
  ThrowIfError(fs_->MakeDirectory("d"));
  EXPECT_FALSE(fs_->Open("d").ok());
}

TEST_F(FileSystemTest, Renames) {
  ThrowIfError(WriteFileDurably(*fs_, "a", "a"));
  ThrowIfError(WriteFileDurably(*fs_, "b", "b"));
  EXPECT_EQ(fs_->Rename("a", "b", FileSystem::RenameMode::kNoReplace).code(),
            StatusCode::kAlreadyExists);
  EXPECT_TRUE(fs_->Rename("a", "b", FileSystem::RenameMode::kReplace).ok());
  EXPECT_EQ(*ReadFile(*fs_, "b", 10), "a");
  EXPECT_EQ(fs_->Rename("a", "c", FileSystem::RenameMode::kNoReplace).code(),
            StatusCode::kNotFound);
}

TEST_F(FileSystemTest, Exchanges) {
  constexpr auto kExchange = FileSystem::RenameMode::kExchange;
  ThrowIfError(fs_->MakeDirectory("d"));
  ThrowIfError(WriteFileDurably(*fs_, "d/in", "d"));
  ThrowIfError(WriteFileDurably(*fs_, "f", "f"));
  const Status status = fs_->Rename("d", "f", kExchange);
  if (status.code() == StatusCode::kUnavailable)
    GTEST_SKIP() << "NOT TESTED: " << status.ToString();
  ThrowIfError(status);
  EXPECT_EQ(*ReadFile(*fs_, "f/in", 10), "d");
  EXPECT_EQ(*ReadFile(*fs_, "d", 10), "f");
  EXPECT_EQ(fs_->Rename("d", "missing", kExchange).code(), StatusCode::kNotFound);
}

TEST_F(FileSystemTest, DirectoriesAndTrees) {
  EXPECT_TRUE(MakeDirectories(*fs_, "x/y/z").ok());
  EXPECT_TRUE(MakeDirectories(*fs_, "x/y/w").ok());
  ThrowIfError(WriteFileDurably(*fs_, "x/y/z/f", "1"));
  EXPECT_THAT(Names("x/y"), ElementsAre("w", "z"));
  EXPECT_THAT(Names("."), ElementsAre("x"));
  EXPECT_TRUE(fs_->SyncDirectory("x/y").ok());
  EXPECT_TRUE(fs_->SyncDirectory(".").ok());
  EXPECT_FALSE(fs_->Remove("x").ok());
  EXPECT_TRUE(RemoveTree(*fs_, "x").ok());
  EXPECT_EQ(fs_->Stat("x").status().code(), StatusCode::kNotFound);
  EXPECT_GT(*fs_->FreeBytes(), 0);
}

TEST_F(FileSystemTest, ReplaceAndAppend) {
  EXPECT_TRUE(ReplaceFileDurably(*fs_, "t", "1\n").ok());
  std::ofstream(root_ + "/run/t.tmp") << "left by a crash";
  EXPECT_TRUE(ReplaceFileDurably(*fs_, "t", "2\n").ok());
  EXPECT_EQ(*ReadFile(*fs_, "t", 10), "2\n");
  EXPECT_THAT(Names("."), ElementsAre("t"));
  EXPECT_TRUE(fs_->Append("log", "a\n").ok());
  EXPECT_TRUE(fs_->Append("log", "b\n").ok());
  EXPECT_EQ(*ReadFile(*fs_, "log", 10), "a\nb\n");
}

TEST_F(FileSystemTest, WhatIsInTheWayOfADirectory) {
  ThrowIfError(WriteFileDurably(*fs_, "file", "1"));
  std::filesystem::create_symlink(root_, root_ + "/run/link");
  for (const char* path : {"file", "file/below", "link", "link/below"}) {
    const Status status = MakeDirectories(*fs_, path);
    EXPECT_FALSE(status.ok()) << path;
    EXPECT_THAT(status.message(), HasSubstr(root_ + "/run/")) << path;
  }
  EXPECT_EQ(MakeDirectories(*fs_, "file").code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(MakeDirectories(*fs_, ".").ok());
  EXPECT_FALSE(MakeDirectories(*fs_, "a/../b").ok());
  EXPECT_FALSE(MakeDirectories(*fs_, "").ok());
}

TEST_F(FileSystemTest, MakesTheRootWithItsParents) {
  for (const std::string name : {"/x/y/z", "/x/y/w/", "/p//q"}) {
    const auto fs = ValueOrThrow(OpenPosixFileSystem(root_ + name, true));
    EXPECT_TRUE(std::filesystem::is_directory(root_ + name));
    EXPECT_FALSE(fs->Describe("f").ends_with("//f"));
  }
  std::filesystem::create_symlink("x", root_ + "/to-x");
  EXPECT_TRUE(OpenPosixFileSystem(root_ + "/to-x/v", true).ok());
  EXPECT_TRUE(std::filesystem::is_directory(root_ + "/x/v"));
  std::ofstream(root_ + "/file") << "1";
  EXPECT_FALSE(OpenPosixFileSystem(root_ + "/file", true).ok());
  EXPECT_FALSE(OpenPosixFileSystem(root_ + "/file/below", true).ok());
  EXPECT_EQ(OpenPosixFileSystem(root_ + "/none", false).status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(OpenPosixFileSystem("", true).ok());
}

TEST_F(FileSystemTest, OneHolderOfALock) {
  auto held = ValueOrThrow(fs_->Lock("lock", "host a, pid 1, since noon"));
  const auto other = ValueOrThrow(OpenPosixFileSystem(root_ + "/run", false));
  for (FileSystem* second : {fs_.get(), other.get()}) {
    const Status refused = second->Lock("lock", "nobody").status();
    EXPECT_EQ(refused.code(), StatusCode::kBusy);
    EXPECT_EQ(refused.message(), "lock " + root_ + "/run/lock: held by host a, pid 1, since noon");
  }
  held.reset();
  EXPECT_EQ(*ReadFile(*fs_, "lock", 100), "");  // the file stays, without a holder
  held = ValueOrThrow(other->Lock("lock", "b"));
  EXPECT_THAT(fs_->Lock("lock", "c").status().message(), HasSubstr(": held by b"));
  // Whatever stands there, it is one line of text.
  std::ofstream(root_ + "/run/lock") << "\x1b[31m red\n" << std::string(100'000, 'x');
  const std::string message = fs_->Lock("lock", "c").status().message();
  EXPECT_THAT(message, AllOf(HasSubstr("\\x1b[31m red\\x0axxx"), Not(HasSubstr("\n"))));
  EXPECT_LT(message.size(), 1000u);
  std::ofstream(root_ + "/run/lock") << "";
  EXPECT_THAT(fs_->Lock("lock", "c").status().message(), HasSubstr("held by another process"));
}

TEST_F(FileSystemTest, AForkedChildHoldsNoLockOfItsParent) {
  auto held = ValueOrThrow(fs_->Lock("lock", "the parent"));
  int end[2];
  ASSERT_EQ(pipe(end), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    held.reset();
    close(end[1]);
    char byte = 0;
    (void)!read(end[0], &byte, 1);
    _exit(0);
  }
  EXPECT_THAT(fs_->Lock("lock", "b").status().message(), HasSubstr("held by the parent"));
  held.reset();
  EXPECT_TRUE(fs_->Lock("lock", "b").ok());
  close(end[1]);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

TEST_F(FileSystemTest, AKilledHolderLetsGo) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto lock = fs_->Lock("lock", "the child");
    const char result = lock.ok() ? 'y' : 'n';
    if (write(ready[1], &result, 1) != 1) _exit(1);
    for (;;) pause();
  }
  char result = 0;
  ASSERT_EQ(read(ready[0], &result, 1), 1);
  EXPECT_EQ(result, 'y');
  const Status refused = fs_->Lock("lock", "the parent").status();
  EXPECT_EQ(refused.code(), StatusCode::kBusy);
  EXPECT_THAT(refused.message(), HasSubstr("held by the child"));
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  close(ready[0]);
  close(ready[1]);
  // What the dead one wrote is still there, and replaced.
  EXPECT_EQ(*ReadFile(*fs_, "lock", 100), "the child");
  const auto lock = fs_->Lock("lock", "parent");
  ASSERT_TRUE(lock.ok());
  EXPECT_EQ(*ReadFile(*fs_, "lock", 100), "parent");
}

TEST_F(FileSystemTest, ManySharedLocksOrOneExclusive) {
  using enum FileSystem::LockMode;
  ASSERT_TRUE(WriteFileDurably(*fs_, "f", "x").ok());
  auto one = ValueOrThrow(fs_->LockFile("f", kShared));
  auto two = ValueOrThrow(fs_->LockFile("f", kShared));
  EXPECT_EQ(fs_->LockFile("f", kExclusive).status().code(), StatusCode::kBusy);
  one.reset();
  EXPECT_EQ(fs_->LockFile("f", kExclusive).status().code(), StatusCode::kBusy);
  two.reset();
  auto alone = ValueOrThrow(fs_->LockFile("f", kExclusive));
  EXPECT_EQ(fs_->LockFile("f", kShared).status().code(), StatusCode::kBusy);
  // The lock goes where the file goes; the name is free for another.
  ASSERT_TRUE(fs_->Rename("f", "g", FileSystem::RenameMode::kNoReplace).ok());
  EXPECT_EQ(fs_->LockFile("g", kShared).status().code(), StatusCode::kBusy);
  ASSERT_TRUE(WriteFileDurably(*fs_, "f", "y").ok());
  EXPECT_TRUE(fs_->LockFile("f", kExclusive).ok());

  EXPECT_EQ(fs_->LockFile("nothing", kShared).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(fs_->MakeDirectory("directory").ok());
  EXPECT_FALSE(fs_->LockFile("directory", kShared).ok());
  ASSERT_EQ(symlink("f", (root_ + "/run/link").c_str()), 0);
  EXPECT_FALSE(fs_->LockFile("link", kShared).ok());
}

TEST_F(FileSystemTest, ALockEndsWithItsProcess) {
  using enum FileSystem::LockMode;
  ASSERT_TRUE(WriteFileDurably(*fs_, "f", "x").ok());
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto held = fs_->LockFile("f", kShared);
    const char answer = held.ok() ? 'y' : 'n';
    if (write(ready[1], &answer, 1) != 1) _exit(1);
    for (;;) pause();
  }
  char answer = 0;
  ASSERT_EQ(read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  EXPECT_EQ(fs_->LockFile("f", kExclusive).status().code(), StatusCode::kBusy);
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(fs_->LockFile("f", kExclusive).ok());
  close(ready[0]);
  close(ready[1]);
}

TEST_F(FileSystemTest, DirectWrites) {
  const auto file = fs_->Create("d", {.direct = true, .preallocate = 8192});
  if (!file.ok()) {
    EXPECT_THAT(Names("."), IsEmpty());  // no file is left that a second try would trip over
    GTEST_SKIP() << "no direct I/O here: " << file.status().message();
  }
  auto* block = static_cast<std::byte*>(std::aligned_alloc(4096, 8192));
  std::fill(block, block + 8192, std::byte{7});
  EXPECT_TRUE((*file)->WriteAt(0, std::span<const std::byte>(block, 8192)).ok());
  EXPECT_TRUE((*file)->Truncate(5000).ok());
  EXPECT_TRUE((*file)->Sync().ok());
  EXPECT_TRUE((*file)->Close().ok());
  std::free(block);
  EXPECT_EQ(*ReadFile(*fs_, "d", 8192), std::string(5000, 7));
}

}  // namespace
}  // namespace keel
