// What the checkpoints' messages call the settings of a trainer: their keys.
#pragma once

#include "checkpoint/format/setting_names.h"

namespace keel::trainer {

inline constexpr checkpoint::SettingNames kCheckpointSettings = {
    .keep = "trainer.max_ckpts_to_keep",
    .adopt_foreign = "trainer.adopt_foreign_checkpoints",
    .allow_missing = "actor_rollout_ref.actor.checkpoint.load_allow_missing",
    .io = "actor_rollout_ref.actor.checkpoint.io",
    .writers = "actor_rollout_ref.actor.checkpoint.dist_ckpt_workers",
    .readers = "trainer.threads_per_rank",
    .same_state = "Build the model that was saved, in its dtype (actor_rollout_ref.model)",
    .elsewhere =
        "name one by trainer.resume_mode resume_path and trainer.resume_from_path; to "
        "begin anew take another trainer.default_local_dir, or set trainer.resume_mode to "
        "disable",
    .follow_link = "name it by trainer.resume_from_path",
    .less_staging = "set actor_rollout_ref.actor.checkpoint.staging.host_memory_cap",
};

}  // namespace keel::trainer
