#include "common/process/python_package.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <optional>
#include <system_error>

#include "common/text.h"

extern "C" char** environ;  // NOLINT: of the C library

namespace keel {

namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kPatience{10};

// Reads until the other side closes, at most 4096 bytes; nothing when it takes too long.
std::optional<std::string> ReadAll(int fd) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  std::string text;
  std::array<char, 512> block{};
  while (text.size() < 4096) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    pollfd ready{fd, POLLIN, 0};
    const int polled = ::poll(&ready, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
    if (polled < 0 && errno == EINTR) continue;
    if (polled <= 0) return std::nullopt;
    const ssize_t count = ::read(fd, block.data(), block.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    text.append(block.data(), static_cast<size_t>(count));
  }
  return text;
}

// The standard output of a program; "" unless it ends with 0 in time.
std::string OutputOf(const std::vector<std::string>& command) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return "";
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, pipe[1], 1);
  ::posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_t child = -1;
  const int started =
      ::posix_spawn(&child, command[0].c_str(), &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(pipe[1]);
  const std::optional<std::string> text = started == 0 ? ReadAll(pipe[0]) : std::nullopt;
  ::close(pipe[0]);
  if (started != 0) return "";
  if (!text) ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return text && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? *text : "";
}

bool IsFolder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

// 11 of "python3.11", 0 of what is no Python's folder.
int MinorOf(const std::string& name) {
  if (!name.starts_with("python3.")) return name == "python3" ? 1 : 0;
  int minor = 0;
  for (const char c : name.substr(8)) {
    if (!IsDigit(c)) return 0;
    minor = 10 * minor + (c - '0');
  }
  return minor;
}

}  // namespace

std::vector<fs::path> SitePackagesUnder(const fs::path& prefix) {
  std::vector<std::pair<int, fs::path>> pythons;
  for (const char* lib : {"lib", "lib64", "local/lib"}) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(prefix / lib, error)) {
      const int minor = MinorOf(entry.path().filename());
      if (minor > 0) pythons.emplace_back(minor, entry.path());
    }
  }
  std::stable_sort(pythons.begin(), pythons.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<fs::path> found;
  for (const auto& [minor, python] : pythons) {
    for (const char* packages : {"site-packages", "dist-packages"}) {
      if (IsFolder(python / packages)) found.push_back(python / packages);
    }
  }
  return found;
}

std::string FindProgram(std::string_view name, std::string_view path) {
  const auto runs = [](const std::string& file) {
    std::error_code error;
    return fs::is_regular_file(file, error) && ::access(file.c_str(), X_OK) == 0;
  };
  if (name.find('/') != std::string_view::npos)
    return runs(std::string(name)) ? std::string(name) : "";
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    const std::string folder(path.substr(begin, end - begin));
    const std::string file = fmt::format("{}/{}", folder.empty() ? "." : folder, name);
    if (runs(file)) return file;
    begin = end + 1;
  }
  return "";
}

std::string FolderOfPythonPackage(const std::string& python, const std::string& package) {
  // Without the working directory, which -c would put first.
  const std::string question = fmt::format(
      "import sys\n"
      "sys.path[:] = [p for p in sys.path if p]\n"
      "import importlib.util\n"
      "spec = importlib.util.find_spec('{}')\n"
      "print(list(spec.submodule_search_locations)[0] if spec else '')\n",
      package);
  return std::string(Trim(OutputOf({python, "-c", question})));
}

}  // namespace keel
