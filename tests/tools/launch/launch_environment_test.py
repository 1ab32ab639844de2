"""What ranks find in their environment: key by key what torchrun itself gives them."""

import sys
import unittest

import launch_support
from launch_support import free_port

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--no-python")
# Each launcher's own file; that it can be written is tested with the root cause.
PATHS = {"TORCHELASTIC_ERROR_FILE"}
OURS = {"KEEL_JOB_START", "KEEL_STATUS_FILE", "KEEL_STORE"}
# What torchrun's agent tells itself through its own environment.
THEIRS = {"TORCHELASTIC_SIGNALS_TO_HANDLE"}
# The signals that the rank was started with as ignored count too: a launcher's own are not the ranks'.
DUMP = (
    'out="$0/$LAUNCHER.$RANK.$TORCHELASTIC_RESTART_COUNT"; '
    'IGNORED="$(grep SigIgn: /proc/self/status)" env -0 > "$out.part"; mv "$out.part" "$out"; '
)
# A rank that fails ends the others, maybe before they have said anything.
WAIT_FOR_BOTH = (
    'for rank in 0 1; do while [ ! -e "$0/$LAUNCHER.$rank.$TORCHELASTIC_RESTART_COUNT" ]; do sleep 0.02; done; done; '
)


class Environment(launch_support.LaunchTest):
    def found(self, launcher):
        """{(rank, restart): environment} of what DUMP wrote."""
        result = {}
        for path in self.folder.glob(f"{launcher}.*"):
            _, rank, restart = path.name.split(".")
            entries = [entry.partition("=") for entry in path.read_text().split("\0") if entry]
            result[int(rank), int(restart)] = {key: value for key, _, value in entries}
        return result

    def compare(self, *flags, script=DUMP, code=0, env=None, nodes=1, different=()):
        """`different`: keys whose values may differ, but must be there."""
        launchers = (("keel", (launch_support.KEEL, "launch"), ("--",)), ("torch", TORCHRUN, ()))
        for name, launcher, separator in launchers:
            common = {"LAUNCHER": name, **(env or {})}
            started = []
            for node in range(nodes):
                place = ("--node-rank", node) if nodes > 1 else ()
                options = dict(env=common, launcher=launcher, separator=separator)
                started.append(self.start(script, *place, *flags, **options))
            for ended in [launched.wait() for launched in started]:
                self.assertEqual(ended.code, code, ended)
        ours, theirs = self.found("keel"), self.found("torch")
        self.assertEqual(sorted(ours), sorted(theirs))
        self.assertTrue(ours)
        for rank, expected in theirs.items():
            found = ours[rank]
            self.assertEqual(set(found) - OURS, set(expected) - THEIRS, f"rank, restart: {rank}")
            self.assertLessEqual(OURS, set(found))
            for key in set(expected) - PATHS - THEIRS - set(different) - {"LAUNCHER"}:
                self.assertEqual(found[key], expected[key], f"{key} of rank, restart {rank}")
        return ours

    def test_one_rank(self):
        # torchrun calls every job "none", which then share a folder of logs.
        self.compare("--master-port", free_port(), different=["TORCHELASTIC_RUN_ID"])

    def test_alone_on_the_machine(self):
        different = ["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"]
        self.compare("--standalone", "--nproc-per-node", 2, different=different)

    def test_ranks_of_one_node(self):
        job = ("--master-port", free_port(), "--rdzv-id", "job", "--role", "trainer")
        found = self.compare("--nproc-per-node", 3, *job)
        self.assertEqual(sorted(found), [(0, 0), (1, 0), (2, 0)])
        self.assertEqual(found[2, 0]["OMP_NUM_THREADS"], "1")

    def test_threads_are_only_limited_where_nothing_is_said(self):
        port = free_port()
        for value in (None, "5"):
            for ranks in (1, 2):
                with self.subTest(value=value, ranks=ranks):
                    flags = ("--nproc-per-node", ranks, "--master-port", port, "--rdzv-id", "job")
                    self.compare(*flags, env={"OMP_NUM_THREADS": value})

    def test_what_was_set_before_is_kept(self):
        flags = ("--master-port", free_port(), "--rdzv-id", "job")
        kept = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "MASTER_ADDR": "elsewhere", "RANK": "77", "OWN": "a=b\nc"}
        found = self.compare(*flags, env=kept)
        self.assertEqual(found[0, 0]["OWN"], "a=b\nc")

    def test_restarts(self):
        script = DUMP + WAIT_FOR_BOTH + '[ "$TORCHELASTIC_RESTART_COUNT" = 2 ]'
        flags = ("--nproc-per-node", 2, "--max-restarts", 2, "--master-port", free_port(), "--rdzv-id", "job")
        found = self.compare(*flags, script=script)
        self.assertEqual(sorted(found), [(rank, restart) for rank in (0, 1) for restart in (0, 1, 2)])

    def test_variables_instead_of_flags(self):
        pet = {
            "PET_NPROC_PER_NODE": "2", "PET_MAX_RESTARTS": "4", "PET_ROLE": "trainer", "PET_RDZV_ID": "job",
            "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(free_port()), "PET_MONITOR_INTERVAL": "0.05",
            "PET_NNODES": "1:1", "PET_NODE_RANK": "0", "PET_RDZV_BACKEND": "static", "PET_NO_PYTHON": "1",
            "PET_LOG_DIR": str(self.folder / "logs"), "PET_REDIRECTS": "0", "PET_TEE": "0",
            "PET_RDZV_CONF": "timeout=60",
        }  # fmt: skip
        found = self.compare(env=pet)
        self.assertEqual(found[1, 0]["TORCHELASTIC_MAX_RESTARTS"], "4")

    def test_a_flag_wins_over_its_variable(self):
        pet = {"PET_NPROC_PER_NODE": "1", "PET_RDZV_ID": "other", "PET_MASTER_PORT": "1"}
        flags = ("--nproc_per_node=2", "--rdzv_id=job", f"--master_port={free_port()}")
        self.assertEqual(len(self.compare(*flags, env=pet)), 2)

    def test_two_nodes(self):
        flags = ("--nnodes", 2, "--nproc-per-node", 2, "--master-addr", "127.0.0.1", "--master-port", free_port())
        found = self.compare(*flags, nodes=2)
        self.assertEqual(sorted(found), [(rank, 0) for rank in range(4)])
        self.assertEqual(found[3, 0]["GROUP_RANK"], "1")


if __name__ == "__main__":
    unittest.main()
