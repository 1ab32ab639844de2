#include "trainer/desk/desk_file.h"

#include <unistd.h>

#include <filesystem>

#include "common/files/whole_file.h"

namespace keel::trainer::desk {

namespace {

std::string PathIn(const std::string& folder) {
  return (std::filesystem::path(folder) / kDeskFileName).string();
}

}  // namespace

Status WriteDeskFile(const std::string& folder, const DeskAddress& address) {
  return ReplaceWholeFile(PathIn(folder), address.ToText() + "\n", 0600);
}

Result<DeskAddress> ReadDeskFile(const std::string& folder) {
  const std::string path = PathIn(folder);
  KEEL_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  Result<DeskAddress> address = DeskAddress::Parse(text);
  if (!address.ok()) return address.status().WithContext(path);
  return address;
}

void RemoveDeskFile(const std::string& folder) { (void)unlink(PathIn(folder).c_str()); }

}  // namespace keel::trainer::desk
