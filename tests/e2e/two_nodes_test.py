"""Two nodes, which are two network namespaces joined by a cable (a veth pair): nothing of one is on
the other's loopback, so that every address that is exchanged must be one that the peer can reach.

Needs root and `ip netns`; without them it says so and ends with 77, which ctest counts as skipped.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

import checkpoint_files
import harness

STEPS = 3
NODES = 2
SKIPPED = 77
UNAVAILABLE = 69
# Far below the deadline of a wait for a peer (120 s), far above what a loaded machine needs.
NOTICED_WITHIN_S = 60
TENSOR = {"actor_rollout_ref__actor__megatron__tensor_model_parallel_size": 2}
# Of the namespaces alone: no route leads there from outside.
ADDRESSES = ("10.213.77.1", "10.213.77.2")
NAMESPACES = pathlib.Path("/run/netns")
LAUNCH = [harness.KEEL, "launch"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--no-python"]


def namespace(node):
    return f"keel-{os.getpid()}-{node}"


def ip(*arguments):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def remove_namespaces(names):
    """With whatever still runs in them; the veth pair goes along."""
    for name in names:
        for pid in ip("netns", "pids", name).split():
            harness.kill(int(pid))
        ip("netns", "delete", name)


def namespaces_of(is_owner):
    """Of the test processes for which `is_owner` is true."""
    found = [(re.fullmatch(r"keel-(\d+)-\d+", path.name), path.name) for path in NAMESPACES.glob("keel-*")]
    return [name for match, name in found if match and is_owner(int(match[1]))]


def make_namespaces():
    for node in range(NODES):
        ip("netns", "add", namespace(node))
    ip(
        "link", "add", "eth0", "netns", namespace(0), "type", "veth",
        "peer", "name", "eth0", "netns", namespace(1),
    )  # fmt: skip
    for node, address in enumerate(ADDRESSES):
        ip("-netns", namespace(node), "address", "add", f"{address}/24", "dev", "eth0")
        ip("-netns", namespace(node), "link", "set", "eth0", "up")
        ip("-netns", namespace(node), "link", "set", "lo", "up")


def missing():
    """What this machine lacks for the test; None if nothing, and then the namespaces are made."""
    if os.geteuid() != 0:
        return "not root"
    if shutil.which("ip") is None:
        return "no program ip (iproute2)"
    try:
        # What a test that was killed has left.
        remove_namespaces(namespaces_of(lambda pid: not pathlib.Path("/proc", str(pid)).exists()))
        make_namespaces()
    except OSError as error:
        return str(error)
    return None


class TwoNodes(harness.Job):
    port = 29500

    secret = None  # of the job

    def start_nodes(self, launcher, config, *flags, failpoint=""):
        """Both nodes' launchers, each with its own log."""
        TwoNodes.port += 1
        return [self.start_node(node, launcher, config, *flags, failpoint=failpoint) for node in range(NODES)]

    def start_node(self, node, launcher, config, *flags, failpoint=""):
        log = open(self.node_log(node), "ab")
        self.addCleanup(log.close)
        place = [
            "--nnodes", str(NODES), "--node-rank", str(node), "--nproc-per-node", "1",
            "--master-addr", ADDRESSES[0], "--master-port", str(self.port),
        ]  # fmt: skip
        keel = [] if launcher[0] == harness.KEEL else [harness.KEEL]
        secret = {"KEEL_JOB_SECRET": self.secret} if self.secret else {}
        process = subprocess.Popen(
            ["ip", "netns", "exec", namespace(node), *launcher, *place, *flags, *keel, "train", str(config)],
            stdout=log, stderr=subprocess.STDOUT, env={**harness.environment(), **secret, "KEEL_FAILPOINT": failpoint},
        )  # fmt: skip
        self.addCleanup(harness.end_with_children, process)
        return process

    def node_log(self, node):
        return self.folder / f"node_{node}.txt"

    def assert_both_say(self, pattern):
        for node in range(NODES):
            self.assertRegex(self.node_log(node).read_text(errors="replace"), pattern, f"node {node}")

    def log(self):
        logs = [self.node_log(node) for node in range(NODES)]
        return "\n".join(f"{p.name}:\n{p.read_text(errors='replace')[-3000:]}" for p in logs if p.exists())

    def wait_for_end(self, processes, limit):
        deadline = time.monotonic() + limit
        for node, process in enumerate(processes):
            try:
                process.wait(timeout=max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.fail(f"node {node}'s launcher still runs after {limit} s\n{self.log()}")
        return [process.returncode for process in processes]

    def train_on_two(self, name, launcher):
        config = self.config(name, trainer__save_freq=STEPS, trainer__total_training_steps=STEPS, **TENSOR)
        codes = self.wait_for_end(self.start_nodes(launcher, config), harness.LIMIT_S)
        self.assertEqual(codes, [0, 0], self.log())
        saved = self.run_dir(name) / f"global_step_{STEPS}"
        self.assertEqual(checkpoint_files.latest(self.run_dir(name)), STEPS)
        verified = harness.keel("ckpt", "verify", saved)
        self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)
        return self.metrics(name), checkpoint_files.digests(saved)

    def test_same_numbers_as_one_process_under_either_launcher(self):
        self.train(self.config("single", trainer__total_training_steps=STEPS))
        expected = self.metrics("single")
        self.assertEqual(sorted(expected), list(range(1, STEPS + 1)))
        launched = self.train_on_two("launched", LAUNCH)
        torchrun = self.train_on_two("torchrun", TORCHRUN)
        for name, (found, _) in (("launched", launched), ("torchrun", torchrun)):
            self.assertEqual(sorted(found), sorted(expected))
            for step, data in found.items():
                self.assertEqual(data[harness.SAMPLES], expected[step][harness.SAMPLES])
                loss = expected[step][harness.LOSS]
                self.assertAlmostEqual(data[harness.LOSS], loss, delta=1e-6 * loss, msg=f"{name}, step {step}")
        for step in expected:
            for key in (harness.LOSS, harness.GRAD_NORM):
                self.assertEqual(launched[0][step][key], torchrun[0][step][key], f"step {step}, {key}")
        self.assertEqual(launched[1], torchrun[1])

    def check_lost_rank(self, name, launcher):
        config = self.config(name, trainer__total_training_steps=100000, **TENSOR)
        processes = self.start_nodes(launcher, config)
        self.wait_until(lambda: len(self.metrics(name)) >= 3, "step 3", processes[0])
        harness.kill(harness.ranks_below(processes[1])[1])
        killed = time.monotonic()
        codes = self.wait_for_end(processes, NOTICED_WITHIN_S)
        print(f"{name}: launchers ended within {time.monotonic() - killed:.1f} s, exit codes {codes}")
        for process in processes:
            self.assertEqual(harness.ranks_below(process), {}, "a rank was left behind")
        lost = rf"on rank 0 step \d+: lost a peer .*{re.escape(ADDRESSES[1])}"
        self.assertRegex(self.node_log(0).read_text(errors="replace"), lost)
        return codes

    def test_a_lost_rank_ends_both_with_the_same_cause(self):
        codes = self.check_lost_rank("lost_launched", LAUNCH)
        self.assertEqual(codes, [128 + signal.SIGKILL] * NODES, self.log())
        self.assert_both_say(r"attempt 0: rank 1 on node 1 was killed by SIGKILL at step \d+ ")

    def test_a_lost_rank_ends_torchrun(self):
        self.assertNotIn(0, self.check_lost_rank("lost_torchrun", TORCHRUN))

    def test_a_restart_of_both_goes_on_from_the_checkpoint(self):
        steps = 120
        options = dict(trainer__save_freq=10, trainer__total_training_steps=steps, **TENSOR)
        self.train(self.config("straight", **options), ranks=2)
        config = self.config("restarted", **options)
        # It does not end before the kill; the second start, from step 10 or later, does not come so far.
        processes = self.start_nodes(LAUNCH, config, "--max-restarts", "1", failpoint=f"step.begin:1:{steps - 5}:stop")
        self.wait_until(lambda: checkpoint_files.latest(self.run_dir("restarted")), "a checkpoint", processes[0])
        harness.kill(harness.ranks_below(processes[1])[1])
        self.assertEqual(self.wait_for_end(processes, harness.LIMIT_S), [0, 0], self.log())
        self.assert_both_say(r"rank 1 on node 1 was killed by SIGKILL")
        self.assert_both_say(r"restart 1 of 1")
        expected, found = self.metrics("straight"), self.metrics("restarted")
        self.assertEqual(sorted(found), list(range(1, steps + 1)))
        for step in found:
            for key in (harness.LOSS, harness.GRAD_NORM, harness.SAMPLES):
                self.assertEqual(found[step][key], expected[step][key], f"step {step}, {key}")

    def test_a_lost_node_that_comes_back_goes_on_from_the_checkpoint(self):
        self.secret = "a secret of enough characters"
        steps = 60
        options = dict(trainer__save_freq=10, trainer__total_training_steps=steps, **TENSOR)
        config = self.config("lost", **options)
        flags = ("--max-restarts", "1", "--rdzv-conf", "keep_alive_timeout=12")
        processes = self.start_nodes(LAUNCH, config, *flags, failpoint=f"step.begin:0:{steps - 5}:stop")  # as above
        self.wait_until(lambda: checkpoint_files.latest(self.run_dir("lost")), "a checkpoint", processes[0])
        harness.kill(processes[1].pid)
        processes[1].wait()
        processes[1] = self.start_node(1, LAUNCH, config, *flags)
        self.assertEqual(self.wait_for_end(processes, harness.LIMIT_S), [0, 0], self.log())
        said = self.node_log(0).read_text(errors="replace")
        for text in ("node 1 was lost", "node(s) 1 to come back", "restart 1 of 1"):
            self.assertIn(text, said)
        self.assertNotIn("KEEL_JOB_SECRET", said)
        self.assertEqual(sorted(self.metrics("lost")), list(range(1, steps + 1)))

    def test_a_store_without_a_secret_is_warned_of(self):
        config = self.config("warned", trainer__total_training_steps=1, **TENSOR)
        self.assertEqual(self.wait_for_end(self.start_nodes(LAUNCH, config), harness.LIMIT_S), [0, 0], self.log())
        said = self.node_log(0).read_text(errors="replace")
        self.assertIn(f"warning: whoever reaches port {self.port} of this host", said)

    def test_a_pulled_cable_ends_both(self):
        # Nothing is closed and nothing refused: each side only hears no more of the other.
        config = self.config("pulled", trainer__total_training_steps=100000, **TENSOR)
        processes = self.start_nodes(LAUNCH, config, "--rdzv-conf", "keep_alive_timeout=12")
        self.wait_until(lambda: len(self.metrics("pulled")) >= 3, "step 3", processes[0])
        self.addCleanup(ip, "-netns", namespace(1), "link", "set", "eth0", "up")
        ip("-netns", namespace(1), "link", "set", "eth0", "down")
        pulled = time.monotonic()
        codes = self.wait_for_end(processes, NOTICED_WITHIN_S)
        print(f"pulled: launchers ended within {time.monotonic() - pulled:.1f} s, exit codes {codes}")
        self.assertEqual(codes, [UNAVAILABLE] * NODES, self.log())
        self.assertIn("node 1 was lost", self.node_log(0).read_text(errors="replace"))
        self.assertRegex(self.node_log(1).read_text(errors="replace"), rf"the job's store at {re.escape(ADDRESSES[0])}:")


def main():
    # A terminated test cleans up, too; unittest would take any other exception for a failed case.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        lacking = missing()
        if lacking is None:
            unittest.main()
    finally:
        remove_namespaces(namespaces_of(lambda pid: pid == os.getpid()))
    print(f"SKIPPED two_nodes_test: it needs root and `ip netns`: {lacking}", file=sys.stderr)
    sys.exit(SKIPPED)


if __name__ == "__main__":
    main()
