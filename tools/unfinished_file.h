// UnfinishedFile: a file under a temporary name, of no use to anyone before it is whole.
//
// Owns the name. Removes the file when it goes, and when SIGINT, SIGTERM or SIGHUP ends the program
// before; a signal that the program takes itself, or ignores, stays as it is. To be made on the
// main thread.
#pragma once

#include <string>

namespace keel::tools {

class UnfinishedFile {
 public:
  explicit UnfinishedFile(std::string path);
  ~UnfinishedFile();
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;

  // The file has its name.
  void Release();

 private:
  std::string path_;
  int place_ = -1;  // among those that a signal removes; -1: none was free
  bool owned_ = true;
};

}  // namespace keel::tools
