// DeskFile: desk.json in a run's folder: where its desk is, for whoever may read the folder's files
// as the run's user. Torch-free.
#pragma once

#include <string>

#include "common/status.h"
#include "trainer/desk/desk_client.h"

namespace keel::trainer::desk {

inline constexpr const char* kDeskFileName = "desk.json";

// Atomic; nobody but the user can read it, since the secret is in it.
Status WriteDeskFile(const std::string& folder, const DeskAddress& address);
// kNotFound: there is none: the run has no desk, or has ended.
Result<DeskAddress> ReadDeskFile(const std::string& folder);
// At the end of a run. No error where there is none.
void RemoveDeskFile(const std::string& folder);

}  // namespace keel::trainer::desk
