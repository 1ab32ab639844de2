"""Keel's checkpoints for any PyTorch program: saved beside the training, verified, resumed exactly.

    import keel

    checkpoints = keel.Checkpointer("runs/mine", keep=3)
    state = {"model": model, "optimizer": optimizer}
    loaded = checkpoints.load(state)                        # None where there is nothing yet
    for step in range(loaded.step + 1 if loaded else 1, steps + 1):
        ...
        if step % 100 == 0:
            checkpoints.save_async(step, state, extra={"seen": seen})
    checkpoints.close()
"""

from keel._checkpoint import CheckpointError
from keel.checkpointer import Checkpointer, Loaded, Save
from keel.memory import Shard

__all__ = ["CheckpointError", "Checkpointer", "Loaded", "Save", "Shard"]
