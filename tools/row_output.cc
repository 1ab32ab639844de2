#include "tools/row_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

namespace keel::tools {

namespace {

namespace fs = std::filesystem;

}  // namespace

Result<RowOutput> RowOutput::Open(const std::string& flag, const std::string& path) {
  std::error_code error;
  const fs::file_status there = fs::status(path, error);
  const auto refused = [&](const std::string& why) {
    return Status(StatusCode::kCannotCreate, fmt::format("{} {}: {}", flag, path, why));
  };
  if (fs::is_directory(there)) return refused("is a directory; name a file");
  const bool as_it_is = fs::exists(there) && !fs::is_regular_file(there);
  const std::string name = as_it_is ? path : path + ".partial";
  // 'e': not for programs that are started meanwhile.
  std::FILE* const file = std::fopen(name.c_str(), "we");
  if (file == nullptr) return refused(Status::FromErrno(errno, "open", name).message());
  return RowOutput(flag, path, name, file);
}

Status RowOutput::Failed(const char* operation) const {
  return Status::FromErrno(errno, operation, temporary_).WithContext(flag_);
}

Status RowOutput::Put(size_t row, std::string line) {
  waiting_.emplace(row, std::move(line));
  bool wrote = false;
  for (auto next = waiting_.find(next_); next != waiting_.end(); next = waiting_.find(next_)) {
    const std::string& text = next->second;
    if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size() ||
        std::fputc('\n', file_.get()) == EOF) {
      return Failed("write");
    }
    waiting_.erase(next);
    ++next_;
    wrote = true;
  }
  if (wrote && std::fflush(file_.get()) != 0) return Failed("write");
  return Status::Ok();
}

Status RowOutput::Finish() {
  if (!waiting_.empty()) {
    return Status(StatusCode::kInternal,
                  fmt::format("{}: row {} was never done, and {} after it are", flag_, next_,
                              waiting_.size()));
  }
  if (path_ != temporary_ && fsync(fileno(file_.get())) != 0) return Failed("fsync");
  if (std::fclose(file_.release()) != 0) return Failed("close");
  if (path_ == temporary_) return Status::Ok();
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) return Failed("rename");
  return Status::Ok();
}

}  // namespace keel::tools
