// SettingNames: what the settings are called of which messages speak, and what else these advise.
//
// By default as checkpoint::CheckpointOptions and LoadRequest have them. A trainer gives the keys
// of its configuration, the library what its callers know.
#pragma once

#include <string_view>

namespace keel::checkpoint {

struct SettingNames {
  std::string_view keep = "max_ckpts_to_keep";
  std::string_view adopt_foreign = "adopt_foreign";
  std::string_view allow_missing = "allow_missing";
  std::string_view io = "io";
  std::string_view writers = "dist_ckpt_workers";
  std::string_view readers = "load_threads";
  // Where a checkpoint holds other tensors.
  std::string_view same_state = "Give the state that was saved";
  // Where those that there are are of other runs.
  std::string_view elsewhere = "load one by its step; to begin anew take another folder";
  // Where the newest is a link, beside putting the checkpoint itself in its place; may be "".
  std::string_view follow_link = "";
  // Where ranks give one part of a tensor with other values.
  std::string_view apart = "Give each rank's a name of its own";
  // Where there is no memory to copy to.
  std::string_view less_staging = "a save that blocks takes none";
};

}  // namespace keel::checkpoint
