// What a shell reads once to complete the command lines of keel. Each asks `keel __complete` at
// every press of the key, so that it is never older than the program.
#pragma once

#include <string_view>

#include "common/enum_names.h"

namespace keel::tools {

enum class Shell { kBash, kZsh, kFish };
constexpr auto NamesOf(Shell) {
  using enum Shell;
  return EnumNames<Shell>({{kBash, "bash"}, {kZsh, "zsh"}, {kFish, "fish"}});
}

std::string_view CompletionScript(Shell shell);

}  // namespace keel::tools
