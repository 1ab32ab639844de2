// A directory that is there whole, or not at all.
#pragma once

#include <functional>
#include <string>

#include "common/files/file_system.h"
#include "common/log.h"
#include "common/status.h"

namespace keel::checkpoint {

// Makes the directory `name` of `out`, which must not exist (kAlreadyExists): `fill` writes its
// files, each durably, into the directory of the name that it is given, which then gets this one.
// What such calls for `name` left beside it when they were killed is removed, other than what one
// is writing. `what` does it, in messages: "an export".
Status MakeWholeDirectory(FileSystem& out, const std::string& name, const std::string& what,
                          Logger& log, const std::function<Status(const std::string&)>& fill);

}  // namespace keel::checkpoint
