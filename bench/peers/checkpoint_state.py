"""The state and the step of the checkpoint benchmark: those of bench/training_state.cc, in torch."""

import torch
from torch.distributed.tensor import DTensor, Shard

COLUMNS = 1024
VECTORS = 20_000
BYTES_PER_PARAMETER = 2 + 3 * 4
PRODUCT_SIZE = 1024


class TrainingState:
    """`cut`: "rows" or "columns", equal parts. `mesh`: None for one rank."""

    def __init__(self, kind, megabytes, cut, rank, ranks, mesh):
        self.mesh, self.dim = mesh, 1 if cut == "columns" else 0
        self.matrices = []
        if kind == "small":
            for i in range(rank, VECTORS, ranks):
                self.matrices.append((f"tensors.{i}.value", [torch.rand(1024 * (1 + i * 7 % 16))]))
            return
        matrices = 4 if megabytes < 16 else 40
        unit = 2 * ranks
        rows = max(unit, megabytes * 1_000_000 // (BYTES_PER_PARAMETER * COLUMNS * matrices) // unit * unit)
        size = [rows, COLUMNS]
        size[self.dim] //= ranks
        for i in range(matrices):
            master = torch.empty(size).uniform_(-1, 1)
            exp_avg = torch.empty(size).uniform_(-1e-3, 1e-3)
            exp_avg_sq = torch.empty(size).uniform_(0, 1e-6)
            weight = master.to(torch.bfloat16)
            self.matrices.append((f"model.layers.{i}.weight", [weight, master, exp_avg, exp_avg_sq]))
        self.gradient = torch.empty(size).uniform_(-1e-3, 1e-3)
        self.step = torch.zeros(())

    def update(self):
        self.step.add_(1)
        for _, (weight, master, exp_avg, exp_avg_sq) in self.matrices:
            torch._fused_adamw_(
                [master], [self.gradient], [exp_avg], [exp_avg_sq], [], [self.step],
                lr=1e-4, beta1=0.9, beta2=0.95, weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False,
            )  # fmt: skip
            weight.copy_(master)

    def tensors(self):
        """name -> this rank's part."""
        found = {}
        for name, parts in self.matrices:
            kinds = ["", "optimizer.master.", "optimizer.exp_avg.", "optimizer.exp_avg_sq."]
            found.update({kind + name: part for kind, part in zip(kinds, parts, strict=False)})
        return found

    def wrap(self, tensors):
        """The same as parts of whole tensors, for DCP."""
        if self.mesh is None:
            return tensors
        placement = [Shard(self.dim)]
        return {
            name: DTensor.from_local(part, self.mesh, placement, run_check=False)
            for name, part in tensors.items()
        }

    def bytes(self):
        return sum(part.nbytes for part in self.tensors().values())
