#include "tools/watch_server.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "common/program_id.h"
#include "common/shared_module.h"
#include "tools/watch_page.h"

namespace keel::tools {

Status ServeWatch(const WatchServerOptions& options, WatchSource& source,
                  const std::function<void(int port)>& listening) {
  KEEL_ASSIGN_OR_RETURN(const SharedModule module, OpenModule("libkeel_watch.so", Binding::kNow));
  const auto* const version = static_cast<const char*>(::dlsym(module.handle, kWatchVersionSymbol));
  void* const serve = ::dlsym(module.handle, kServeWatchSymbol);
  if (version == nullptr || serve == nullptr || version != ProgramVersion()) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("{} is not of this build of Keel; install both anew", module.path));
  }
  Status status;
  reinterpret_cast<ServeWatchFunction>(serve)(options, source, WatchPage(), listening, &status);
  return status;
}

}  // namespace keel::tools
