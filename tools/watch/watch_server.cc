#include "tools/watch/watch_server.h"

#include <dlfcn.h>

#include "common/process/shared_module.h"
#include "keel_watch_build_id.h"
#include "tools/watch/watch_page.h"

namespace keel::tools {

Status ServeWatch(const WatchServerOptions& options, WatchSource& source,
                  const std::function<void(int port)>& listening) {
  KEEL_ASSIGN_OR_RETURN(const SharedModule module, OpenModule("libkeel_watch.so", Binding::kNow));
  void* const serve = ::dlsym(module.handle, kServeWatchSymbol);
  KEEL_RETURN_IF_ERROR(CheckBuild(module, serve, KEEL_WATCH_BUILD_ID));
  Status status;
  reinterpret_cast<ServeWatchFunction>(serve)(options, source, WatchPage(), listening, &status);
  return status;
}

}  // namespace keel::tools
