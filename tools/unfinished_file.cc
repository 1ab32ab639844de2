#include "tools/unfinished_file.h"

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <utility>

#include "common/process/signal_handler.h"

namespace keel::tools {

namespace {

// A command writes two files at most. Their names belong to the objects, which take them out before
// they go.
constexpr int kPlaces = 8;
std::atomic<const char*> unfinished_names[kPlaces];

// Nothing but what a handler of signals may call.
extern "C" void OnEndSignal(int number) {
  for (const auto& name : unfinished_names)
    if (const char* const path = name.load()) (void)::unlink(path);
  EndBySignal(number);
}

}  // namespace

UnfinishedFile::UnfinishedFile(std::string path) : path_(std::move(path)) {
  HandleEndSignals(OnEndSignal);
  for (int i = 0; i < kPlaces && place_ < 0; ++i) {
    const char* none = nullptr;
    if (unfinished_names[i].compare_exchange_strong(none, path_.c_str())) place_ = i;
  }
}

UnfinishedFile::~UnfinishedFile() {
  if (owned_) (void)::unlink(path_.c_str());
  Release();
}

void UnfinishedFile::Release() {
  owned_ = false;
  if (place_ >= 0) unfinished_names[place_].store(nullptr);
  place_ = -1;
}

}  // namespace keel::tools
